"""What this process, and those below it, have open."""

import os
from contextlib import suppress
from pathlib import Path

from tests.system.processes import family


def open_files(part: str | Path, *, with_children: bool = False) -> list[str]:
    """Return the targets that contain *part* of the open descriptors of this process, and of all processes below it."""
    found = []
    for process in family(os.getpid()) if with_children else {os.getpid()}:
        with suppress(OSError):  # it ended meanwhile
            for descriptor in list(Path(f"/proc/{process}/fd").iterdir()):
                with suppress(OSError):  # it was closed meanwhile
                    found.append(str(descriptor.readlink()))
    return [target for target in found if str(part) in target]
