"""The state directory: snapshots, sockets and the salt of the key digests lie in it, for this user alone."""

from __future__ import annotations

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
        if not stat.S_ISDIR(status.st_mode):
            raise StateDirError(f"The state directory {path} is not a directory.")
        if status.st_uid != os.geteuid():
            raise StateDirError(f"The state directory {path} belongs to another user.")
        if status.st_mode & stat.S_ISVTX:
            raise StateDirError(f"The state directory {path} is shared with other users: name one of its own.")
        if stat.S_IMODE(status.st_mode) != _MODE:
            path.chmod(_MODE)
        with tempfile.TemporaryFile(dir=path):
            pass  # it can be written: the disk is not full and not mounted read-only
    except OSError as exc:
        reason = (exc.strerror or "the system refuses it").lower()
        raise StateDirError(f"The state directory {path} cannot be used: {reason}.") from exc
