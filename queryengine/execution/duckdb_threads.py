"""
The number of DuckDB's threads for a statement, where statements run one at a time.

For a light statement, each further thread only costs: it wakes up, finds nothing to do and sleeps again, which takes 70
to 120 microseconds of CPU, as much as `SELECT 1` itself. A statement that is not known to be light gets all threads.

The last statement of the same pattern (`queryengine.gate.fingerprint`) decides whether the next one is light. Changing
the number of threads costs as much as a dozen light statements that run with one thread too many, so the number is
lowered only after that many light statements in a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from queryengine.bounded_dict import BoundedDict

#: A light statement takes less CPU than this, in seconds, over all threads, until all of its rows are computed.
LIGHT_S: Final = 0.003

#: After this many light statements in a row, light statements get one thread.
LIGHT_IN_A_ROW: Final = 12

#: How many patterns of light statements are kept; the oldest are dropped first.
_MAX_PATTERNS: Final = 512


class Threads:
    """The number of threads, which *set_number* passes to DuckDB; *most* at first. For one statement at a time."""

    def __init__(self, most: int, set_number: Callable[[int], None]) -> None:
        self._most = most
        self._set_number = set_number
        self._number = most
        self._in_a_row = 0
        self._light: BoundedDict[str, None] = BoundedDict(_MAX_PATTERNS)
        self._began_s = 0.0

    def begin(self, pattern: str | None) -> None:
        """Set the number for a statement of *pattern*; raises the errors of *set_number*."""
        if pattern not in self._light:
            self._in_a_row = 0
            self._set(self._most)
        elif self._in_a_row < LIGHT_IN_A_ROW:
            self._in_a_row += 1
        else:
            self._set(1)
        self._began_s = time.process_time()

    def learn(self, pattern: str | None, *, whole: bool) -> None:
        """Learn from the last statement: its first rows have been computed, or its *whole* result."""
        if pattern is None:
            return
        if not whole or time.process_time() - self._began_s >= LIGHT_S:
            self._light.pop(pattern, None)
        elif pattern not in self._light:
            self._light[pattern] = None

    def _set(self, number: int) -> None:
        if number != self._number:
            self._set_number(number)
            self._number = number
