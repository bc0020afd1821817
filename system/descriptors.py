"""How many file descriptors a process may have open, and for what."""

from __future__ import annotations

import resource
import sys

#: Connections that one process takes at once, as far as the system lets it.
MAX_CONNECTIONS = 10_000
#: Descriptors for what is no client: listener, log, heartbeat file, event loop, sockets of the other parts.
_BASE = 32
_MIN_CONNECTIONS = 4


def connection_limit(statements: int) -> int:
    """
    Return how many clients a process may hold, so that *statements* of them can open the socket that each needs.

    It follows from the hard limit of descriptors (`ulimit -Hn`).
    """
    return max(_MIN_CONNECTIONS, min(MAX_CONNECTIONS, hard_limit() - _BASE - statements))


def descriptors_for(datasets: int) -> int:
    """
    Return how many a process with an engine may need.

    A snapshot is open for the statement that runs, for those to come, and once more while newer ones are opened.
    """
    return 3 * datasets + _BASE


def hard_limit() -> int:
    """Return how many descriptors the system allows a process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def raise_soft_limit() -> None:
    """Let this process open as many descriptors as it may need, if the hard limit allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(2 * MAX_CONNECTIONS, hard_limit())
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
