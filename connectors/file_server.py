"""
What `ftp:` and `sftp:` share: a server with directories of files, read like a bucket.

Such a server cannot be asked for one version of a file. A file is known by its size and its modification time, and all
files are looked up once more after the download.
"""

import re
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Self, TypeVar

from connectors.bucket import StoredObject
from connectors.objects import ObjectSource, version_of
from datasources.deadline import Deadline
from datasources.errors import SourceError
from runtimeconf.file_formats import DownloadParams

_Params = TypeVar("_Params", bound=DownloadParams)

#: A file that was written within this time (seconds) may be written to again in the same second; clocks differ too.
_SETTLED_S = 60.0
#: How deep directories are read: a link may lead back to one above.
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a directory: its *name*, and the *size* and modification time (s) of a file, None for a directory."""

    name: str
    size: int | None
    modified_s: float | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """The bytes of a file, as an `Answer`."""

    length: int | None
    content: Iterator[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes."""
        return self.content


class FileServer(ABC, Generic[_Params]):
    """
    A server, for one load. Use it as a context manager. *url* is its root in errors; *params* are the dataset's.

    Paths are absolute, as the user of the server sees them.
    """

    is_pinned: ClassVar[bool] = False
    #: What breaks a connection. A subclass adds the errors of its library.
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
            with self._explained("it breaks off"):
                self._connect(max(0.001, min(self._silence_s, self._deadline.left_s)))
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def shown(self, key: str) -> str:
        """As `Store.shown`."""
        return "".join(letter if letter.isprintable() else "\ufffd" for letter in f"{self._url}/{key}")

    def look(self, key: str) -> StoredObject | None:
        """As `Store.look`."""
        entry = self._entry(f"/{key}")
        return None if entry is None or entry.size is None else _object(key, entry)

    def listed(self, prefix: str) -> Iterator[StoredObject]:
        """As `Store.listed`."""
        directory = prefix.rpartition("/")[0]
        return (one for one in self._below(directory, _MAX_DEPTH) if one.key.startswith(prefix))

    @abstractmethod
    def get(self, found: StoredObject) -> AbstractContextManager[Download]:
        """As `Store.get`."""

    @abstractmethod
    def _connect(self, limit_s: float) -> None:
        """Log in within *limit_s*. What has to be closed goes to `_open`. Raises SourceError."""

    @abstractmethod
    def _is_ours(self, connection: socket.socket) -> bool:
        """Whether *connection* leads to the server."""

    @abstractmethod
    def _reason(self, error: Exception, what: str) -> str:
        """Return a sentence on *error*, which may begin with *what* was tried."""

    @abstractmethod
    def _entry(self, path: str) -> Entry | None:
        """Return what *path* is; None if there is nothing. Raises SourceError."""

    @abstractmethod
    def _entries(self, path: str) -> Sequence[Entry]:
        """Return the entries of the directory *path*; none if there is no such directory. Raises SourceError."""

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turn errors of the connection into sentences about *what* was tried; the deadline is first."""
        try:
            yield
        except SourceError:
            raise
        except self.errors as error:
            self._deadline.check()
            raise SourceError(f"{self._reason(error, what)}.") from None

    def _unreachable(self, error: Exception) -> str | None:
        """Return why the server cannot be reached; None if *error* is of another kind."""
        if isinstance(error, socket.gaierror):
            return f"'{self._url}': the name of the server cannot be resolved"
        if isinstance(error, TimeoutError):
            return f"'{self._url}': the server was silent for {self._silence_s:g} s, the client_timeout"
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror:
            return f"'{self._url}': the server cannot be reached ({error.strerror})"
        return None

    def _below(self, directory: str, depth: int) -> Iterator[StoredObject]:
        for entry in self._entries(f"/{directory}"):
            # A name is one part of a path: `..` or a slash would lead elsewhere, and a line end begins a command.
            if entry.name in {"", ".", ".."} or re.search(r"[/\r\n\0]", entry.name):
                raise SourceError(f"'{self.shown(directory)}' has an entry whose name is not a name.")
            key = f"{directory}/{entry.name}" if directory else entry.name
            if entry.size is not None:
                yield _object(key, entry)
            elif depth == 0:
                shown = self.shown(directory)
                raise SourceError(f"'{shown}' is {_MAX_DEPTH} directories deep: does a link lead to one above it?")
            else:
                yield from self._below(key, depth - 1)


class FileServerSource(ObjectSource[_Params]):
    """Files of a server."""

    def _version(self, found: Sequence[StoredObject]) -> str | None:
        """Return None while a file may have changed without a trace, or if the server does not tell when it did."""
        ages = [time.time() - float(one.tag.partition(" ")[2] or "inf") for one in found]
        return version_of(found) if all(age > _SETTLED_S for age in ages) else None


def _object(key: str, entry: Entry) -> StoredObject:
    modified = "" if entry.modified_s is None else repr(entry.modified_s)
    return StoredObject(key, f"{entry.size} {modified}", entry.size)
