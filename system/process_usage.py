"""Process information from /proc: command lines, states, children, CPU time and memory."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

#: Indexes into the result of `stat_fields`.
STATE, STARTED = 0, 19
_USER, _CHILDREN_SYSTEM, _RESIDENT = 11, 14, 21


class Usage(Struct, frozen=True, kw_only=True):
    """The CPU and memory use of a process and its descendants. `cpu_s` includes children that have ended."""

    cpu_s: float
    resident_bytes: int
    processes: int


def stat_fields(pid: int) -> list[str] | None:
    """
    Return the fields of /proc/PID/stat (proc(5)) from the state onwards; None if there is no such process.

    The preceding program name may contain any characters.
    """
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return None


def started_at(pid: int) -> str | None:
    """Return the start time of the process *pid*, to detect a reused id; None if there is no such process."""
    fields = stat_fields(pid)
    return None if fields is None else fields[STARTED]


def arguments(pid: int) -> list[str]:
    """Return the command line of the process *pid*; empty if there is no such process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


def children(pid: int) -> list[int]:
    """Return the children of the process *pid*, from all of its threads."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def usage_of(pid: int) -> Usage:
    """Return the CPU and memory use of the process *pid* and all its descendants."""
    cpu_ticks = pages = processes = 0
    for one in family(pid):
        if (fields := stat_fields(one)) is not None:
            cpu_ticks += sum(map(int, fields[_USER : _CHILDREN_SYSTEM + 1]))
            pages += int(fields[_RESIDENT])
            processes += 1
    return Usage(cpu_s=cpu_ticks / TICKS_PER_S, resident_bytes=pages * _PAGE_BYTES, processes=processes)


def family(pid: int) -> Iterator[int]:
    """Yield *pid* and the process ids of all its descendants."""
    yield pid
    for child in children(pid):
        yield from family(child)
