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

#: The approximate overhead of an entry, in bytes.
_ENTRY_BYTES = 512


class Descriptions:
    """The descriptions of statements over the data that *state_dir* publishes. Safe from any thread."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._manifest = str(manifest_path(state_dir))
        self._clock = clock
        self._lock = threading.Lock()
        self._published: Signature = None
        self._known: OrderedDict[str, tuple[Description, float]] = OrderedDict()
        self._bytes = 0

    def of(self, sql: str, describe: Callable[[], Description]) -> Description:
        """
        Return the cached description of *sql*, or the result of *describe*.

        Errors of *describe* propagate and are not cached.
        """
        published = signature(self._manifest)
        now = self._clock()
        with self._lock:
            if published != self._published:
                self._published = published
                self._known.clear()
                self._bytes = 0
            known = self._known.get(sql)
            if known is not None and now - known[1] < TTL_S:
                self._known.move_to_end(sql)
                return known[0]
        description = describe()
        if description.is_schema_cacheable and description.schema is not None and not description.parameters:
            with self._lock:
                if published == self._published:  # no other data was published in the meantime
                    self._keep(sql, replace(description, answer=None), now)
        return description

    def _keep(self, sql: str, description: Description, now: float) -> None:
        if _size(sql, description) > MAX_ENTRY_BYTES:
            return
        self._forget(sql)
        self._known[sql] = description, now
        self._bytes += _size(sql, description)
        while self._bytes > MAX_BYTES:
            self._forget(next(iter(self._known)))

    def _forget(self, sql: str) -> None:
        description, _ = self._known.pop(sql, (None, None))
        if description is not None:
            self._bytes -= _size(sql, description)


def _size(sql: str, description: Description) -> int:
    return _ENTRY_BYTES + sys.getsizeof(sql) + len(description.schema or b"")
