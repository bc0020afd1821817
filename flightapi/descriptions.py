"""
Cached descriptions of statements without parameters.

Clients ask for a description before each execution, and it costs the engine about as much as a small result. New data
may have other columns, so publishing it clears the cache.
"""

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from queryengine.engine import Description
from queryengine.manifest import Signature, manifest_path, signature

#: Seconds for which a description is valid while no new data is published. It is limited because an engine worker that
#: cannot open the newest data at once describes the previous data.
TTL_S = 10.0

#: The memory limits of the cache and of one entry.
MAX_BYTES = 16 * 1024 * 1024
MAX_ENTRY_BYTES = 256 * 1024

#: The text of a statement and the scope of the caller's key.
_Key = tuple[str, frozenset[str] | None]

#: The approximate overhead of an entry, in bytes.
_ENTRY_BYTES = 512


class Descriptions:
    """The descriptions of statements over the data that *state_dir* publishes. Safe from any thread."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._manifest = str(manifest_path(state_dir))
        self._clock = clock
        self._lock = threading.Lock()
        self._published: Signature = None
        self._known: OrderedDict[_Key, tuple[Description, float]] = OrderedDict()
        self._bytes = 0

    def of(self, sql: str, scope: frozenset[str] | None, describe: Callable[[], Description]) -> Description:
        """
        Return the cached description of *sql* within *scope* (`Query.scope`), or the result of *describe*.

        Errors of *describe* propagate and are not cached.
        """
        published = signature(self._manifest)
        now = self._clock()
        key = sql, scope
        with self._lock:
            if published != self._published:
                self._published = published
                self._known.clear()
                self._bytes = 0
            known = self._known.get(key)
            if known is not None and now - known[1] < TTL_S:
                self._known.move_to_end(key)
                return known[0]
        description = describe()
        if description.is_schema_cacheable and description.schema is not None and not description.parameters:
            with self._lock:
                if published == self._published:  # no other data was published in the meantime
                    self._keep(key, replace(description, answer=None), now)
        return description

    def _keep(self, key: _Key, description: Description, now: float) -> None:
        size = _size(key, description)
        if size > MAX_ENTRY_BYTES:
            return
        self._forget(key)
        self._known[key] = description, now
        self._bytes += size
        while self._bytes > MAX_BYTES:
            self._forget(next(iter(self._known)))

    def _forget(self, key: _Key) -> None:
        description, _ = self._known.pop(key, (None, None))
        if description is not None:
            self._bytes -= _size(key, description)


def _size(key: _Key, description: Description) -> int:
    return _ENTRY_BYTES + sys.getsizeof(key[0]) + len(description.schema or b"")
