"""
Reads `file:` sources.

Each file is pinned first: it must be a regular file, it is opened, and the engine reads it through its descriptor. A
FIFO therefore cannot block a load, a file that is replaced or deleted in the meantime is still read to its end, and
the loading engine needs no access to other paths.
"""

import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from datasources.deadline import Deadline
from datasources.errors import SourceError
from datasources.sources.format_detection import detect_format, limited_list
from datasources.sources.formats import FileFormat
from datasources.sources.pinned_file import SETTLED_S, Identity, PinnedFile, version_of
from datasources.sources.scratch_files import ScratchSpace
from datasources.sources.source import Load
from runtimeconf.file_formats import KINDS, FileParams, split_extension
from runtimeconf.model import DatasetConfig

_FILE_TYPES = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class _Found(Struct, frozen=True):
    """A file of a dataset. `path` is absolute, and `shown` is the path in errors, in the form of the configuration."""

    path: str
    shown: str


class FileSource:
    """A file, the files below a directory, or the files that match a glob. All have one format."""

    def __init__(self, dataset: DatasetConfig, params: FileParams) -> None:
        self._path = dataset.location
        self._shown = re.sub(r"^file:(//)?", "", dataset.from_)
        self._params = params

    @contextmanager
    def open(self, load: Load) -> Iterator[FileFormat]:
        """Pin the files; see `Source.open`."""
        deadline = load.deadline
        found = self._find(deadline)
        detected = detect_format([file.shown for file in found], self._shown, self._params)
        with ExitStack() as stack:
            files = [_pin(file, stack, deadline) for file in found]
            yield detected.format(
                files,
                self._shown,
                ScratchSpace(load, stack),
                self._params,
                compression=detected.compression,
                version=version_of([file.identity for file in files]),
                confirm=lambda: self._confirm(files, found, deadline),
            )

    def has_changed(self, version: str, load: Load) -> bool:
        """Compare the identities of the files."""
        return version_of([Identity.of(_stat(file)) for file in self._find(load.deadline)]) != version

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
        if not self._shown.endswith("/") and split_extension(self._shown)[0] in KINDS:
            raise SourceError(f"'{self._shown}' is a directory; to read the files in it, end the path with a slash.")
        return self._all_of(self._walk(deadline), "contains no files")

    def _all_of(self, files: Iterator[_Found], none: str) -> list[_Found]:
        return sorted(limited_list(files, self._shown, none), key=lambda file: file.path)

    def _matches(self, deadline: Deadline) -> Iterator[_Found]:
        # The two paths may differ before the first part with a wildcard. From there on they are equal.
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
            # Skip markers and temporary files of other programs (_SUCCESS, .crc, _temporary).
            subdirectories[:] = [name for name in subdirectories if name[0] not in "._"]
            for name in names:
                if name[0] not in "._":
                    path = Path(directory, name)
                    yield _Found(str(path), str(Path(self._shown) / path.relative_to(self._path)))

    def _confirm(self, files: Sequence[PinnedFile], found: list[_Found], deadline: Deadline) -> None:
        """Refuse the load if a file, or the list of files, has changed since the load began."""
        for file in files:
            if file.identity != Identity.of(os.fstat(file.descriptor)):
                raise SourceError(
                    f"'{file.shown}' changed while it was being read; the next refresh will read it again."
                )
        if found[0].shown == self._shown:
            # One pinned file is one version, even if its name now refers to another file.
            return
        if [_inode(file) for file in self._find(deadline)] != [file.identity[:2] for file in files]:
            raise SourceError(
                f"The files of '{self._shown}' changed while they were being read; the next refresh will retry."
            )


def _stat(file: _Found) -> os.stat_result:
    try:
        return Path(file.path).stat()
    except OSError as exc:
        raise SourceError(_unreadable(file.shown, exc)) from exc


def _pin(file: _Found, stack: ExitStack, deadline: Deadline) -> PinnedFile:
    deadline.check()
    try:
        # Check before opening, because opening a device can have side effects.
        _refuse_irregular(file, Path(file.path).stat().st_mode)
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        info = os.fstat(descriptor)
        _refuse_irregular(file, info.st_mode)
        if not Identity.of(info).is_settled:
            deadline.sleep(SETTLED_S)  # From then on, every change shows in the modification time.
            info = os.fstat(descriptor)
    except OSError as exc:
        raise SourceError(_unreadable(file.shown, exc)) from exc
    if info.st_size == 0:
        raise SourceError(f"'{file.shown}' is empty (0 bytes).")
    return PinnedFile(descriptor, file.shown, Identity.of(info))


def _refuse_irregular(file: _Found, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((kind for test, kind in _FILE_TYPES if test(mode)), "something else")
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
