"""
Temporary directories for data that the engine spills to disk: each private to one engine, removed when it closes.

The next engine that starts removes what a killed process has left. A directory is in use while its lock is held;
process ids would be unreliable, because they are reused and differ between containers.
"""

import fcntl
import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

#: Below the state directory.
SCRATCH_DIRECTORY = "tmp"

#: The names of the engines' directories.
_OURS = re.compile("[0-9a-f]{32}")


def scratch_parent(state_dir: Path) -> Path:
    """Return the parent of all scratch directories, and create it if necessary; raises OSError."""
    parent = state_dir / SCRATCH_DIRECTORY
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return parent


class ScratchDirectory:
    """The directory of one engine under `state_dir/tmp`, with mode 0700, locked while this object is open."""

    def __init__(self, state_dir: Path) -> None:
        """
        Create the directory, and remove those that no process holds any more.

        Raises:
            OSError: The state directory cannot be written, or its `tmp` is not a directory.
        """
        parent = scratch_parent(state_dir)
        # Another process that starts now must not find the new directory before it is locked.
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
        """Whether the directory still exists."""
        return self.path.is_dir()

    def subdirectory(self, name: str) -> Path:
        """Create and return a directory inside this one."""
        path = self.path / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def close(self) -> None:
        """Remove the directory and its contents. Idempotent."""
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
    with suppress(OSError):  # It is held, or not a directory: keep it.
        descriptor = _lock(name, parent)
        if os.fstat(descriptor).st_uid == os.geteuid():
            shutil.rmtree(name, dir_fd=parent, ignore_errors=True)
        os.close(descriptor)
