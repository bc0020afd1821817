"""The last statements that ended, in memory."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from system.wallclock import utc_at
from telemetry.events import Event, StatementEvent
from telemetry.fairness import Shares

#: The question that `History.answer` answers.
HISTORY: Final = "history"

#: The fields of an entry.
COLUMNS: Final = (
    *("id", "request_id", "trace_id", "started", "protocol", "verdict"),
    *("queued_ms", "parse_ms", "run_ms", "encode_ms", "total_ms"),
    *("rows", "bytes", "cache", "statement", "sql"),
)


class History:
    """
    Up to *max_entries* statements. If that is exceeded, the key that has most of them loses its oldest one.

    So no key can push out the statements of another that has fewer. Thread-safe.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._of_key: dict[str, deque[StatementEvent]] = {}
        self._shares = Shares()
        self._size = 0

    def resize(self, max_entries: int) -> None:
        """Remember up to *max_entries* from now on."""
        with self._lock:
            self._max_entries = max_entries
            while self._size > max_entries:
                self._forget_one()

    def forget_sql(self) -> None:
        """Forget the text of all statements."""
        with self._lock:
            for key, events in self._of_key.items():
                self._of_key[key] = deque(event._replace(sql=None) for event in events)

    def take(self, events: Sequence[Event]) -> None:
        """Remember the statements among *events*."""
        with self._lock:
            for event in events:
                if isinstance(event, StatementEvent):
                    self._of_key.setdefault(event.fingerprint, deque()).append(event)
                    self._shares.add(event.fingerprint)
                    self._size += 1
                    if self._size > self._max_entries:
                        self._forget_one()

    def answer(self, question: Mapping[str, Any]) -> list[dict[str, Any]]:
        """
        Return the last `limit` statements of the key with the fingerprint `key`, newest first.

        Raises:
            LookupError, TypeError: The *question* is malformed.
        """
        key, limit = question["key"], question["limit"]
        with self._lock:
            found = list(islice(reversed(self._of_key.get(key, ())), limit))
        return [entry(event) for event in found]

    def _forget_one(self) -> None:
        key = self._shares.largest()
        events = self._of_key[key]
        events.popleft()
        if not events:
            del self._of_key[key]
        self._shares.remove(key)
        self._size -= 1


def entry(event: StatementEvent) -> dict[str, Any]:
    """Return *event* as its caller sees it: by `COLUMNS`, times in milliseconds, and None for what is not known."""
    return {
        "id": event.query_id,
        "request_id": event.request_id or None,
        "trace_id": event.trace_id or None,
        "started": utc_at(event.started),
        "protocol": event.protocol,
        "verdict": event.code,
        "queued_ms": round(event.queued_ms, 3),
        "parse_ms": round(event.parse_ms, 3),
        "run_ms": round(event.run_ms, 3),
        "encode_ms": round(event.encode_ms, 3),
        "total_ms": round(event.total_ms, 3),
        "rows": event.rows,
        "bytes": event.bytes,
        "cache": event.cache or None,
        "statement": event.statement or None,
        "sql": event.sql,
    }
