"""
How many rows DuckDB should put into one record batch of a statement.

A batch of one vector is always right: no rows wait for others, and wide ones take little memory. Of a long answer that
makes very many batches, each of which costs as much as a thousand of its rows. What the next answer to the same
statement may have instead is learnt from one that was long and came fast, and whose rows cannot be wide: DuckDB's
statistics bound the length of each text in them. That holds for as long as the data stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

#: DuckDB's vector, the least it computes at once.
VECTOR_ROWS: Final = 2048

#: What a batch may hold, in bytes.
BATCH_BYTES: Final = 3 * 1024 * 1024

#: An answer is long from so many rows on, and fast when so many are computed in a second: its first batch comes soon.
LONG_ROWS: Final = 100_000
FAST_ROWS_PER_S: Final = 500_000

#: The longest that the first rows of an answer may have taken, in seconds. To ask for statistics computes the first row
#: again, with all that comes before it: a sort, a group, a join.
FIRST_S: Final = 0.1

#: The vectors of a batch. Row groups are read by themselves and have 60, so these leave no smaller batch at their ends.
_VECTORS: Final = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)

#: How many statements are known; later ones are not learnt.
_MOST_STATEMENTS: Final = 256

_TEXTS: Final = frozenset({pa.lib.Type_STRING, pa.lib.Type_BINARY})
_TEXT_BITS: Final = 8 * 4  # the offset of a text


@dataclass(slots=True)
class Pace:
    """How an answer comes: its rows, the seconds until the first of them, and those in which all were computed."""

    rows: int = 0
    first_s: float = 0.0
    spent_s: float = 0.0

    def add(self, rows: int, spent_s: float) -> None:
        """Count *rows* that were computed in *spent_s* seconds."""
        if not self.rows:
            self.first_s += spent_s
        self.rows += rows
        self.spent_s += spent_s

    @property
    def is_long_and_fast(self) -> bool:
        """Whether there were many rows, the first at once and the others in no time."""
        return self.rows >= LONG_ROWS and self.first_s <= FIRST_S and self.rows >= FAST_ROWS_PER_S * self.spent_s


class LongAnswers:
    """What is known of the statements of one session. Safe from any thread."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def batch_rows(self, sql: str) -> int:
        """Return how many rows a batch of *sql* may have."""
        return self._rows.get(sql, VECTOR_ROWS)

    def learn(self, sql: str, relation: duckdb.DuckDBPyRelation, schema: pa.Schema, pace: Pace) -> None:
        """
        Learn from an answer to *sql* that came to its end.

        Args:
            sql: Always has the same answer, as it has no parameters and reads no clock.
            relation: The statement.
            schema: Of its batches.
            pace: How it came.

        Raises:
            duckdb.Error: The statistics cannot be read.
        """
        if sql in self._rows or not pace.is_long_and_fast:
            return
        if len(self._rows) < _MOST_STATEMENTS:
            row_bytes = _widest_row(relation, schema) or BATCH_BYTES
            vectors = max(
                number for number in _VECTORS if number == 1 or number * VECTOR_ROWS * row_bytes <= BATCH_BYTES
            )
            self._rows[sql] = vectors * VECTOR_ROWS


def _widest_row(relation: duckdb.DuckDBPyRelation, schema: pa.Schema) -> float | None:
    """Return how many bytes a row of *relation* can take; None when nothing bounds it."""
    types = list(schema.types)
    bits = len(types)  # which say what is null
    texts = []
    for number, type_ in enumerate(types, start=1):
        if type_.id in _TEXTS:
            texts.append(f"stats(#{number}).max_string_length")
            bits += _TEXT_BITS
        elif pa.types.is_nested(type_):
            return None
        elif not pa.types.is_null(type_):
            bits += type_.bit_width
    if not texts:
        return bits / 8
    # Statistics are known before the first row is: that one is all that is computed.
    for longest in relation.project(", ".join(texts)).limit(1).fetchall():
        return None if None in longest else bits / 8 + sum(longest)
    return None
