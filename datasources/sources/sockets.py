"""
End the connections of a client library at the deadline, whose own time-outs do not cover every wait.

A server that accepts a connection and then stays silent blocks such a library for ever. When the time of the load is
up, its connections are shut down, so that the library returns with an error.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from datasources.deadline import Deadline

#: Seconds between two checks of the deadline.
_POLL_S = 0.05


@contextmanager
def cut_off(deadline: Deadline, is_theirs: Callable[[socket.socket], bool]) -> Iterator[None]:
    """
    Until the block ends, shut down connections as soon as the load must end.

    This affects connections that this process opened since the block began and that *is_theirs* accepts.
    """
    done = threading.Event()
    before = set(_sockets())

    def watch() -> None:
        while not done.wait(_POLL_S):
            if deadline.passed:
                for inode, descriptor in _sockets().items():
                    if inode not in before:
                        _shut_down(descriptor, is_theirs)

    watcher = threading.Thread(target=watch, name="source-deadline", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _sockets() -> dict[str, int]:
    """Return the descriptors of the sockets of this process, by the name of their inode."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            name = str(entry.readlink())
            if name.startswith("socket:"):
                found[name] = int(entry.name)
    return found


def _shut_down(descriptor: int, is_theirs: Callable[[socket.socket], bool]) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
        if is_theirs(duplicate):
            duplicate.shutdown(socket.SHUT_RDWR)
