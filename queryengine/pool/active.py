"""The active statements of an engine in this process: each from its arrival until it has released its slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from queryengine.engine import ACTIVE_SQL_CHARACTERS, ActiveQuery, Query


class ActiveStatement:
    """One active statement. Its engine always calls `leave` when it has ended."""

    __slots__ = ("_arrived", "_registry", "_runs", "query", "stop")

    def __init__(self, registry: ActiveStatements, query: Query, stop: Callable[[], None]) -> None:
        self.query = query
        self.stop = stop
        self._registry = registry
        self._arrived = time.time()  # formatted only when somebody lists it
        self._runs = False

    def run(self) -> None:
        """Note that the statement has its execution slot."""
        self._runs = True

    def leave(self) -> None:
        """Take the statement off the list. More than one call is harmless."""
        self._registry.discard(self)

    def shown(self) -> ActiveQuery:
        """Return what the statement's caller sees of it."""
        arrived = datetime.fromtimestamp(self._arrived, UTC)
        return ActiveQuery(
            query_id=self.query.query_id,
            started=arrived.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            state="running" if self._runs else "queued",
            sql=self.query.sql[:ACTIVE_SQL_CHARACTERS],
        )


class ActiveStatements:
    """The queued and running statements. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[ActiveStatement, None] = {}  # in the order of arrival

    def enter(self, query: Query, stop: Callable[[], None]) -> ActiveStatement:
        """Add a queued statement; *stop* stops it, from any thread."""
        entry = ActiveStatement(self, query, stop)
        with self._lock:
            self._entries[entry] = None
        return entry

    def discard(self, entry: ActiveStatement) -> None:
        """Remove *entry*."""
        with self._lock:
            self._entries.pop(entry, None)

    def of(self, fingerprint: str) -> tuple[ActiveQuery, ...]:
        """List the statements of *fingerprint*, oldest first."""
        return tuple(entry.shown() for entry in self._all_of(fingerprint))

    def cancel(self, query_id: str, fingerprint: str) -> bool:
        """Stop the statement *query_id* of *fingerprint*; False if no active statement has this id."""
        found = [entry for entry in self._all_of(fingerprint) if entry.query.query_id == query_id]
        # Not under the lock: a stopped statement may leave the list in this very call.
        for entry in found:
            entry.stop()
        return bool(found)

    def _all_of(self, fingerprint: str) -> list[ActiveStatement]:
        with self._lock:
            return [entry for entry in self._entries if entry.query.fingerprint == fingerprint]
