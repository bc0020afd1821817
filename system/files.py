"""Reading small files that somebody else may have put there: no hang, no surprise, a bound on memory."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

#: Mode bits that let other users of the machine read a file: its group, and everybody.
OTHERS_MAY_READ = stat.S_IRGRP | stat.S_IROTH

#: The least that one call reads.
_BLOCK_BYTES = 64 * 1024

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class UnreadableFileError(Exception):
    """A file cannot be read; `str()` says why in a few words that fit after "cannot be read: "."""


class MissingFileError(UnreadableFileError):
    """There is no file of that name."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """All bytes of a file and its permission bits, from one open descriptor."""

    data: bytes = field(repr=False)
    mode: int

    @property
    def others_may_read(self) -> bool:
        """Whether users other than the owner may read the file."""
        return bool(self.mode & OTHERS_MAY_READ)


def read_regular_file(path: Path, max_bytes: int) -> FileContent:
    """
    Read a regular file of *max_bytes* at most; symbolic links are followed.

    Anything that could block or never end (a pipe, a device, a socket) is refused after it is opened, never read.

    Raises:
        MissingFileError: There is no such file.
        UnreadableFileError: It is not a regular file, is too large, or the system refuses it.
    """
    try:
        # Without O_NONBLOCK the open itself waits for the other end of a named pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise MissingFileError("there is no such file") from None
    except OSError as exc:
        raise UnreadableFileError((exc.strerror or "the system refuses it").lower()) from None
    except ValueError:
        raise UnreadableFileError("its name holds a NUL") from None
    try:
        return _read(descriptor, max_bytes)
    except OSError as exc:
        raise UnreadableFileError((exc.strerror or "the system refuses it").lower()) from None
    finally:
        os.close(descriptor)


def _read(descriptor: int, max_bytes: int) -> FileContent:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS[stat.S_IFMT(status.st_mode)]  # a socket cannot be opened, a link was followed
        raise UnreadableFileError(f"it is {kind}, not a regular file")
    data = bytearray()
    # A read allocates what it asks for, so it asks for what is there. The size is not trusted beyond that: the file may
    # grow, and files of /proc say 0.
    while len(data) <= max_bytes:
        expected = max(status.st_size - len(data), _BLOCK_BYTES)
        chunk = os.read(descriptor, min(expected, max_bytes + 1 - len(data)))
        if not chunk:
            return FileContent(bytes(data), stat.S_IMODE(status.st_mode))
        data += chunk
    raise UnreadableFileError(f"it is larger than {max_bytes // 1024} KiB")
