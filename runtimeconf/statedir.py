"""The state directory: snapshots, sockets and the salt of the key digests lie in it, for this user alone."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from runtimeconf.errors import StateDirError

_MODE = 0o700


def prepare_state_dir(path: Path) -> None:
    """
    Make *path*, its missing parents included, with mode 0700; take the rights of others away from one that exists.

    Raises:
        StateDirError: It cannot be made or written, is no directory, belongs to somebody else, or is shared by design
            (a sticky directory such as /tmp).
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
        StateDirError: As `prepare_state_dir`.
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
        raise StateDirError(f"The state directory {path} is not a directory.")
    if status.st_uid != os.geteuid():
        raise StateDirError(f"The state directory {path} belongs to another user.")
    if status.st_mode & stat.S_ISVTX:
        raise StateDirError(f"The state directory {path} is shared with other users: name one of its own.")


def _unusable(path: Path, error: OSError) -> StateDirError:
    reason = (error.strerror or "the system refuses it").lower()
    return StateDirError(f"The state directory {path} cannot be used: {reason}.")
