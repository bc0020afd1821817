"""The statements of all keys as JSON lines in a file, for the operator."""

import errno
import json
import logging
import os
import stat
import threading
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from telemetry.events import StatementEvent
from telemetry.history import entry

logger = logging.getLogger(__name__)

_MODE = 0o600
_NEVER_A_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

#: The beginning of each line. A file with other content does not begin like this.
_BEGINNING = b'{"key":'

_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class HistoryFile:
    """
    Appends to the file at *path*, up to *max_bytes*, and keeps *files* files. Older files are `path.1` and so on.

    No method raises. Lines that cannot be written are lost, with one warning until writing succeeds again. The file is
    never a link, belongs to the user of this process, and contains only such lines. Other processes may also append to
    it or truncate it. Thread-safe.
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._size = 0
        self._fails = False
        self._lost = 0

    def take(self, events: Sequence[StatementEvent]) -> None:
        """Append *events*."""
        if events:
            with self._lock:
                self._write([_line(event) for event in events])

    def open(self) -> None:
        """Open the file now, so that a warning does not have to wait for the first statement."""
        with self._lock:
            self._write([])

    def close(self) -> None:
        """Close the file. The next statement opens it again."""
        with self._lock:
            self._close()

    def _write(self, lines: Sequence[bytes]) -> None:
        written = 0
        try:
            self._opened()
            while written < len(lines):
                written += self._append(lines[written:])
        except OSError as error:
            self._close()
            if not self._fails:
                fields = {"file": str(self._path), "error": error.strerror or str(error)}
                logger.warning("statements cannot be written to the history file", extra={"fields": fields})
            self._fails = True
            self._lost += len(lines) - written
        else:
            if lines and self._fails:
                fields = {"file": str(self._path), "lost": str(self._lost)}
                logger.warning("statements are written to the history file again", extra={"fields": fields})
                self._fails, self._lost = False, 0

    def _close(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _append(self, lines: Sequence[bytes]) -> int:
        """Append as many *lines* as fit in the file, but at least one. Return the number appended. Raises OSError."""
        descriptor = self._opened()
        room = self._max_bytes - self._size
        if len(lines[0]) > room and self._size:
            self._rotate()
            return 0
        ends = list(accumulate(map(len, lines)))
        count = max(1, bisect_right(ends, room))
        data = b"".join(lines[:count])
        written = os.write(descriptor, data)
        if written < len(data):  # The disk is full. Do not leave a partial line, and keep the lines of others.
            os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR) - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return count

    def _opened(self) -> int:
        """Return the descriptor of the file. Open it again if it was removed or replaced. Raises OSError."""
        if self._descriptor is not None:
            with suppress(OSError):
                status = os.fstat(self._descriptor)
                if os.path.samestat(os.lstat(self._path), status):
                    self._size = status.st_size
                    return self._descriptor
            self._close()
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _NEVER_A_LINK, _MODE)
        try:
            self._size = _checked(descriptor).st_size
            if self._size and os.pread(descriptor, 1, self._size - 1) != b"\n":  # A crash has truncated the last line.
                self._size += os.write(descriptor, b"\n")
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def _rotate(self) -> None:
        """Make room for a new file. Raises OSError."""
        self._close()
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._files))]
        names[-1].unlink(missing_ok=True)
        for older, newer in reversed(list(pairwise(names))):
            with suppress(FileNotFoundError):
                older.rename(newer)


def _checked(descriptor: int) -> os.stat_result:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is not a regular file of the runtime's user")
    if status.st_size and os.pread(descriptor, len(_BEGINNING), 0) != _BEGINNING:
        raise PermissionError(errno.EPERM, "it is not a history file")
    return status


def _line(event: StatementEvent) -> bytes:
    fields: dict[str, Any] = {"key": event.key or None, "fingerprint": event.fingerprint or None, **entry(event)}
    return _to_json(fields).encode("ascii") + b"\n"
