"""
`file:` sources.

The files are pinned first: each is opened here, known to be a regular file, and handed to the engine by its
descriptor. So a FIFO cannot hang a load, a file that is renamed over or deleted meanwhile is read to its end, and the
loading engine may be closed to every other path.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from datasources.deadline import Deadline
from datasources.errors import SourceError
from datasources.sources.format_detection import extension, gathered, kind_of
from datasources.sources.formats import FORMATS, FileFormat, Identity, PinnedFile
from datasources.sources.source import Load
from runtimeconf.model import DatasetConfig

#: A file written to this short a time ago (seconds) may be written to again under the same modification time, since
#: the kernel stamps files by its tick. Waiting makes every later change visible.
_SETTLED_S = 0.05

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True, slots=True)
class _Found:
    """A file of a dataset: its absolute path, and the path as the YAML's author would write it."""

    path: str
    shown: str


class FileSource:
    """A file, the files in a directory and its subdirectories, or those that match a glob; all of one format."""

    def __init__(self, dataset: DatasetConfig) -> None:
        self._path = dataset.location
        self._shown = re.sub(r"^file:(//)?", "", dataset.from_)
        self._format = dataset.params.get("file_format")

    @contextmanager
    def open(self, load: Load) -> Iterator[FileScan]:
        """Pin the files, as `Source.open` promises."""
        deadline = load.deadline
        found = self._find(deadline)
        kind = kind_of([file.shown for file in found], self._shown, self._format)
        with ExitStack() as stack:
            files = [_pin(file, stack, deadline) for file in found]
            reader = kind.format(files, gzipped=kind.gzipped, deadline=deadline)
            version = version_of(file.identity for file in files)
            yield FileScan(reader, self._shown, version, lambda: self._confirm(files, found, deadline))

    def has_changed(self, version: str, load: Load) -> bool:
        """Compare what the system says about the files with what it said."""
        now = time.time()
        infos = [_look(file) for file in self._find(load.deadline)]
        # A file that was written to just now may be again without a trace; the load waits until it settles.
        is_fresh = any(0 <= now - info.st_mtime < _SETTLED_S for info in infos)
        return is_fresh or version_of(map(Identity.of, infos)) != version

    def _find(self, deadline: Deadline) -> list[_Found]:
        try:
            mode = Path(self._path).stat().st_mode
        except FileNotFoundError:
            if glob.has_magic(self._path) and not os.path.lexists(self._path):
                return self._all_of(self._matches(deadline), "matches no file")
            raise SourceError(f"'{self._shown}' does not exist.") from None
        except (OSError, ValueError) as exc:
            raise SourceError(_unreadable(self._shown, exc)) from exc
        if not stat.S_ISDIR(mode):
            return [_Found(self._path, self._shown)]
        if not self._shown.endswith("/") and extension(self._shown)[0] in FORMATS:
            raise SourceError(
                f"'{self._shown}' is a directory; to read the files in it, write it with a slash at the end."
            )
        return self._all_of(self._walk(deadline), "has no file in it")

    def _all_of(self, files: Iterator[_Found], none: str) -> list[_Found]:
        return sorted(gathered(files, self._shown, none), key=lambda file: file.path)

    def _matches(self, deadline: Deadline) -> Iterator[_Found]:
        # What comes before the first part with a wildcard may be written in another way in the two; the rest is equal.
        parts = Path(self._shown).parts
        plain = next(index for index, part in enumerate(parts) if glob.has_magic(part))
        shown_root = Path(*parts[:plain])
        root_length = len(Path(self._path).parts) - (len(parts) - plain)
        for path in map(Path, glob.iglob(self._path, recursive=True)):  # noqa: PTH207 - Path.glob takes hidden files
            deadline.check()
            if not path.is_dir():
                yield _Found(str(path), str(shown_root.joinpath(*path.parts[root_length:])))

    def _walk(self, deadline: Deadline) -> Iterator[_Found]:
        def fail(error: OSError) -> None:
            raise SourceError(_unreadable(self._shown, error)) from error

        for directory, subdirectories, names in os.walk(self._path, onerror=fail):
            deadline.check()
            # Marks and work in progress of other programs (_SUCCESS, .crc, _temporary) are not data.
            subdirectories[:] = [name for name in subdirectories if name[0] not in "._"]
            for name in names:
                if name[0] not in "._":
                    path = Path(directory, name)
                    yield _Found(str(path), str(Path(self._shown) / path.relative_to(self._path)))

    def _confirm(self, files: Sequence[PinnedFile], found: list[_Found], deadline: Deadline) -> None:
        """Compare each file, and the list of files when there may be several, with what they were."""
        for file in files:
            if file.identity != Identity.of(os.fstat(file.descriptor)):
                raise SourceError(f"'{file.shown}' changed while it was read; the next refresh reads it again.")
        if found[0].shown == self._shown:
            # One pinned file is one version, whatever its name stands for by now.
            return
        if [_inode(file) for file in self._find(deadline)] != [file.identity[:2] for file in files]:
            raise SourceError(
                f"The files of '{self._shown}' changed while they were read; the next refresh reads them again."
            )


class FileScan:
    """
    Pinned files that *reader* reads; `Scan` says what the methods promise.

    *shown* stands for all of them in errors; *version* and *confirm* are as `Scan` has them.
    """

    is_read_once = False
    held_bytes = 0

    def __init__(
        self, reader: FileFormat, shown: str, version: str | None, confirm: Callable[[], None] = lambda: None
    ) -> None:
        self._reader = reader
        self._shown = shown
        self.version = version
        self.confirm = confirm

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the pinned files."""
        return tuple(file.path for file in self._reader.files)

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Leave it to the format."""
        return self._reader.bind(connection)

    def accept(self, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
        """Leave it to the format."""
        self._reader.accept(connection, names)

    def explain(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> SourceError:
        """Leave it to the format."""
        return self._reader.explain(connection, error, self._shown)


def version_of(identities: Iterable[Identity]) -> str:
    """Return a text that is another as soon as one of the files, or their number, is another."""
    return hashlib.sha256(repr([tuple(identity) for identity in identities]).encode()).hexdigest()


def _look(file: _Found) -> os.stat_result:
    try:
        return Path(file.path).stat()
    except OSError as exc:
        raise SourceError(_unreadable(file.shown, exc)) from exc


def _pin(file: _Found, stack: ExitStack, deadline: Deadline) -> PinnedFile:
    deadline.check()
    try:
        # Before it is opened: opening alone can act on a device.
        _refuse_irregular(file, Path(file.path).stat().st_mode)
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        info = os.fstat(descriptor)
        _refuse_irregular(file, info.st_mode)
        if 0 <= time.time() - info.st_mtime < _SETTLED_S:
            deadline.sleep(_SETTLED_S)
            info = os.fstat(descriptor)
    except OSError as exc:
        raise SourceError(_unreadable(file.shown, exc)) from exc
    if info.st_size == 0:
        raise SourceError(f"'{file.shown}' is empty (0 bytes).")
    return PinnedFile(descriptor, file.shown, Identity.of(info))


def _refuse_irregular(file: _Found, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((kind for test, kind in _KINDS if test(mode)), "something else")
        raise SourceError(f"'{file.shown}' is {kind}, not a regular file.")


def _inode(file: _Found) -> tuple[int, int] | None:
    try:
        info = Path(file.path).stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _unreadable(shown: str, error: OSError | ValueError) -> str:
    reason = error.strerror if isinstance(error, OSError) else None
    return f"'{shown}' cannot be read: {reason or 'it is not a path'}."
