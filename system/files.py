"""Read small files from an untrusted source without blocking and with a memory limit."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

#: The minimum size of a read in bytes.
_BLOCK_BYTES = 64 * 1024

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class UnreadableFileError(Exception):
    """A file cannot be read. `str()` is the reason, which fits after "cannot be read: "."""


class MissingFileError(UnreadableFileError):
    """There is no file with this name."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """All bytes of a file, and whether users other than the owner may read it, from one open descriptor."""

    data: bytes = field(repr=False)
    others_may_read: bool


def read_regular_file(path: Path, max_bytes: int) -> FileContent:
    """
    Read a regular file of at most *max_bytes*, following symbolic links.

    A file that could block or never end (a pipe, a device, a socket) is refused and never read.

    Raises:
        MissingFileError: There is no such file.
        UnreadableFileError: The file is not regular, is too large, or the system refuses access.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe waits for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return _read(descriptor, max_bytes)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise MissingFileError("there is no such file") from None
    except OSError as exc:
        raise UnreadableFileError((exc.strerror or "the system refuses it").lower()) from None
    except ValueError:
        raise UnreadableFileError("its name contains a NUL") from None


def _read(descriptor: int, max_bytes: int) -> FileContent:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS[stat.S_IFMT(status.st_mode)]  # never a socket, which cannot be opened, or a link
        raise UnreadableFileError(f"it is {kind}, not a regular file")
    data = bytearray()
    # A read allocates the requested size, so request the file size. The size may be wrong because a file can grow, and
    # files in /proc have size 0.
    while len(data) <= max_bytes:
        expected = max(status.st_size - len(data), _BLOCK_BYTES)
        chunk = os.read(descriptor, min(expected, max_bytes + 1 - len(data)))
        if not chunk:
            return FileContent(bytes(data), bool(status.st_mode & (stat.S_IRGRP | stat.S_IROTH)))
        data += chunk
    raise UnreadableFileError(f"it is larger than {max_bytes // 1024} KiB")
