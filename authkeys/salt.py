"""
The salt of the key digests: 32 random bytes in the state directory, created once.

Every process of a runtime reads the same file, so a key has the same fingerprint in all of them. Losing the salt only
changes the fingerprints. The salt is secret because anyone who has it and a fingerprint can test guesses of the key.
"""

import logging
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from authkeys.errors import SaltError

SALT_NAME = "key-salt"
SALT_BYTES = 32
_MODE = 0o600
_OTHERS = 0o077

logger = logging.getLogger(__name__)


def load(state_dir: Path) -> bytes | None:
    """
    Return the salt in *state_dir*; None if it does not exist. Nothing is created.

    Raises:
        SaltError: The file cannot be read, is not a regular file, or does not contain exactly 32 bytes.
    """
    try:
        # O_NONBLOCK prevents blocking on a named pipe, which is refused below.
        descriptor = os.open(state_dir / SALT_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SaltError(f"The file {SALT_NAME} in the state directory cannot be opened: {error.strerror}.") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise SaltError(f"{SALT_NAME} in the state directory is not a regular file: remove it.")
        salt = os.read(descriptor, SALT_BYTES + 1)
        if len(salt) != SALT_BYTES:
            raise SaltError(
                f"The file {SALT_NAME} in the state directory is damaged: remove it, and a new one is created "
                "(the fingerprints of the keys in the logs change)."
            )
        if found.st_mode & _OTHERS:
            os.fchmod(descriptor, _MODE)
            logger.warning("other users could read or change the file %s: its mode is now 0600", SALT_NAME)
    except OSError as error:
        raise SaltError(f"The file {SALT_NAME} in the state directory cannot be used: {error.strerror}.") from error
    finally:
        os.close(descriptor)
    return salt


def load_or_create(state_dir: Path) -> bytes:
    """
    Return the salt in *state_dir*, an existing directory. Create the salt if it does not exist.

    Processes that start at the same time agree on one salt, because only the first can link its file into place.

    Raises:
        SaltError: The salt can be neither read nor created.
    """
    while (salt := load(state_dir)) is None:
        _create(state_dir)
    return salt


def _create(state_dir: Path) -> None:
    temporary = state_dir / f"{SALT_NAME}.{secrets.token_hex(8)}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(SALT_BYTES))
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link never replaces the salt that another process has just created.
            with suppress(FileExistsError):
                os.link(temporary, state_dir / SALT_NAME)
        finally:
            temporary.unlink()
    except OSError as error:
        raise SaltError(f"The file {SALT_NAME} cannot be created in the state directory: {error.strerror}.") from error
