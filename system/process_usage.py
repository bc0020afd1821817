"""What processes use: processor time and memory, as /proc tells."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

#: Positions in /proc/PID/stat after the name of the program, which may contain anything.
_USER, _CHILDREN_SYSTEM, _STARTED, _RESIDENT = 11, 14, 19, 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process and its descendants use; `cpu_s` includes children that have ended."""

    cpu_s: float
    resident_bytes: int
    processes: int


def started_at(pid: int) -> str | None:
    """Return when the process *pid* started, to tell it from a later one with its number; None if there is none."""
    fields = _stat(pid)
    return None if fields is None else fields[_STARTED]


def arguments(pid: int) -> list[str]:
    """Return the command line of the process *pid*; empty if there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


def children(pid: int) -> list[int]:
    """Return the children of the process *pid*, of whichever of its threads."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def usage_of(pid: int) -> Usage:
    """Return what the process *pid* and all its descendants use."""
    cpu_ticks = pages = processes = 0
    for one in _family(pid):
        if (fields := _stat(one)) is not None:
            cpu_ticks += sum(map(int, fields[_USER : _CHILDREN_SYSTEM + 1]))
            pages += int(fields[_RESIDENT])
            processes += 1
    return Usage(cpu_s=cpu_ticks / _TICKS, resident_bytes=pages * _PAGE_BYTES, processes=processes)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for child in children(pid):
        yield from _family(child)


def _stat(pid: int) -> list[str] | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return None
