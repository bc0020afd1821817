"""Limits on the file descriptors and connections of a process."""

import resource
import sys

#: The largest number of simultaneous connections of one process, if the system permits that many.
MAX_CONNECTIONS = 10_000
#: Descriptors for anything but clients: listener, log, heartbeat file, event loop, sockets of the other processes.
_BASE = 32
_MIN_CONNECTIONS = 4


def connection_limit(statements: int) -> int:
    """
    Return the number of clients that a process may accept, given that *statements* of them need another socket each.

    It is derived from the hard limit of descriptors (`ulimit -Hn`).
    """
    return max(_MIN_CONNECTIONS, min(MAX_CONNECTIONS, hard_limit() - _BASE - statements))


def descriptors_for(datasets: int) -> int:
    """
    Return the number of descriptors that a process with an engine may need.

    Each snapshot may be open three times: for the running statement, for the next ones, and for a newer session.
    """
    return 3 * datasets + _BASE


def hard_limit() -> int:
    """Return the hard limit of descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def raise_soft_limit() -> None:
    """Raise the soft limit of descriptors to what this process may need, as far as the hard limit permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(2 * MAX_CONNECTIONS, hard_limit())
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
