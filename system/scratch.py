"""
Temporary directories for data that the engine spills to disk. Each is private to one engine and removed on close.

An engine needs a scratch directory only for statements that spill, so it also works without one. While the file system
has no room for another directory, such statements fail and all others run.

The next engine that starts removes the directories of killed processes. A directory is in use while its lock is held.
Process ids would be unreliable because they are reused and differ between containers.
"""

import errno
import fcntl
import logging
import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

#: Below the state directory.
SCRATCH_DIRECTORY = "tmp"

#: The names of the engines' directories.
_OURS = re.compile("[0-9a-f]{32}")

#: Errors that mean that the file system has no inode or block left for a directory.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def scratch_parent(state_dir: Path) -> Path:
    """Return the parent of all scratch directories, creating it if necessary. Raises OSError."""
    parent = state_dir / SCRATCH_DIRECTORY
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return parent


class ScratchDirectory:
    """The directory of one engine under `state_dir/tmp`, with mode 0700, locked while this object is open."""

    def __init__(self, state_dir: Path) -> None:
        """
        Create the directory if there is room for it, and remove directories that no process uses any more.

        Raises:
            OSError: The state directory cannot be written, or its `tmp` is not a directory.
        """
        self._parent = scratch_parent(state_dir)
        self.path = self._parent / uuid.uuid4().hex
        self._lock: int | None = None
        self._is_short = False  # whether the lack of room has been logged
        self._create()

    def keep(self) -> bool:
        """Create the directory if there was no room for it before. Return False if it has been removed."""
        if self._lock is None:
            try:
                self._create()
            except OSError:
                return False
        return self._lock is None or self.path.is_dir()

    def _create(self) -> None:
        # A process that starts now must not find the new directory before it is locked.
        guard = _lock(self._parent, wait=True)
        try:
            for name in [entry.name for entry in os.scandir(guard)]:
                if _OURS.fullmatch(name):
                    _remove_unheld(name, guard)
            os.mkdir(self.path.name, 0o700, dir_fd=guard)
            self._lock = _lock(self.path.name, guard)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            if not self._is_short:
                self._is_short = True
                fields = {"error": error.strerror, "directory": str(self._parent)}
                logger.warning("statements cannot spill to disk", extra={"fields": fields})
            return
        finally:
            os.close(guard)
        if self._is_short:
            self._is_short = False
            logger.info("statements can spill to disk again")

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
    with suppress(OSError):  # The entry is in use or not a directory: keep it.
        descriptor = _lock(name, parent)
        if os.fstat(descriptor).st_uid == os.geteuid():
            shutil.rmtree(name, dir_fd=parent, ignore_errors=True)
        os.close(descriptor)
