"""What a runtime's processes are and hold, as /proc shows it. One that has ended holds nothing."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from benchmarks.processes import command
from tests.queryengine.heartbeats import state_of

MIB = 1024 * 1024


def _state_and_parent(pid: int) -> tuple[str, int]:
    """Return the state of a process (proc(5)), "Z" if it has ended, and the id of its parent."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "Z", 0
    return state, int(parent)


def family(pid: int) -> dict[int, str]:
    """Return process *pid* and everything below it that runs now: ids and command lines."""
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        member = int(directory.name)
        state, parent = _state_and_parent(member)
        if state != "Z":
            children.setdefault(parent, []).append(member)
    found = [pid]
    for member in found:  # which grows meanwhile
        found += children.get(member, ())
    return {member: command(member) for member in found if is_alive(member)}


def engine_workers(pid: int) -> list[int]:
    """Return the ids of the engine workers below the supervisor *pid*."""
    members = family(pid)
    parents = {member: _state_and_parent(member)[1] for member in members}
    arbiters = {member for member, text in members.items() if parents[member] == pid and "runengine" in text}
    return [member for member in members if parents[member] in arbiters]


def part(pid: int, name: str) -> list[int]:
    """Return the ids of the first process of a part below the supervisor *pid*, and of its children."""
    members = {member for member, text in family(pid).items() if f"run{name}" in text}
    first = [member for member in members if _state_and_parent(member)[1] == pid]
    return [*first, *sorted(members.difference(first))]


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that has ended and was not waited for does not."""
    return _state_and_parent(pid)[0] != "Z"


def is_stopped(pid: int) -> bool:
    """Say whether a process was stopped by a signal."""
    return _state_and_parent(pid)[0] == "T"


def descriptors(pid: int) -> int:
    """Return how many files and sockets *pid* and everything below it hold open."""
    total = 0
    for member in family(pid):
        with suppress(OSError):  # it ended meanwhile
            total += len(list(Path(f"/proc/{member}/fd").iterdir()))
    return total


def memory_bytes(pid: int, field: str) -> int:
    """Return the VmRSS of a process, what it holds, or its VmHWM, the most that it has held; 0 if it has ended."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/status").read_text().partition(f"{field}:")[2].split()[0]) * 1024
    return 0


def shown(pid: int, name: str) -> bytes:
    """Return the content of a file of /proc on a process; nothing if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def send(how: signal.Signals, *pids: int) -> None:
    """Send a signal to processes; some may have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, how)


def kill_family(pid: int) -> None:
    """Kill a process and everything below it. They are stopped first, so that none answers that another has gone."""
    members = family(pid)
    send(signal.SIGSTOP, *members)
    send(signal.SIGKILL, *members)


def contents(directory: Path) -> Iterator[tuple[Path, os.stat_result, bytes]]:
    """Yield the files and directories below a directory that is in use, and what a file holds."""
    for path in (directory, *directory.rglob("*")):
        with suppress(FileNotFoundError):  # it was replaced meanwhile
            yield path, path.stat(), path.read_bytes() if path.is_file() else b""


def busy_engine_workers(pid: int) -> list[int]:
    """Return the engine workers that run a statement now. One that starts uses the CPU as well, and is not meant."""
    return [worker for worker in engine_workers(pid) if state_of(worker).phase == "busy"]


def in_memory(pid: int, *texts: str) -> set[str]:
    """Return which of *texts* the memory of a process holds."""
    found: set[str] = set()
    with suppress(FileNotFoundError, ProcessLookupError), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in shown(pid, "maps").decode().splitlines():
            span, rights = line.split()[:2]
            if "w" not in rights:
                continue
            begin, end = (int(number, 16) for number in span.split("-"))
            memory.seek(begin)
            try:
                held = memory.read(end - begin)
            except OSError:
                continue
            found |= {text for text in texts if text.encode() in held}
    return found
