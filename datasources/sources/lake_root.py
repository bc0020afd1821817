"""Open the root of a table: a directory of the disk, from which no symbolic link leads out, or a prefix of a bucket."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from datasources.deadline import Deadline
from datasources.errors import SourceError
from datasources.sources.lake import TableRoot
from runtimeconf.model import DatasetConfig


class LocalRoot(TableRoot):
    """
    A directory of the disk.

    Raises:
        SourceError: The directory does not exist.
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
                # Check before opening: opening a device can have side effects.
                if not stat.S_ISREG(target.stat().st_mode):
                    raise SourceError(f"'{path}' of '{self.shown}' is not a regular file.")
                descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
                by_descriptor = Path(f"/proc/self/fd/{descriptor}")
                # Check the file that was opened: a directory on its path may have been replaced meanwhile.
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
    Open the location that `from:` names.

    Raises:
        SourceError: It does not exist.
    """
    if dataset.location.startswith("s3://"):
        # Imported late: only tables in a bucket need botocore, which is optional.
        from datasources.sources.lake_s3 import S3Root  # noqa: PLC0415

        with S3Root(dataset.location, dataset.params, deadline) as root:
            yield root
    else:
        yield LocalRoot(dataset.location, re.sub(r"^[a-z_]+:(//)?", "", dataset.from_))


def local_path(location: str) -> str | None:
    """Return the path of a *location* on this machine; None if it is elsewhere."""
    if location.startswith("/"):
        return location
    match = re.match(r"file:(?://)?(/.*)", location, re.DOTALL)
    return match[1] if match else None
