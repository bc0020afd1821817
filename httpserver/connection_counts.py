"""
How many connections each worker of a server has, in memory that all share.

Whoever is awake first takes what has come, so of connections that come at once one worker may get nearly all. Their
clients would then wait for one process and for its places with the engine, while the other workers have little to do.
"""

from __future__ import annotations

import mmap
import os
import struct

#: A worker's process id, 0 for none, and its number of connections.
_RECORD = struct.Struct("@II")
_RECORDS = 128


class ConnectionCounts:
    """The counts of the workers that are forked from here. A worker that has ended is not counted."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _RECORDS * _RECORD.size)
        self._offset = 0
        self._pid = 0
        self._count = 0

    def join(self, serial: int) -> None:
        """Count the connections of this process from now on, as those of the worker with this number."""
        self._offset = serial % _RECORDS * _RECORD.size
        self._pid = os.getpid()
        self._count = 0
        self._write()

    def leave(self) -> None:
        """Let no worker wait for this one to take a connection."""
        self._pid = 0
        self._write()

    def add(self, number: int) -> None:
        """Count so many connections more, or fewer."""
        self._count += number
        self._write()

    def others_have_fewer(self) -> bool:
        """Whether another worker has fewer connections than this one."""
        return any(
            pid not in (0, self._pid) and count < self._count and _is_there(pid)
            for pid, count in _RECORD.iter_unpack(self._memory)
        )

    def _write(self) -> None:
        _RECORD.pack_into(self._memory, self._offset, self._pid, self._count)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
