"""Statistics per statement digest: how often the statements ran, and how long each phase took."""

import threading
import time
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from system.wallclock import utc_at
from telemetry.events import NO_ERRORS, StatementEvent, grouped
from telemetry.history import Shares

#: The maximum number of statements remembered for all keys together.
MAX_STATEMENTS: Final = 5000

#: The phases of a statement. A cached result has no times for the first four.
PHASES: Final = ("queued_ms", "parse_ms", "run_ms", "encode_ms", "total_ms")

_LABELS: Final = attrgetter("fingerprint", "statement")
_FIELDS: Final = attrgetter("code", "cache", "started", "rows", "bytes", "total_ms")
_TIMES: Final = attrgetter(*PHASES[:-1])

#: The fields of a row.
COLUMNS: Final = (
    *("statement", "calls", "errors", "cache_hits", "rows", "bytes", "last"),
    *(f"{kind}_{phase}" for phase in PHASES for kind in ("mean", "p95")),
    "sql",
)

#: The upper bucket boundaries of a histogram, in milliseconds: ten for each power of ten, up to a quarter of an hour. A
#: percentile is off by at most 26 %.
_PER_DECADE: Final = 10
_LIMITS_MS: Final = tuple(0.01 * 10 ** (step / _PER_DECADE) for step in range(8 * _PER_DECADE))
_PERCENTILE: Final = 0.95


class _Times:
    """The times of one phase."""

    __slots__ = ("_buckets", "_count", "_most", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self._count = 0
        self._most = 0.0
        self._buckets = array("I", bytes(4 * (len(_LIMITS_MS) + 1)))

    def add(self, times_ms: Sequence[float]) -> None:
        self.total += sum(times_ms)
        self._count += len(times_ms)
        self._most = max(self._most, *times_ms)
        for time_ms in times_ms:
            bucket = bisect_left(_LIMITS_MS, time_ms)
            try:
                self._buckets[bucket] += 1
            except OverflowError:  # after weeks; the few counters that need it take twice the memory
                self._buckets = array("Q", self._buckets)
                self._buckets[bucket] += 1

    def summary(self) -> tuple[float | None, float | None]:
        """Return the mean and an upper bound of the 95th percentile; None without any times."""
        if not self._count:
            return None, None
        rank = _PERCENTILE * self._count
        for index, count in enumerate(self._buckets):
            rank -= count
            if rank <= 0 and index < len(_LIMITS_MS):
                return round(self.total / self._count, 3), round(min(_LIMITS_MS[index], self._most), 3)
        return round(self.total / self._count, 3), self._most


class _Statement:
    """The statements of one key with the same digest."""

    __slots__ = ("bytes", "cache_hits", "calls", "errors", "last", "rows", "sql", "times")

    def __init__(self) -> None:
        self.calls = self.errors = self.rows = self.bytes = self.cache_hits = 0
        self.last = 0.0
        self.sql: str | None = None
        self.times = tuple(_Times() for _ in PHASES)

    def add(self, events: Sequence[StatementEvent]) -> None:
        codes, caches, starts, rows, sizes, totals_ms = zip(*map(_FIELDS, events), strict=True)
        self.calls += len(events)
        self.errors += sum(code not in NO_ERRORS for code in codes)
        self.cache_hits += caches.count("hit")
        self.rows += sum(rows)
        self.bytes += sum(sizes)
        self.last = max(self.last, *starts)
        self.sql = events[-1].sql
        ran = [event for event in events if event.cache != "hit"]
        for times, times_ms in zip(self.times, zip(*map(_TIMES, ran), strict=True), strict=False):
            times.add(times_ms)
        self.times[-1].add(totals_ms)

    def row(self, digest: str) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "statement": digest or None,
            "calls": self.calls,
            "errors": self.errors,
            "cache_hits": self.cache_hits,
            "rows": self.rows,
            "bytes": self.bytes,
            "last": utc_at(self.last),
        }
        for times, phase in zip(self.times, PHASES, strict=True):
            fields[f"mean_{phase}"], fields[f"p95_{phase}"] = times.summary()
        return {**fields, "sql": self.sql}


class Statistics:
    """
    Up to *max_statements* digests, counted separately for each key. Thread-safe.

    Beyond that, the key with the most digests loses its least recently used one.
    """

    def __init__(self, max_statements: int = MAX_STATEMENTS) -> None:
        self._max_statements = max_statements
        self._since = time.time()
        self._lock = threading.Lock()
        self._of_key: dict[str, OrderedDict[str, _Statement]] = {}
        self._evicted: dict[str, int] = {}
        self._shares = Shares()
        self._size = 0

    def forget_sql(self) -> None:
        """Forget the text of all statements."""
        with self._lock:
            for of_key in self._of_key.values():
                for statement in of_key.values():
                    statement.sql = None

    def take(self, events: Sequence[StatementEvent]) -> None:
        """Count *events*."""
        with self._lock:
            for (key, digest), alike in grouped(events, _LABELS).items():
                self._find(key, digest).add(alike)
                if self._size > self._max_statements:
                    self._evict_one()

    def answer(self, key: str, limit: int) -> dict[str, Any]:
        """
        Return the *limit* statements with the longest total time of the key with the fingerprint *key*.

        `since` is the time at which counting began, `evicted` the number of the key's statements that were dropped.
        """
        with self._lock:
            found = sorted(self._of_key.get(key, {}).items(), key=lambda item: item[1].times[-1].total, reverse=True)
            return {
                "since": utc_at(self._since),
                "evicted": self._evicted.get(key, 0),
                "statements": [statement.row(digest) for digest, statement in found[:limit]],
            }

    def _find(self, key: str, digest: str) -> _Statement:
        of_key = self._of_key.setdefault(key, OrderedDict())
        statement = of_key.get(digest)
        if statement is None:
            statement = of_key[digest] = _Statement()
            self._shares.add(key)
            self._size += 1
        else:
            of_key.move_to_end(digest)
        return statement

    def _evict_one(self) -> None:
        key, _ = self._shares.remove()
        of_key = self._of_key[key]
        of_key.popitem(last=False)
        self._size -= 1
        self._evicted[key] = self._evicted.get(key, 0) + 1
        if not of_key:
            del self._of_key[key], self._evicted[key]
