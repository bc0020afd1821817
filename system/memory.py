"""The memory that is available to the runtime."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def memory_bytes() -> int:
    """Return the machine's memory, or the smallest memory limit of this process's control groups (container, unit)."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _control_group_files("memory", "memory.max", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # The file is missing or contains `max`.
            limits.append(int(file.read_text()))
    return min(limits)


def out_of_memory_kills() -> int:
    """Return the number of processes that the system has killed for lack of memory; 0 if it is not reported."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


_ROOT = Path("/sys/fs/cgroup")


def _control_group_files(controller: str, name: str, name_in_v1: str) -> Iterator[Path]:
    """
    Yield the files that may limit this process, from its own group upwards. Some may be missing.

    The files are called *name*, or *name_in_v1* in a version 1 hierarchy, which exists per *controller*.
    """
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = _ROOT / controller if controllers else _ROOT
            group = root / path.lstrip("/")
            for directory in (group, *group.parents):
                if directory.is_relative_to(root):
                    yield directory / (name_in_v1 if controllers else name)
