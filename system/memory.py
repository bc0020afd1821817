"""The memory that is available to the runtime."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """Return the machine's memory, or the smallest limit of the control groups (container, unit) of this process."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _limit_files():
        with suppress(OSError, ValueError):  # The file is missing or contains `max`.
            limits.append(int(file.read_text()))
    return min(limits)


def _limit_files() -> Iterator[Path]:
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (_GROUPS / "memory", "memory.limit_in_bytes") if controllers else (_GROUPS, "memory.max")
            group = root / path.lstrip("/")
            yield from (directory / name for directory in (group, *group.parents) if directory.is_relative_to(root))


def out_of_memory_kills() -> int:
    """Return how many processes of this machine the system has killed for lack of memory; 0 if it does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
