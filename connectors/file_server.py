"""
Code shared by `ftp:` and `sftp:`: a server with directories of files, read like a bucket.

Such a server cannot return a specific version of a file. A file is identified by its size and modification time, and
all files are looked up again after the download.
"""

import re
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import ClassVar, Generic, Self, TypeVar

from msgspec import Struct, field

from connectors.bucket import StoredObject
from connectors.objects import ObjectSource, version_of
from datasources.deadline import Deadline
from datasources.errors import SourceError
from runtimeconf.file_formats import DownloadParams

_Params = TypeVar("_Params", bound=DownloadParams)

#: A file written within this time (seconds) may be written again in the same second. Clocks also differ.
_SETTLED_S = 60.0
#: The maximum depth to which directories are read, because a link may lead back to a parent.
_MAX_DEPTH = 32


class Entry(Struct, frozen=True):
    """A directory entry: *name*, and the *size* and modification time (s) of a file (None for a directory)."""

    name: str
    size: int | None
    modified_s: float | None = None


class Download(Struct, frozen=True):
    """The bytes of a file, with the interface of `Answer`."""

    length: int | None
    content: Iterator[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes."""
        return self.content


class FileServer(ABC, Generic[_Params]):
    """
    A server, for one load, and a context manager. *url* is the root in errors. *params* are the dataset's.

    Paths are absolute, as the server's user sees them.
    """

    is_pinned: ClassVar[bool] = False
    #: Errors that mean a broken connection. A subclass adds its library's errors.
    errors: ClassVar[tuple[type[Exception], ...]] = (OSError, EOFError, ValueError)

    def __init__(self, url: str, params: _Params, deadline: Deadline) -> None:
        self._url = url
        self._params = params
        self._deadline = deadline
        self._silence_s = params.client_timeout
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(self._deadline.cut_off(self._is_ours))
        try:
            with self._explained("it ends early"):
                self._connect(max(0.001, min(self._silence_s, self._deadline.left_s)))
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def shown(self, key: str) -> str:
        """See `Store.shown`."""
        return "".join(letter if letter.isprintable() else "\ufffd" for letter in f"{self._url}/{key}")

    def look(self, key: str) -> StoredObject | None:
        """See `Store.look`."""
        entry = self._entry(f"/{key}")
        return None if entry is None or entry.size is None else _object(key, entry)

    def listed(self, prefix: str) -> Iterator[StoredObject]:
        """See `Store.listed`."""
        directory = prefix.rpartition("/")[0]
        return (one for one in self._below(directory, _MAX_DEPTH) if one.key.startswith(prefix))

    @abstractmethod
    def get(self, found: StoredObject) -> AbstractContextManager[Download]:
        """See `Store.get`."""

    @abstractmethod
    def _connect(self, limit_s: float) -> None:
        """Log in within *limit_s*. Resources that must be closed are added to `_open`. Raises SourceError."""

    @abstractmethod
    def _is_ours(self, connection: socket.socket) -> bool:
        """Return whether *connection* is connected to the server."""

    @abstractmethod
    def _reason(self, error: Exception, what: str) -> str:
        """Return a sentence about *error*, which may begin with the attempted action *what*."""

    @abstractmethod
    def _entry(self, path: str) -> Entry | None:
        """Return the entry at *path*; None if there is none. Raises SourceError."""

    @abstractmethod
    def _entries(self, path: str) -> Sequence[Entry]:
        """Return the entries of the directory *path*; none if there is no such directory. Raises SourceError."""

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turn connection errors into sentences about the attempted action *what*. The deadline takes precedence."""
        try:
            yield
        except SourceError:
            raise
        except self.errors as error:
            self._deadline.check()
            raise SourceError(f"{self._reason(error, what)}.") from None

    def _unreachable(self, error: Exception) -> str | None:
        """Return why the server cannot be reached; None if *error* is a different kind of error."""
        if isinstance(error, socket.gaierror):
            return f"'{self._url}': the server's host name cannot be resolved"
        if isinstance(error, TimeoutError):
            return f"'{self._url}': the server was silent for {self._silence_s:g} s, the client_timeout"
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror:
            return f"'{self._url}': the server cannot be reached ({error.strerror})"
        return None

    def _below(self, directory: str, depth: int) -> Iterator[StoredObject]:
        for entry in self._entries(f"/{directory}"):
            # A name is one path segment. `..` or a slash would lead elsewhere, and a line break would begin a command.
            if entry.name in {"", ".", ".."} or re.search(r"[/\r\n\0]", entry.name):
                raise SourceError(f"'{self.shown(directory)}' has an entry with an invalid name.")
            key = f"{directory}/{entry.name}" if directory else entry.name
            if entry.size is not None:
                yield _object(key, entry)
            elif depth == 0:
                shown = self.shown(directory)
                raise SourceError(f"'{shown}' is {_MAX_DEPTH} directories deep: is there a link to a parent directory?")
            else:
                yield from self._below(key, depth - 1)


class FileServerSource(ObjectSource[_Params]):
    """Files on a server."""

    def _version(self, found: Sequence[StoredObject]) -> str | None:
        """Return the version; None if a file may have changed unnoticed, or the server has no modification times."""
        ages = [time.time() - float(one.tag.partition(" ")[2] or "inf") for one in found]
        return version_of(found) if all(age > _SETTLED_S for age in ages) else None


def _object(key: str, entry: Entry) -> StoredObject:
    modified = "" if entry.modified_s is None else repr(entry.modified_s)
    return StoredObject(key, f"{entry.size} {modified}", entry.size)
