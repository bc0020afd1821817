"""
The state directory, which contains snapshots, sockets and the salt of the key digests, for this user only.

Files in it are not deleted or replaced because of their name alone. Links are not followed. Files of another kind,
another owner or an unknown name are kept.
"""

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from system.errors import StateDirectoryError

_MODE = 0o700

#: The directory's entries by name: the test for the correct kind of file, and the word for that kind.
KINDS: dict[str, tuple[Callable[[int], bool], str]] = {
    **dict.fromkeys(("snapshots", "staged", "refresh_tmp", "tmp"), (stat.S_ISDIR, "directory")),
    **dict.fromkeys(("control.sock", "broker.sock", "engine.sock", "watch.sock"), (stat.S_ISSOCK, "socket")),
    **dict.fromkeys(
        (
            *("manifest.json", "refreshes.json", "reload.json", "replaced", "cluster-engine"),
            *("lock", "serve.lock", "engine.lock", "flight.lock"),
        ),
        (stat.S_ISREG, "regular file"),
    ),
}


def prepare_state_dir(path: Path) -> None:
    """
    Create *path* and its missing parents with mode 0700, or remove other users' permissions from an existing *path*.

    Raises:
        StateDirectoryError: The directory cannot be created or written, is not a directory, belongs to another user, is
            shared by design (sticky, such as /tmp), or contains an entry of the wrong kind or owner.
    """
    try:
        for missing in reversed([directory for directory in (path, *path.parents) if not directory.exists()]):
            missing.mkdir(mode=_MODE, exist_ok=True)
        status = path.stat()
        _judge(path, status)
        if stat.S_IMODE(status.st_mode) != _MODE:
            path.chmod(_MODE)
        with tempfile.TemporaryFile(dir=path):
            pass  # proves that the disk is writable, and neither full nor read-only
    except OSError as exc:
        raise _unusable(path, exc) from exc


def judge_state_dir(path: Path) -> None:
    """
    Check whether *path* can be the state directory, without creating or changing anything.

    Raises:
        StateDirectoryError: See `prepare_state_dir`, for errors that can be foreseen.
    """
    try:
        existing = next(directory for directory in (path, *path.parents) if os.path.lexists(directory))
        problem = 0
        if existing == path:
            _judge(path, path.stat())
        elif not existing.is_dir():
            problem = errno.ENOTDIR
        elif not os.access(existing, os.W_OK | os.X_OK):
            problem = errno.EACCES
        if not problem and os.statvfs(existing).f_flag & os.ST_RDONLY:
            problem = errno.EROFS
    except OSError as exc:
        raise _unusable(path, exc) from exc
    if problem:
        raise _unusable(path, OSError(problem, os.strerror(problem)))


def _judge(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise StateDirectoryError(f"The state directory {path} is not a directory.")
    if status.st_uid != os.geteuid():
        raise StateDirectoryError(f"The state directory {path} belongs to another user.")
    if status.st_mode & stat.S_ISVTX:
        raise StateDirectoryError(
            f"The state directory {path} is shared with other users: use a directory that is not shared."
        )
    for name, (is_right, kind) in KINDS.items():
        with suppress(FileNotFoundError):
            found = (path / name).lstat()
            if not is_right(found.st_mode):
                link = "a symbolic link" if stat.S_ISLNK(found.st_mode) else f"no {kind}"
                raise StateDirectoryError(f"{path / name} is {link}: remove it. The runtime creates a {kind} there.")
            if found.st_uid != os.geteuid():
                raise StateDirectoryError(f"{path / name} belongs to another user.")


def _unusable(path: Path, error: OSError) -> StateDirectoryError:
    reason = (error.strerror or "the system refuses it").lower()
    return StateDirectoryError(f"The state directory {path} cannot be used: {reason}.")


def remove_ours(directory: Path, ours: re.Pattern[str], keep: Collection[str] = ()) -> None:
    """
    Delete the entries of *directory* whose names match *ours*, except *keep*.

    Directories are deleted with their contents. Links are deleted, not followed. If *directory* itself is a link,
    nothing is deleted. Entries that belong to another user or cannot be deleted are kept.
    """
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in [entry.name for entry in os.scandir(descriptor)]:
                if ours.fullmatch(name) and name not in keep:
                    with suppress(OSError):
                        _remove(name, descriptor)
        finally:
            os.close(descriptor)


def _remove(name: str, directory: int) -> None:
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if found.st_uid == os.geteuid():
        (shutil.rmtree if stat.S_ISDIR(found.st_mode) else os.unlink)(name, dir_fd=directory)


def file_id(path: Path) -> tuple[int, int] | None:
    """Return the identity (device and inode) of the file at *path*; None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
