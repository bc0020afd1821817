"""Handlers for signals that arrive while a server starts, and no core dumps. A server begins with these."""

import os
import resource
import signal
from functools import cache


@cache
def take_signals() -> None:
    """
    Make SIGTERM, SIGINT and SIGQUIT end this process with exit code 0, and ignore signals that must not end a server.

    Each server replaces these handlers once it needs an orderly stop. A second call changes nothing, because gunicorn's
    configuration calls this and is read again on reload.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        # Do not raise an exception, because code that catches it, such as the engine, would treat it as a failure.
        signal.signal(number, lambda *_: os._exit(0))
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def leave_no_core() -> None:
    """Disable core dumps for this process and its children, because their memory contains keys and secrets."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
