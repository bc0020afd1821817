"""The memory that is available to the runtime."""

import os
from contextlib import suppress
from pathlib import Path

from system import control_groups


def memory_bytes() -> int:
    """Return the machine's memory, or the smallest limit of the control groups (container, unit) of this process."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in control_groups.files("memory", "memory.max", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # The file is missing or contains `max`.
            limits.append(int(file.read_text()))
    return min(limits)


def out_of_memory_kills() -> int:
    """Return how many processes of this machine the system has killed for lack of memory; 0 if it does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
