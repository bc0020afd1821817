"""
How many rows DuckDB should put into one record batch of a statement.

A batch of one vector (2,048 rows) is always right: no row waits for others, and wide rows take little memory. A large
result then has very many batches, each of which costs as much as a thousand of its rows. Larger batches are used for a
statement whose last result was large, came fast and cannot have wide rows: DuckDB's statistics bound the length of each
text. They stay valid because the data of an instance never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

#: DuckDB's vector: the fewest rows that it computes at once.
VECTOR_ROWS: Final = 2048

#: The most bytes in a batch.
BATCH_BYTES: Final = 3 * 1024 * 1024

#: A result is large from this many rows on, and fast at this rate: then its first batch comes soon.
LARGE_ROWS: Final = 100_000
FAST_ROWS_PER_S: Final = 500_000

#: The longest that the first rows of a result may take, in seconds. Asking for statistics computes the first row again,
#: including everything before it: a sort, a group, a join.
FIRST_S: Final = 0.1

#: The possible numbers of vectors in a batch. DuckDB reads each row group of 60 vectors by itself, and these numbers
#: divide it without a remainder.
_VECTORS: Final = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)

#: How many statements are kept; later ones are not learned.
_MAX_STATEMENTS: Final = 256

_TEXTS: Final = frozenset({pa.lib.Type_STRING, pa.lib.Type_BINARY})
_TEXT_BITS: Final = 8 * 4  # the offset of a text


@dataclass(slots=True)
class Pace:
    """How fast a result came: its rows, the seconds until the first of them, and the seconds for all of them."""

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
    def is_large_and_fast(self) -> bool:
        """Whether the result had many rows, and both the first and the others came fast."""
        return self.rows >= LARGE_ROWS and self.first_s <= FIRST_S and self.rows >= FAST_ROWS_PER_S * self.spent_s


class BatchSizes:
    """The batch sizes of one instance's statements. Safe from any thread."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def batch_rows(self, sql: str) -> int:
        """Return how many rows a batch of *sql* may have."""
        return self._rows.get(sql, VECTOR_ROWS)

    def learn(self, sql: str, relation: duckdb.DuckDBPyRelation, schema: pa.Schema, pace: Pace) -> None:
        """
        Learn from a complete result.

        Args:
            sql: The statement. It always has the same result: it has no parameters and reads no clock.
            relation: The statement, bound.
            schema: Of its batches.
            pace: How fast they came.

        Raises:
            duckdb.Error: The statistics cannot be read.
        """
        if sql in self._rows or not pace.is_large_and_fast:
            return
        if len(self._rows) < _MAX_STATEMENTS:
            row_bytes = _widest_row(relation, schema) or BATCH_BYTES
            vectors = max(
                number for number in _VECTORS if number == 1 or number * VECTOR_ROWS * row_bytes <= BATCH_BYTES
            )
            self._rows[sql] = vectors * VECTOR_ROWS


def _widest_row(relation: duckdb.DuckDBPyRelation, schema: pa.Schema) -> float | None:
    """Return the most bytes that a row of *relation* can take; None when nothing bounds it."""
    types = list(schema.types)
    bits = len(types)  # the validity bitmaps
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
    # Statistics are known before the first row is, so only that one is computed.
    for longest in relation.project(", ".join(texts)).limit(1).fetchall():
        return None if None in longest else bits / 8 + sum(longest)
    return None
