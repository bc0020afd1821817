"""
End the connections of a client library at the deadline, whose own time-outs do not cover every wait.

A server that accepts a connection and then stays silent blocks such a library for ever. When the time of the load is
up, its connections are shut down, so that the library returns with an error.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from datasources.deadline import Deadline


@contextmanager
def cut_off(deadline: Deadline, is_theirs: Callable[[socket.socket], bool]) -> Iterator[None]:
    """
    Until the block ends, shut down connections as soon as the load must end.

    This affects connections that this process opened since the block began and that *is_theirs* accepts.
    """
    before = set(_sockets())

    def shut_down() -> None:
        for inode, descriptor in _sockets().items():
            if inode not in before:
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
                    if is_theirs(duplicate):
                        duplicate.shutdown(socket.SHUT_RDWR)

    with deadline.enforced(shut_down):
        yield


def _sockets() -> dict[str, int]:
    """Return the descriptors of the sockets of this process, by the name of their inode."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            name = str(entry.readlink())
            if name.startswith("socket:"):
                found[name] = int(entry.name)
    return found
