"""
Which statements have answers of a few rows, so that these are fetched as Python values and not as record batches.

It is learned from earlier answers: statements with one fingerprint (`queryengine.gate.fingerprint`) are expected to
return few rows as long as all of them did. If one returns more, it is run again as a stream, before anything is sent.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import duckdb

#: A brief answer has so many rows at most.
BRIEF_ROWS: Final = 100

#: It takes so many bytes at most, as record batches and as text.
BRIEF_BYTES: Final = 64 * 1024

#: And so many seconds to compute.
BRIEF_S: Final = 0.1

#: How many patterns are known; the oldest go first.
_MOST_PATTERNS: Final = 512


class BriefAnswers:
    """What is known of the statements of one session. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._brief: dict[str, bool] = {}

    def expects(self, pattern: str | None) -> bool:
        """Say whether the next answer to a statement of *pattern* should be brief."""
        return self._brief.get(pattern or "", False)

    def learn(self, pattern: str | None, *, brief: bool) -> None:
        """Learn from an answer to a statement of *pattern*. What was not *brief* once is not taken for it again."""
        if not pattern or self._brief.get(pattern) in (False, brief):
            return
        with self._lock:
            if len(self._brief) == _MOST_PATTERNS and pattern not in self._brief:
                del self._brief[next(iter(self._brief))]
            self._brief[pattern] = brief


def brief_rows(result: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]] | None:
    """Return all rows of *result*, or None as soon as they are many or long: of long texts few have room as objects."""
    rows: list[tuple[Any, ...]] = []
    size = 0
    while (row := result.fetchone()) is not None:
        size += sum([len(value) for value in row if isinstance(value, str | bytes)])
        if len(rows) == BRIEF_ROWS or size > BRIEF_BYTES:
            return None
        rows.append(row)
    return rows
