"""
What statements without parameters are, remembered for as long as the same data is published.

Clients ask before each execution, and a description costs the engine about as much as a small answer. What is published
next may have other columns: then all that is remembered is forgotten.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from queryengine.engine import Description
from queryengine.manifest import Signature, manifest_path, signature

#: Seconds for which a description is taken for true though nothing else was published: an engine worker that cannot
#: open the newest data at once describes what was there before.
LASTING_S = 10.0

#: What is remembered takes so much memory at most, and each of it so much.
MAX_BYTES = 16 * 1024 * 1024
MAX_ENTRY_BYTES = 256 * 1024

#: What an entry takes besides its texts, roughly.
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
        Return the description of *sql*: what is remembered, or else what *describe* returns.

        Whatever *describe* raises passes through, and is not remembered.
        """
        published = signature(self._manifest)
        now = self._clock()
        with self._lock:
            if published != self._published:
                self._published = published
                self._known.clear()
                self._bytes = 0
            known = self._known.get(sql)
            if known is not None and now - known[1] < LASTING_S:
                self._known.move_to_end(sql)
                return known[0]
        description = describe()
        if description.is_lasting and description.schema is not None and not description.parameters:
            with self._lock:
                if published == self._published:  # and not something else meanwhile
                    self._keep(sql, replace(description, answer=None), now)
        return description

    def _keep(self, sql: str, description: Description, now: float) -> None:
        size = _size(sql, description)
        if size > MAX_ENTRY_BYTES:
            return
        former = self._known.pop(sql, None)
        if former is not None:
            self._bytes -= _size(sql, former[0])
        self._known[sql] = description, now
        self._bytes += size
        while self._bytes > MAX_BYTES:
            oldest, (forgotten, _) = self._known.popitem(last=False)
            self._bytes -= _size(oldest, forgotten)


def _size(sql: str, description: Description) -> int:
    return _ENTRY_BYTES + sys.getsizeof(sql) + len(description.schema or b"")
