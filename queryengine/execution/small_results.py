"""
Which statements return small results, so that these are fetched as Python values and not as record batches.

Earlier results decide: a statement of a known pattern (`queryengine.gate.fingerprint`) is expected to return a small
result as long as every statement of that pattern did. If one returns more, it runs again as a stream, before anything
is sent.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import duckdb

#: A small result has at most this many rows.
SMALL_ROWS: Final = 100

#: It takes at most this many bytes, as record batches and as text.
SMALL_BYTES: Final = 64 * 1024

#: It is computed within this time, in seconds.
SMALL_S: Final = 0.1

#: How many patterns are kept; the oldest are dropped first.
_MAX_PATTERNS: Final = 512


class SmallPatterns:
    """The patterns of one instance's statements, and whether their results are small. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._small: dict[str, bool] = {}

    def expects(self, pattern: str | None) -> bool:
        """Say whether the next result of a statement of *pattern* should be small."""
        return self._small.get(pattern or "", False)

    def learn(self, pattern: str | None, *, small: bool) -> None:
        """Learn from a result of a statement of *pattern*. A pattern that was not *small* once never is again."""
        if not pattern or self._small.get(pattern) in (False, small):
            return
        with self._lock:
            if len(self._small) == _MAX_PATTERNS and pattern not in self._small:
                del self._small[next(iter(self._small))]
            self._small[pattern] = small


def fetch_small_rows(result: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]] | None:
    """
    Return all rows of *result*; None as soon as they are too many or too long.

    Memory holds few long texts as Python objects, hence the second limit.
    """
    rows: list[tuple[Any, ...]] = []
    size = 0
    while (row := result.fetchone()) is not None:
        size += sum([len(value) for value in row if isinstance(value, str | bytes)])
        if len(rows) == SMALL_ROWS or size > SMALL_BYTES:
            return None
        rows.append(row)
    return rows
