"""
The root of a table of files (a directory on disk or a prefix in a bucket), and the paths below it.

The files of a table name other files of the same table. Anybody who can write to the table can write any name, so every
name is checked. Absolute paths, URLs and `..` are refused.
"""

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from datasources.errors import SnapshotError, SourceError

#: The bytes at the start of a file that identify its version, together with its size.
_STAMP_BYTES = 64 * 1024


class TableRoot(ABC):
    """The location of one table. *shown* is the location as written in the configuration file."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    @abstractmethod
    def names(self, directory: str) -> set[str]:
        """
        Return the names of the files in *directory*; none if the directory does not exist.

        Raises:
            SourceError: The directory cannot be read.
        """

    @abstractmethod
    def open(self, path: str) -> pa.NativeFile:
        """
        Open a file for random access. The caller closes it. *path* comes from `inside`.

        Raises:
            SourceError: The file is missing, is not a regular file, is outside the table, or cannot be read.
        """

    @abstractmethod
    def below(self, directory: str) -> "TableRoot":
        """Return *directory* as a separate root."""

    @abstractmethod
    def relative(self, location: str) -> str | None:
        """Return the path of an absolute *location* below this root; None if it is elsewhere."""

    @abstractmethod
    def has(self, path: str) -> bool:
        """Return whether the file *path* exists. Raises the same errors as `names`."""

    def read(self, path: str, limit: int) -> bytes:
        """
        Return the content of a file.

        Raises:
            SourceError: See `open`. Also raised if the file has more than *limit* bytes.
        """
        with self.reading(path), self.open(path) as file:
            if file.size() > limit:
                raise SourceError(f"'{path}' of '{self.shown}' is larger than {limit // 1024 // 1024} MiB.")
            content: bytes = file.read()
        return content

    def stamp(self, path: str) -> str | None:
        """
        Return a string that identifies the version of a file; None if the file does not exist.

        Raises:
            SourceError: The file cannot be read.
        """
        if not self.has(path):
            return None
        with self.reading(path), self.open(path) as file:
            head = file.read(_STAMP_BYTES)
            return hashlib.sha256(b"%d %b" % (file.size(), head)).hexdigest()[:32]

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Turn errors from reading the file *path* into a sentence that names it."""
        try:
            yield
        except (SourceError, SnapshotError, MemoryError):
            raise
        except OSError as exc:
            reason = os.strerror(exc.errno) if exc.errno is not None else "its content is damaged"
            reason = "it does not exist" if isinstance(exc, FileNotFoundError) else reason
            raise SourceError(f"'{path}' of '{self.shown}' cannot be read: {reason}.") from exc

    def unsupported(self, what: str) -> SourceError:
        """Return the error for a table that needs the feature *what*."""
        return SourceError(f"'{self.shown}' needs a feature that this reader does not support: {what[:200]}.")


def inside(path: str) -> str | None:
    """Return the relative *path* in normal form; None if it could lead outside the table."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path) or path.startswith("/") or not path.isprintable() or "\\" in path:
        return None
    parts = [part for part in path.split("/") if part not in {"", "."}]
    return "/".join(parts) if parts and ".." not in parts else None
