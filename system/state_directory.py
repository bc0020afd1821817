"""
The state directory: snapshots, sockets and the salt of the key digests lie in it, for this user alone.

Nothing is deleted or replaced in it by what a name promises alone: links are not followed, and what has another kind,
another owner or a name that this runtime does not give stays.
"""

from __future__ import annotations

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

#: What is in the directory, by name: what tells that it is of the right kind, and the word for that.
_KINDS: dict[str, tuple[Callable[[int], bool], str]] = {
    **dict.fromkeys(("snapshots", "refresh_tmp", "tmp"), (stat.S_ISDIR, "directory")),
    **dict.fromkeys(("control.sock", "broker.sock", "engine.sock"), (stat.S_ISSOCK, "socket")),
    **dict.fromkeys(
        ("manifest.json", "refreshes.json", "lock", "serve.lock", "engine.lock", "flight.lock"),
        (stat.S_ISREG, "regular file"),
    ),
}


def prepare_state_dir(path: Path) -> None:
    """
    Make *path*, its missing parents included, with mode 0700; take the rights of others away from one that exists.

    Raises:
        StateDirectoryError: It cannot be made or written, is no directory, belongs to somebody else, or is shared by
            design (a sticky directory such as /tmp); or something in it is not what its name promises.
    """
    try:
        for missing in reversed([directory for directory in (path, *path.parents) if not directory.exists()]):
            missing.mkdir(mode=_MODE, exist_ok=True)
        status = path.stat()
        _judge(path, status)
        if stat.S_IMODE(status.st_mode) != _MODE:
            path.chmod(_MODE)
        with tempfile.TemporaryFile(dir=path):
            pass  # it can be written: the disk is not full and not mounted read-only
    except OSError as exc:
        raise _unusable(path, exc) from exc


def judge_state_dir(path: Path) -> None:
    """
    Say whether *path* can be the state directory, as far as that shows without making or changing anything.

    Raises:
        StateDirectoryError: As `prepare_state_dir`.
    """
    try:
        _refuse_unmakable(path)
    except OSError as exc:
        raise _unusable(path, exc) from exc


def _refuse_unmakable(path: Path) -> None:
    existing = next(directory for directory in (path, *path.parents) if os.path.lexists(directory))
    if existing == path:
        _judge(path, path.stat())
    elif not existing.is_dir():
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    elif not os.access(existing, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    if os.statvfs(existing).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def _judge(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise StateDirectoryError(f"The state directory {path} is not a directory.")
    if status.st_uid != os.geteuid():
        raise StateDirectoryError(f"The state directory {path} belongs to another user.")
    if status.st_mode & stat.S_ISVTX:
        raise StateDirectoryError(f"The state directory {path} is shared with other users: name one of its own.")
    for name, (is_right, kind) in _KINDS.items():
        with suppress(FileNotFoundError):
            found = (path / name).lstat()
            if not is_right(found.st_mode):
                link = "a symbolic link" if stat.S_ISLNK(found.st_mode) else f"no {kind}"
                raise StateDirectoryError(f"{path / name} is {link}: remove it. The runtime makes a {kind} there.")
            if found.st_uid != os.geteuid():
                raise StateDirectoryError(f"{path / name} belongs to another user.")


def _unusable(path: Path, error: OSError) -> StateDirectoryError:
    reason = (error.strerror or "the system refuses it").lower()
    return StateDirectoryError(f"The state directory {path} cannot be used: {reason}.")


def remove_ours(directory: Path, ours: re.Pattern[str], keep: Collection[str] = ()) -> None:
    """
    Delete what has a name of *ours* in *directory*, but for *keep*.

    A directory goes with all that is in it. A link is deleted, not followed; nothing is when *directory* is one itself.
    What belongs to another user, or cannot be deleted, stays.
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
    if found.st_uid != os.geteuid():
        return
    if stat.S_ISDIR(found.st_mode):
        shutil.rmtree(name, dir_fd=directory)
    else:
        os.unlink(name, dir_fd=directory)


def file_id(path: Path) -> tuple[int, int] | None:
    """Return what tells the file at *path* from all others that are there now; None when there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
