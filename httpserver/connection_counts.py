"""
The number of workers, and the number of connections of each one, in memory shared by all workers.

The first worker to wake up accepts all pending connections, so one worker may get nearly all connections of a burst.
Their clients would then wait for that process and its share of the engine while the other workers are idle.
"""

import mmap
import os
import struct

#: The process id of a worker (0: none) and its number of connections.
_RECORD = struct.Struct("@II")
_RECORDS = 128


def web_workers() -> int:
    """Return the number of processes that serve HTTP, one per core."""
    return len(os.sched_getaffinity(0))


class ConnectionCounts:
    """The counts of the workers forked from this process. Dead workers are ignored."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _RECORDS * _RECORD.size)
        self._offset = self._pid = self._count = 0

    def join(self, serial: int) -> None:
        """Begin counting for this process, as the worker with the number *serial*."""
        self._offset, self._pid, self._count = serial % _RECORDS * _RECORD.size, os.getpid(), 0
        self._write()

    def leave(self) -> None:
        """Stop counting. Other workers no longer leave connections to this one."""
        self._pid = 0
        self._write()

    def add(self, number: int) -> None:
        """Add *number*, which may be negative, to the count of this process."""
        self._count += number
        self._write()

    def others_have_fewer(self) -> bool:
        """Return whether another worker has fewer connections than this one."""
        return any(
            pid not in (0, self._pid) and count < self._count and _is_alive(pid)
            for pid, count in _RECORD.iter_unpack(self._memory)
        )

    def _write(self) -> None:
        _RECORD.pack_into(self._memory, self._offset, self._pid, self._count)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
