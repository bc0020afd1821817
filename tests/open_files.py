"""What this process, and those below it, have open."""

import os
from contextlib import suppress
from pathlib import Path


def open_files(part: str | Path, *, with_children: bool = False) -> list[str]:
    """Return the targets that contain *part* of the open descriptors of this process, and of all processes below it."""
    found = []
    for process in _family() if with_children else {os.getpid()}:
        with suppress(OSError):  # it ended meanwhile
            for descriptor in list(Path(f"/proc/{process}/fd").iterdir()):
                with suppress(OSError):  # it was closed meanwhile
                    found.append(str(descriptor.readlink()))
    return [target for target in found if str(part) in target]


def _family() -> set[int]:
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    family = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in family} - family:
        family |= more
    return family
