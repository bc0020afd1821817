"""Process heartbeats, and the silence since the last heartbeat as measured by the parent."""

import logging
import os
import struct
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

#: Seconds without a heartbeat after which a process counts as hung. It is killed a second later.
HUNG_S = 10.0
#: Additional seconds for the first heartbeat, because the process imports its program, perhaps on a busy machine.
START_S = 60.0

#: Seconds between the log line about a silent process and its kill.
_WARNING_S = 1.0

_COUNT = struct.Struct("=Q")


class Heartbeat:
    """
    A number in the anonymous file *descriptor* that a working process increments and its parent reads.

    The number is 0 until the first heartbeat.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._count = 0

    @staticmethod
    def new_file() -> int:
        """Return the descriptor of a new anonymous file. Raises OSError if the system lacks resources."""
        return os.memfd_create("querykeep-heartbeat", os.MFD_CLOEXEC)

    def beat(self) -> None:
        """Increment the number. Call from one thread only."""
        self._count += 1
        self._write(self._count)

    def read(self) -> int:
        """Return the number."""
        data = os.pread(self.descriptor, _COUNT.size, 0)
        return int(_COUNT.unpack(data)[0]) if data else 0

    def clear(self) -> None:
        """Set the number to 0, for the next process."""
        self._write(0)

    def _write(self, count: int) -> None:
        os.pwrite(self.descriptor, _COUNT.pack(count), 0)


class Pulse:
    """
    The silence of a process, measured by changes of its heartbeat.

    The process's own clock is not used. The time between two checks counts as one second at most, because the process
    is not to blame if the parent did not run.
    """

    def __init__(self, now: float) -> None:
        self.quiet_s = 0.0
        self.age_s = 0.0
        self._beat = 0.0
        self._looked_at = now

    def look(self, beat: float, now: float) -> None:
        """Record *beat*, the number or time of the last heartbeat."""
        passed_s = min(now - self._looked_at, 1.0)
        self._looked_at = now
        self.age_s += passed_s
        self.quiet_s = 0.0 if beat != self._beat else self.quiet_s + passed_s
        self._beat = beat


class HangDetector:
    """
    Decides when a process is hung and must be killed. The first value that differs from *beat* is the first heartbeat.

    A log line with the name of the *part* and the process id of its *worker* is written first, and a later check
    decides. If nobody reads the log, both processes wait for a reader. Check about once a second.
    """

    def __init__(self, part: str, now: float, beat: float = 0.0, *, worker: int | None = None) -> None:
        self._part = part
        self._worker = worker
        self._pulse = Pulse(now)
        self._first = beat
        self._has_begun = False
        self._is_logged = False

    @property
    def silent_s(self) -> float:
        """The seconds since the last heartbeat, or before the first heartbeat, the seconds over the limit."""
        return self._pulse.quiet_s

    def is_hung(self, beat: float, limit_s: float, now: float, *, is_stopped: bool = False) -> bool:
        """
        Record *beat*, and return whether the process has been silent for slightly more than *limit_s* seconds.

        *is_stopped* is true if a signal has stopped the process. If it is false, the first heartbeat may take `START_S`
        longer.
        """
        self._has_begun |= beat != self._first
        if not self._has_begun:
            beat = now if self._pulse.age_s < START_S and not is_stopped else -1.0
        self._pulse.look(beat, now)
        if self.silent_s < limit_s:
            self._is_logged = False
        elif not self._is_logged:
            self._is_logged = True
            fields = {"part": self._part, "silent_s": round(self.silent_s, 1), "worker": self._worker}
            logger.error("A part of the runtime does not respond", extra={"fields": fields})
            return False
        return self.silent_s >= limit_s + _WARNING_S


def is_stopped(child: int) -> bool:
    """Return whether a signal has stopped the child process *child*."""
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def waits_for_disk() -> bool:
    """Return whether a thread of this process is blocked on a disk or network file system, and so may block others."""
    for task in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):  # The thread has ended.
            if task.read_text().rpartition(") ")[2].startswith("D"):
                return True
    return False
