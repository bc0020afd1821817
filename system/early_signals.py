"""Handlers for signals that arrive while a server starts. A server installs them before anything else."""

import os
import signal
from functools import cache


@cache
def take_signals() -> None:
    """
    Make SIGTERM and Ctrl-C end this process with exit code 0, and ignore the signals that must not end a server.

    Each server replaces these handlers once it needs an orderly stop. A second call changes nothing, because gunicorn's
    configuration calls this and is read again on reload.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        # Do not raise an exception, because code that catches it, such as the engine, would treat it as a failure.
        signal.signal(number, lambda *_: os._exit(0))
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
