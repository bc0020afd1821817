"""Write files that only their owner can read: keys, profiles, the history."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from runtimeclient.errors import OutputError


def replace_file(file: Path, content: bytes) -> None:
    """
    Put a file of mode 0600 in the place of *file*, all of it or nothing. Its directory is made.

    A link is not followed: it could lead anywhere, and the key would be written there.

    Raises:
        OutputError: It cannot be written; or a link, or what belongs to somebody else, has its name or its directory.
    """
    try:
        check_replaceable(file)
        part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as stream:  # noqa: PTH123 (an open descriptor)
                stream.write(content)
                stream.flush()
                os.fsync(descriptor)
            part.replace(file)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    except OSError as exc:
        raise OutputError(f"{file} cannot be written: {exc.strerror}.") from exc


def check_replaceable(file: Path) -> None:
    """Make the directory of *file*, and raise what `replace_file` raises when it must not be replaced."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.parent.stat().st_uid != os.geteuid():
            raise OutputError(f"{file} is not written: its directory belongs to somebody else.")
        found = file.lstat()
    except FileNotFoundError:
        return
    except OSError as exc:
        raise OutputError(f"{file} cannot be written: {exc.strerror}.") from exc
    if stat.S_ISLNK(found.st_mode):
        raise OutputError(f"{file} is not written: it is a link, which is not followed.")
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise OutputError(f"{file} is not written: it is not a file of yours.")
