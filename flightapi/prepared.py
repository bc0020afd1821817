"""
Prepared statements by handle. Each is visible only to the key that created it.

A prepared statement consists of its text and the row last bound to it. Clients forget to close statements, so their
number is limited per key and in total, and they expire.
"""

import secrets
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from flightapi.errors import UnknownPreparedStatementError
from queryengine.engine import ArrowParameters
from queryengine.errors import ResourceLimitError

HANDLE_BYTES = 16

#: Seconds after which an unused statement expires.
IDLE_S = 600.0

#: The limits per key and in total.
MAX_OF_KEY = 1000
MAX_STATEMENTS = 10_000
MAX_BYTES_OF_KEY = 32 * 1024 * 1024
MAX_BYTES = 4 * MAX_BYTES_OF_KEY

#: The approximate overhead of a statement, in bytes.
_ENTRY_BYTES = 1024


@dataclass(slots=True)
class Prepared:
    """A prepared statement, whether it takes parameters, its bound parameters, and when it was last used."""

    sql: str
    takes_parameters: bool
    parameters: ArrowParameters | None = None
    used_at: float = 0.0
    #: The approximate memory in bytes. Computed once, because a string grows when another library requests its UTF-8.
    size: int = field(init=False)

    def __post_init__(self) -> None:
        bound = b"" if self.parameters is None else self.parameters
        self.size = _ENTRY_BYTES + sys.getsizeof(self.sql) + len(bound)


class PreparedStatements:
    """The prepared statements of all keys, by fingerprint. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._of_keys: dict[str, OrderedDict[bytes, Prepared]] = {}
        self._bytes: dict[str, int] = {}

    def add(self, fingerprint: str, prepared: Prepared) -> bytes:
        """
        Store *prepared* and return its handle. The key's least recently used statement may be evicted.

        Raises:
            ResourceLimitError: The statement is too large to store.
        """
        handle = secrets.token_bytes(HANDLE_BYTES)
        with self._lock:
            self._put(fingerprint, handle, prepared)
        return handle

    def get(self, fingerprint: str, handle: bytes) -> Prepared:
        """
        Return the statement *handle*.

        Raises:
            UnknownPreparedStatementError: This key has no such statement.
        """
        with self._lock:
            return self._find(fingerprint, handle)

    def bind(self, fingerprint: str, handle: bytes, parameters: ArrowParameters | None) -> None:
        """
        Bind *parameters* to the statement *handle*.

        Raises:
            UnknownPreparedStatementError: See `get`.
            ResourceLimitError: The parameters are too large to store.
        """
        with self._lock:
            self._put(fingerprint, handle, replace(self._find(fingerprint, handle), parameters=parameters))

    def close(self, fingerprint: str, handle: bytes) -> None:
        """Remove the statement *handle* if it exists."""
        with self._lock:
            self._remove(fingerprint, handle)

    def expire(self) -> None:
        """Remove the statements that have not been used for `IDLE_S` seconds."""
        before = self._clock() - IDLE_S
        with self._lock:
            for fingerprint in list(self._of_keys):
                while (of_key := self._of_keys.get(fingerprint)) and next(iter(of_key.values())).used_at < before:
                    self._evict_oldest(fingerprint)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._of_keys.values()))

    def _find(self, fingerprint: str, handle: bytes) -> Prepared:
        of_key = self._of_keys.get(fingerprint, OrderedDict())
        prepared = of_key.get(handle)
        if prepared is None or prepared.used_at < self._clock() - IDLE_S:
            raise UnknownPreparedStatementError
        prepared.used_at = self._clock()
        of_key.move_to_end(handle)
        return prepared

    def _put(self, fingerprint: str, handle: bytes, prepared: Prepared) -> None:
        size = prepared.size
        if size > MAX_BYTES_OF_KEY:
            raise ResourceLimitError("The prepared statement is too large to be kept: run it as it is.")
        self._remove(fingerprint, handle)
        while self._of_keys.get(fingerprint) and (
            len(self._of_keys[fingerprint]) >= MAX_OF_KEY or self._bytes[fingerprint] + size > MAX_BYTES_OF_KEY
        ):
            self._evict_oldest(fingerprint)
        while self._of_keys and (
            sum(map(len, self._of_keys.values())) >= MAX_STATEMENTS or sum(self._bytes.values()) + size > MAX_BYTES
        ):
            # Evict from the key with the most memory, so that no key can evict all statements of the others.
            self._evict_oldest(max(self._bytes, key=self._bytes.__getitem__))
        prepared.used_at = self._clock()
        self._of_keys.setdefault(fingerprint, OrderedDict())[handle] = prepared
        self._bytes[fingerprint] = self._bytes.get(fingerprint, 0) + size

    def _evict_oldest(self, fingerprint: str) -> None:
        self._remove(fingerprint, next(iter(self._of_keys[fingerprint])))

    def _remove(self, fingerprint: str, handle: bytes) -> None:
        of_key = self._of_keys.get(fingerprint, OrderedDict())
        removed = of_key.pop(handle, None)
        if removed is None:
            return
        self._bytes[fingerprint] -= removed.size
        if not of_key:
            del self._of_keys[fingerprint], self._bytes[fingerprint]
