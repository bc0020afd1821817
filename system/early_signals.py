"""Signals that come while a server only starts: the first thing that it does is to take them."""

from __future__ import annotations

import os
import signal
from functools import cache


@cache
def take_signals() -> None:
    """
    Have SIGTERM and Ctrl-C end this process by exit code 0, and ignore what must not end a server.

    Each server replaces these handlers once there is something to stop in order. A second call changes nothing:
    gunicorn reads its configuration, and so calls this, again when it reloads.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not by an exception: within the engine, or whatever else takes it for its own, it would be a failure.
        signal.signal(number, lambda *_: os._exit(0))
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
