"""
Where a table of files lies: a directory of the disk or a prefix of a bucket, and nothing outside of it.

The files of a table name other files of it. Whoever can write to the table can write any name there, so each name is
judged here, and what leads out of the table is refused: absolute paths, URLs, `..`, and symbolic links out of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from datasources.deadline import Deadline
from datasources.errors import SnapshotError, SourceError
from runtimeconf.model import DatasetConfig

#: How much of a file tells it from another one of the same size and time (bytes).
_STAMP_BYTES = 64 * 1024


class TableRoot(ABC):
    """The place of one table. *shown* is the place as the YAML's author wrote it."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    @abstractmethod
    def names(self, directory: str) -> dict[str, int]:
        """
        Return the names and the sizes in bytes of the files in *directory*; none where there is no such directory.

        Raises:
            SourceError: It cannot be read.
        """

    @abstractmethod
    def open(self, path: str) -> pa.NativeFile:
        """
        Open a file for reading at any place in it; the caller closes it. *path* is one that `inside` returned.

        Raises:
            SourceError: It is not there, is no regular file, lies outside, or cannot be read.
        """

    @abstractmethod
    def below(self, directory: str) -> TableRoot:
        """Return the place *directory* in this one."""

    @abstractmethod
    def relative(self, location: str) -> str | None:
        """Return the path in this place of an absolute *location*; None when it is elsewhere."""

    @abstractmethod
    def has(self, path: str) -> bool:
        """Say whether there is a file *path*. Raises as `names`."""

    def read(self, path: str, limit: int) -> bytes:
        """
        Return the content of a file.

        Raises:
            SourceError: As `open`; or it has more than *limit* bytes.
        """
        with self.reading(path), self.open(path) as file:
            if file.size() > limit:
                raise SourceError(f"'{path}' of '{self.shown}' is larger than {limit // 1024 // 1024} MiB.")
            content: bytes = file.read()
        return content

    def stamp(self, path: str) -> str | None:
        """
        Return what tells a file from another one that was put in its place; None when there is no file.

        Raises:
            SourceError: It cannot be read.
        """
        if not self.has(path):
            return None
        with self.reading(path), self.open(path) as file:
            head = file.read(_STAMP_BYTES)
            return hashlib.sha256(b"%d %b" % (file.size(), head)).hexdigest()[:32]

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Turn what goes wrong while the file *path* is read into a sentence that names it."""
        try:
            yield
        except (SourceError, SnapshotError, MemoryError):
            raise
        except OSError as exc:
            raise SourceError(f"'{path}' of '{self.shown}' cannot be read: {reason(exc)}.") from exc


def inside(path: str) -> str | None:
    """Return the relative *path* of a file without superfluous parts; None when it could lead elsewhere."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path) or path.startswith("/") or not path.isprintable() or "\\" in path:
        return None
    parts = [part for part in path.split("/") if part not in {"", "."}]
    return "/".join(parts) if parts and ".." not in parts else None


def reason(error: OSError) -> str:
    """Say what is wrong in words without paths."""
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    return os.strerror(error.errno) if error.errno is not None else "its content is damaged"


class LocalRoot(TableRoot):
    """
    A directory.

    Raises:
        SourceError: It is not there, or is no directory.
    """

    def __init__(self, path: str, shown: str) -> None:
        super().__init__(shown)
        self._root = os.path.realpath(path)
        if not Path(self._root).is_dir():
            what = "is not a directory" if Path(self._root).exists() else "does not exist"
            raise SourceError(f"'{shown}' {what}.")

    def names(self, directory: str) -> dict[str, int]:
        """As `TableRoot.names`."""
        found = {}
        try:
            with os.scandir(Path(self._root, directory)) as entries:
                for entry in entries:
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as exc:
            raise SourceError(f"'{self.shown}' cannot be read: {exc.strerror}.") from exc
        return found

    def has(self, path: str) -> bool:
        """As `TableRoot.has`."""
        return Path(self._root, path).is_file()

    def open(self, path: str) -> pa.NativeFile:
        """As `TableRoot.open`."""
        target = Path(self._root, path)
        descriptor = None
        with self.reading(path):
            try:
                # Before it is opened: opening alone can act on a device.
                if not stat.S_ISREG(target.stat().st_mode):
                    raise SourceError(f"'{path}' of '{self.shown}' is not a regular file.")
                descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
                by_descriptor = Path(f"/proc/self/fd/{descriptor}")
                # What was opened, whatever the names on the way stand for by now.
                if not by_descriptor.readlink().is_relative_to(self._root):
                    raise SourceError(f"'{path}' of '{self.shown}' is a link that leads out of the table.")
                return pa.OSFile(str(by_descriptor))
            finally:
                if descriptor is not None:
                    os.close(descriptor)

    def below(self, directory: str) -> TableRoot:
        """As `TableRoot.below`."""
        return LocalRoot(str(Path(self._root, directory)), f"{self.shown.rstrip('/')}/{directory}")

    def relative(self, location: str) -> str | None:
        """As `TableRoot.relative`."""
        path = local_path(location)
        if path is None:
            return None
        real = Path(os.path.realpath(path))
        return str(real.relative_to(self._root)) if real.is_relative_to(self._root) else None


@contextmanager
def root_of(dataset: DatasetConfig, deadline: Deadline) -> Iterator[TableRoot]:
    """
    Open the place that `from:` names.

    Raises:
        SourceError: It is not there.
    """
    if dataset.location.startswith("s3://"):
        # It needs a library that a table on the disk does without.
        from datasources.sources.lake_s3 import S3Root  # noqa: PLC0415

        with S3Root(dataset.location, dataset.params, deadline) as root:
            yield root
    else:
        yield LocalRoot(dataset.location, re.sub(r"^[a-z_]+:(//)?", "", dataset.from_))


def local_path(location: str) -> str | None:
    """Return the path that a location on this machine stands for, None when it is elsewhere."""
    if location.startswith("/"):
        return location
    match = re.match(r"file:(?://)?(/.*)", location, re.DOTALL)
    return match[1] if match else None
