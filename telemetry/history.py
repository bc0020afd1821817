"""The most recently finished statements, in memory."""

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from system.wallclock import utc_at
from telemetry.events import StatementEvent, grouped

#: The fields of an entry.
COLUMNS: Final = (
    *("id", "request_id", "trace_id", "started", "protocol", "outcome"),
    *("queued_ms", "parse_ms", "run_ms", "encode_ms", "total_ms"),
    *("rows", "bytes", "cache", "statement", "sql"),
)

_KEY: Final = attrgetter("fingerprint")

#: A clock that was put back must not move all new statements behind all others.
MAX_DELAY_S: Final = 5.0


class Shares:
    """
    The number of entries of each key in a bounded store. When the store is full, the key with the most loses one.

    Each operation takes constant time per entry.
    """

    def __init__(self) -> None:
        self._count_of: dict[str, int] = {}
        self._with_count: dict[int, dict[str, None]] = {}  # keys by number of entries, in order of arrival
        self._most = 0

    def add(self, key: str, number: int = 1) -> None:
        """Count *number* more entries of *key*."""
        count = self._count_of.get(key, 0) + number
        self._move(key, count)
        self._most = max(self._most, count)

    def remove(self, at_most: int = 1) -> tuple[str, int]:
        """
        Subtract entries from a key with the most entries. Return the key and the number subtracted.

        The number is one, or up to *at_most* as long as no other key has more entries. The store must have at least
        *at_most* entries.
        """
        most = self._most
        largest = self._with_count[most]
        key = next(iter(largest))
        number = 1
        if len(largest) == 1:
            while number < at_most and most - number not in self._with_count:
                number += 1
            self._most = most - number
        self._move(key, most - number)
        return key, number

    def _move(self, key: str, count: int) -> None:
        before = self._count_of.pop(key, 0)
        if before:
            peers = self._with_count[before]
            del peers[key]
            if not peers:
                del self._with_count[before]
        if count:
            self._count_of[key] = count
            self._with_count.setdefault(count, {})[key] = None


class History:
    """
    Up to *max_entries* statements. Beyond that, the key with the most statements loses its oldest one.

    A key can therefore not evict the statements of a key that has fewer. Thread-safe.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._of_key = defaultdict[str, deque[StatementEvent]](deque)
        self._shares = Shares()
        self._size = 0

    def resize(self, max_entries: int) -> None:
        """Remember up to *max_entries* from now on."""
        with self._lock:
            self._max_entries = max_entries
            self._shrink()

    def forget_sql(self) -> None:
        """Forget the text of all statements."""
        with self._lock:
            for key, events in self._of_key.items():
                self._of_key[key] = deque(replace(event, sql=None) for event in events)

    def take(self, events: Sequence[StatementEvent]) -> None:
        """Remember *events*."""
        with self._lock:
            for key, of_key in grouped(events, _KEY).items():
                _merge(self._of_key[key], of_key)
                self._shares.add(key, len(of_key))
            self._size += len(events)
            self._shrink()

    def answer(self, key: str, limit: int) -> list[dict[str, Any]]:
        """Return the last *limit* statements of the key with the fingerprint *key*, newest first."""
        with self._lock:
            found = list(islice(reversed(self._of_key.get(key, ())), limit))
        return [entry(event) for event in found]

    def _shrink(self) -> None:
        while self._size > self._max_entries:
            key, number = self._shares.remove(self._size - self._max_entries)
            events = self._of_key[key]
            for _ in range(number):
                events.popleft()
            if not events:
                del self._of_key[key]
            self._size -= number


def _merge(kept: deque[StatementEvent], events: Sequence[StatementEvent]) -> None:
    """Add *events* in the order in which they finished: each process sends its own, up to `MAX_DELAY_S` afterwards."""
    first = min(map(_finished, events))
    later = []
    while kept and first < _finished(kept[-1]) < first + MAX_DELAY_S:
        later.append(kept.pop())
    kept.extend(sorted([*reversed(later), *events], key=_finished))


def _finished(event: StatementEvent) -> float:
    return event.started + event.total_ms / 1000


def entry(event: StatementEvent) -> dict[str, Any]:
    """Return *event* as its caller sees it: the fields in `COLUMNS`, times in milliseconds, None for unknown values."""
    return {
        "id": event.query_id,
        "request_id": event.request_id or None,
        "trace_id": event.trace_id or None,
        "started": utc_at(event.started),
        "protocol": event.protocol,
        "outcome": event.code,
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
