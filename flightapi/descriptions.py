"""
Statement descriptions in bounded memory, each valid for a limited time and for one data version.

Clients ask for a description before each execution, and a description costs the engine about as much as a small result.
Descriptions of statements without parameters are therefore cached. A description with the result of a speculative
execution is kept for the call that claims the result (`flightapi.speculation`).
"""

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from queryengine.engine import ArrowParameters, Description, Parameters
from queryengine.manifest import Signature, manifest_path, signature
from runtimeconf.model import Scope

#: Seconds for which a cached description is valid while no new data is published. The limit exists because an engine
#: worker that cannot immediately open the newest data describes the previous data.
TTL_S = 10.0

#: The memory limits of all descriptions together, and of one cached description.
MAX_BYTES = 16 * 1024 * 1024
MAX_CACHED_BYTES = 256 * 1024

#: The approximate overhead of an entry, in bytes.
_ENTRY_BYTES = 1024


class StatementRequest(Struct, frozen=True):
    """
    A statement, its parameters, its scope, and the fingerprint of the requesting key if the statement is for one key.

    `claim` is the ticket id or handle that will claim the result, or b"" if the result is not claimed.
    """

    fingerprint: str
    claim: bytes
    sql: str
    parameters: ArrowParameters | None = None
    scope: Scope | None = None

    @property
    def bound(self) -> Parameters:
        """The parameters for the engine. [] means that there are none."""
        return [] if self.parameters is None else self.parameters


class _Entry(Struct, frozen=True):
    description: Description
    version: Signature
    since: float
    size: int


class Descriptions:
    """Descriptions over the data that *state_dir* publishes, valid for *ttl_s* seconds. Thread-safe."""

    def __init__(self, state_dir: Path, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._manifest = str(manifest_path(state_dir))
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[StatementRequest, _Entry] = OrderedDict()  # oldest first
        self._bytes = 0

    def data_version(self) -> Signature:
        """Return the version of the published data. Read it before describing the statement."""
        return signature(self._manifest)

    def of(self, sql: str, scope: Scope | None, describe: Callable[[], Description]) -> Description:
        """
        Return the cached description of *sql* within *scope*, or call *describe* and cache its result without the rows.

        Errors of *describe* propagate and are not cached.
        """
        request = StatementRequest("", b"", sql, scope=scope)
        version = self.data_version()
        with self._lock:
            cached = self._moved(request, request, version)
        if cached is not None:
            return cached
        description = describe()
        schema = description.schema if description.is_schema_cacheable and not description.parameters else None
        if schema is not None and sys.getsizeof(sql) + len(schema) <= MAX_CACHED_BYTES:
            self.keep(request, replace(description, answer=None), version)
        return description

    def keep(self, request: StatementRequest, description: Description, version: Signature) -> None:
        """Keep *description*, made with the data *version*. The oldest descriptions are evicted."""
        entry = _Entry(description, version, self._clock(), _size(request, description))
        with self._lock:
            self._put(request, entry)

    def move(self, source: StatementRequest, target: StatementRequest) -> Description | None:
        """Move the description of *source* to *target*, as the newest. Return it, or None as in `take`."""
        version = self.data_version()
        with self._lock:
            return self._moved(source, target, version)

    def take(self, request: StatementRequest) -> Description | None:
        """Remove and return a description. Return None if there is none, it has expired, or newer data is published."""
        with self._lock:
            entry = self._remove(request)
        return entry.description if entry is not None and self._is_valid(entry, self.data_version()) else None

    def expire(self) -> None:
        """Drop the descriptions that are not valid any more."""
        version = self.data_version()
        with self._lock:
            for request in [one for one, entry in self._entries.items() if not self._is_valid(entry, version)]:
                self._remove(request)

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def _is_valid(self, entry: _Entry, version: Signature) -> bool:
        return self._clock() < entry.since + self._ttl_s and entry.version == version

    def _moved(self, source: StatementRequest, target: StatementRequest, version: Signature) -> Description | None:
        entry = self._remove(source)
        if entry is None or not self._is_valid(entry, version):
            return None
        self._put(target, entry)
        return entry.description

    def _put(self, request: StatementRequest, entry: _Entry) -> None:
        self._remove(request)
        self._entries[request] = entry
        self._bytes += entry.size
        while self._bytes > MAX_BYTES:
            self._remove(next(iter(self._entries)))

    def _remove(self, request: StatementRequest) -> _Entry | None:
        entry = self._entries.pop(request, None)
        if entry is not None:
            self._bytes -= entry.size
        return entry


def _size(request: StatementRequest, description: Description) -> int:
    size = _ENTRY_BYTES + sys.getsizeof(request.sql) + len(description.schema or b"")
    if description.answer is not None:
        size += sum(map(len, description.answer.chunks))
    return size + (0 if request.parameters is None else len(request.parameters))
