"""
Prepared statements: a handle each, for who made it.

What is kept of one is its text and the row that was bound to it last. Clients forget to close them,
so they are bounded for each key and in total, and go when nobody uses them.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from flightapi.errors import UnknownPreparedStatementError
from queryengine.engine import ArrowParameters
from queryengine.errors import ResourceLimitError

HANDLE_BYTES = 16

#: Seconds after which a statement that nobody uses is forgotten.
IDLE_S = 600.0

#: Seconds between two looks for what has not been used for so long.
_EXPIRY_INTERVAL_S = 1.0

#: Of one key, and of all.
MAX_OF_KEY = 1000
MAX_STATEMENTS = 10_000
MAX_BYTES_OF_KEY = 32 * 1024 * 1024
MAX_BYTES = 4 * MAX_BYTES_OF_KEY

#: What a statement takes besides its text, roughly.
_ENTRY_BYTES = 1024


@dataclass(slots=True)
class Prepared:
    """A prepared statement, whether it takes parameters, and what is bound to it."""

    sql: str
    takes_parameters: bool
    parameters: ArrowParameters | None = None

    @property
    def size(self) -> int:
        """The bytes it takes in memory, roughly."""
        bound = b"" if self.parameters is None else self.parameters.stream
        return _ENTRY_BYTES + sys.getsizeof(self.sql) + len(bound)


@dataclass(slots=True)
class _Kept:
    prepared: Prepared
    used_at: float
    size: int


class PreparedStatements:
    """The prepared statements of all keys, by fingerprint. Safe from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._of_keys: dict[str, OrderedDict[bytes, _Kept]] = {}
        self._bytes: dict[str, int] = {}
        self._expired_at = clock()

    def add(self, fingerprint: str, prepared: Prepared) -> bytes:
        """
        Keep *prepared* and return its handle. For room, what its key has used longest ago goes first.

        Raises:
            ResourceLimitError: It is too large to be kept.
        """
        handle = secrets.token_bytes(HANDLE_BYTES)
        with self._lock:
            self._put(fingerprint, handle, prepared)
        return handle

    def get(self, fingerprint: str, handle: bytes) -> Prepared:
        """
        Return what *handle* names.

        Raises:
            UnknownPreparedStatementError: Nothing of this key.
        """
        with self._lock:
            return self._kept(fingerprint, handle).prepared

    def bind(self, fingerprint: str, handle: bytes, parameters: ArrowParameters | None) -> None:
        """
        Keep *parameters* with the statement of *handle*.

        Raises:
            UnknownPreparedStatementError: As `get`.
            ResourceLimitError: They are too large to be kept.
        """
        with self._lock:
            prepared = self._kept(fingerprint, handle).prepared
            self._put(fingerprint, handle, Prepared(prepared.sql, prepared.takes_parameters, parameters))

    def close(self, fingerprint: str, handle: bytes) -> None:
        """Forget the statement of *handle*; there need not be one."""
        with self._lock:
            self._forget(fingerprint, handle)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._of_keys.values()))

    def _kept(self, fingerprint: str, handle: bytes) -> _Kept:
        of_key = self._of_keys.get(fingerprint)
        kept = None if of_key is None else of_key.get(handle)
        if of_key is None or kept is None or kept.used_at < self._clock() - IDLE_S:
            raise UnknownPreparedStatementError
        kept.used_at = self._clock()
        of_key.move_to_end(handle)
        return kept

    def _put(self, fingerprint: str, handle: bytes, prepared: Prepared) -> None:
        size = prepared.size
        if size > MAX_BYTES_OF_KEY:
            raise ResourceLimitError("The prepared statement is too large to be kept: run it as it is.")
        self._forget(fingerprint, handle)
        self._expire()
        while self._of_keys.get(fingerprint) and (
            len(self._of_keys[fingerprint]) >= MAX_OF_KEY or self._bytes[fingerprint] + size > MAX_BYTES_OF_KEY
        ):
            self._forget_oldest(fingerprint)
        while self._of_keys and (
            sum(map(len, self._of_keys.values())) >= MAX_STATEMENTS or sum(self._bytes.values()) + size > MAX_BYTES
        ):
            # Of whoever has most: nobody can push out all that others have.
            self._forget_oldest(max(self._bytes, key=self._bytes.__getitem__))
        of_key = self._of_keys.setdefault(fingerprint, OrderedDict())
        of_key[handle] = _Kept(prepared, self._clock(), size)
        self._bytes[fingerprint] = self._bytes.get(fingerprint, 0) + size

    def _expire(self) -> None:
        now = self._clock()
        if now < self._expired_at + _EXPIRY_INTERVAL_S:
            return
        self._expired_at, before = now, now - IDLE_S
        for fingerprint in list(self._of_keys):
            while (of_key := self._of_keys.get(fingerprint)) and next(iter(of_key.values())).used_at < before:
                self._forget_oldest(fingerprint)

    def _forget_oldest(self, fingerprint: str) -> None:
        self._forget(fingerprint, next(iter(self._of_keys[fingerprint])))

    def _forget(self, fingerprint: str, handle: bytes) -> None:
        of_key = self._of_keys.get(fingerprint)
        kept = None if of_key is None else of_key.pop(handle, None)
        if of_key is None or kept is None:
            return
        self._bytes[fingerprint] -= kept.size
        if not of_key:
            del self._of_keys[fingerprint], self._bytes[fingerprint]
