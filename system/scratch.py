"""
Directories for what the engine spills to disk: private to one engine, gone when it closes.

What a killed process left behind is removed by the next one that starts. A directory in use is one whose lock is
held, so that neither a reused process id nor a container's namespaces mislead.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

#: Below the state directory.
SCRATCH_DIRECTORY = "tmp"

#: Names that engines give their directories there.
_OURS = re.compile("[0-9a-f]{32}")


def scratch_parent(state_dir: Path) -> Path:
    """Make the directory of all scratch directories, if it is not there, and return it; raises OSError."""
    parent = state_dir / SCRATCH_DIRECTORY
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return parent


class ScratchDirectory:
    """One engine's own directory under `state_dir/tmp`, 0700, locked as long as this object is open."""

    def __init__(self, state_dir: Path) -> None:
        """
        Make it, and remove those that nobody holds any more.

        Raises:
            OSError: The state directory cannot be written, or `tmp` in it is no directory.
        """
        parent = scratch_parent(state_dir)
        # Another process that starts now must not find the directory between its making and its locking.
        guard = _lock(parent, wait=True)
        try:
            for name in [entry.name for entry in os.scandir(guard)]:
                if _OURS.fullmatch(name):
                    _remove_unheld(name, guard)
            name = uuid.uuid4().hex
            os.mkdir(name, 0o700, dir_fd=guard)
            self.path = parent / name
            self._lock: int | None = _lock(name, guard)
        finally:
            os.close(guard)

    @property
    def is_there(self) -> bool:
        """Whether it was not removed by somebody else."""
        return self.path.is_dir()

    def subdirectory(self, name: str) -> Path:
        """Make and return a directory inside this one."""
        path = self.path / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def close(self) -> None:
        """Remove it with all that is in it. More than one call is harmless."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _lock(directory: Path | str, parent: int | None = None, *, wait: bool = False) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(directory, flags, dir_fd=parent)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_unheld(name: str, parent: int) -> None:
    with suppress(OSError):  # held, or no directory: it stays
        descriptor = _lock(name, parent)
        if os.fstat(descriptor).st_uid == os.geteuid():
            shutil.rmtree(name, dir_fd=parent, ignore_errors=True)
        os.close(descriptor)
