"""What a runtime's processes are and hold, as /proc shows it."""

from collections.abc import Iterator
from pathlib import Path

from tests.queryengine.heartbeats import state_of

MIB = 1024 * 1024


def family(pid: int) -> dict[int, str]:
    """Return process *pid* and everything below it that runs now: ids and command lines."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = list(_below(pid, children))
    return {member: text for member in found if (text := _command(member)) is not None}


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, ()):
        yield from _below(child, children)


def _command(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None


def engine_workers(pid: int) -> list[int]:
    """Return the ids of the engine workers below the supervisor *pid*."""
    members = family(pid)
    arbiters = [member for member, command in members.items() if _parent(member) == pid and "runengine" in command]
    return [member for member in members if _parent(member) in arbiters]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_stopped(pid: int) -> bool:
    """Say whether a process was stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def descriptors(pid: int) -> int:
    """Return how many files and sockets *pid* and everything below it hold open."""
    total = 0
    for member in family(pid):
        try:
            total += len(list(Path(f"/proc/{member}/fd").iterdir()))
        except OSError:
            continue
    return total


def busy_engine_workers(pid: int) -> list[int]:
    """Return the engine workers that run a statement now. One that starts uses the CPU as well, and is not meant."""
    return [worker for worker in engine_workers(pid) if state_of(worker).phase == "busy"]


def in_memory(pid: int, *texts: str) -> set[str]:
    """Return which of *texts* the memory of a process holds."""
    found: set[str] = set()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
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
