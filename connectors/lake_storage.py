"""Opens the root of a table at the location in `from:`, on disk or in a bucket."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from connectors.lake import TableRoot
from datasources.deadline import Deadline
from datasources.errors import SourceError
from runtimeconf.model import DatasetConfig
from runtimeconf.s3_params import S3Params


class _LocalRoot(TableRoot):
    """
    A directory on disk. Symbolic links must not lead out of it. See `TableRoot` for the methods.

    Raises:
        SourceError: The directory does not exist.
    """

    def __init__(self, path: str, shown: str) -> None:
        super().__init__(shown)
        self._root = os.path.realpath(path)
        if not Path(self._root).is_dir():
            what = "is not a directory" if Path(self._root).exists() else "does not exist"
            raise SourceError(f"'{shown}' {what}.")

    def names(self, directory: str) -> set[str]:
        try:
            with os.scandir(Path(self._root, directory)) as entries:
                return {entry.name for entry in entries if entry.is_file()}
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except OSError as exc:
            raise SourceError(f"'{self.shown}' cannot be read: {exc.strerror}.") from exc

    def has(self, path: str) -> bool:
        return Path(self._root, path).is_file()

    def open(self, path: str) -> pa.NativeFile:
        target = Path(self._root, path)
        with self.reading(path):
            # Check before opening, because opening a device can have side effects.
            if not stat.S_ISREG(target.stat().st_mode):
                raise SourceError(f"'{path}' of '{self.shown}' is not a regular file.")
            descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                by_descriptor = Path(f"/proc/self/fd/{descriptor}")
                # Check the opened file, because a directory in its path may have been replaced in the meantime.
                if not by_descriptor.readlink().is_relative_to(self._root):
                    raise SourceError(f"'{path}' of '{self.shown}' is a link to a file outside the table.")
                return pa.OSFile(str(by_descriptor))
            finally:
                os.close(descriptor)

    def below(self, directory: str) -> TableRoot:
        return _LocalRoot(str(Path(self._root, directory)), f"{self.shown.rstrip('/')}/{directory}")

    def relative(self, location: str) -> str | None:
        match = re.fullmatch(r"(?:file:(?://)?)?(/.*)", location, re.DOTALL)
        real = Path(os.path.realpath(match[1])) if match is not None else None
        return str(real.relative_to(self._root)) if real is not None and real.is_relative_to(self._root) else None


@contextmanager
def root_of(dataset: DatasetConfig, params: S3Params, deadline: Deadline) -> Iterator[TableRoot]:
    """
    Open the location in `from:`.

    Raises:
        SourceError: The location does not exist.
    """
    if dataset.location.startswith("s3://"):
        # Imported late because only tables in a bucket need botocore, which is optional.
        from connectors.lake_s3 import s3_root  # noqa: PLC0415

        with s3_root(dataset.location, params, deadline) as root:
            yield root
    else:
        yield _LocalRoot(dataset.location, re.sub(r"^[a-z_]+:(//)?", "", dataset.from_))
