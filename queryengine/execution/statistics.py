"""Statistics that one instance learns from the statements that it runs, to run later statements faster."""

import time
from collections.abc import Callable
from typing import Final

import duckdb
import pyarrow as pa
from msgspec import Struct

from queryengine.bounded_dict import BoundedDict
from queryengine.encoders import small_rows
from queryengine.engine import Encoding
from queryengine.manifest import Column

#: The size of DuckDB's vectors, the minimum number of rows that it computes at once.
VECTOR_ROWS: Final = 2048

#: The maximum number of bytes in a batch.
BATCH_BYTES: Final = 3 * 1024 * 1024

#: A result is large from this number of rows on, and fast from this rate on, which makes its first batch come soon.
LARGE_ROWS: Final = 100_000
FAST_ROWS_PER_S: Final = 500_000

#: The maximum time that the first rows of a result may take, in seconds. Reading statistics computes the first row
#: again, including the sorts, groups and joins before it.
FIRST_S: Final = 0.1

#: The possible batch sizes in rows. DuckDB reads row groups of 60 vectors separately, and these sizes divide a group.
_BATCHES: Final = tuple(number * VECTOR_ROWS for number in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60))

#: A light statement uses less than this CPU time in all threads until all its rows are computed, in seconds.
LIGHT_S: Final = 0.003

#: After this number of consecutive light statements, light statements get one thread.
LIGHT_IN_A_ROW: Final = 12

#: The maximum numbers of statements and patterns that are kept. The oldest are dropped first.
_MAX_STATEMENTS: Final = 256
_MAX_PATTERNS: Final = 512

#: The maximum number of lists of column types whose Arrow fields are kept, and their maximum length in characters.
_MAX_TYPES: Final = 256
_MAX_TYPES_CHARACTERS: Final = 2000


class Pace(Struct):
    """The speed of a result: its rows, the seconds until the first rows, and the seconds for all rows."""

    rows: int = 0
    first_s: float = 0.0
    spent_s: float = 0.0

    def add(self, rows: int, spent_s: float) -> None:
        """Count *rows* that were computed in *spent_s* seconds."""
        if not self.rows:
            self.first_s += spent_s
        self.rows += rows
        self.spent_s += spent_s


class BatchSizes(BoundedDict[str, int]):
    """
    The number of rows that DuckDB should put into one record batch of a statement, if more than `VECTOR_ROWS`.

    A batch of one vector is always safe: no row waits for others, and wide rows use little memory. But a large result
    then has very many batches, each of which costs as much as a thousand rows. Larger batches are used for a statement
    whose last result was large and fast and cannot have wide rows, because DuckDB's statistics bound the length of each
    string. The statistics stay valid because the data of an instance never changes.
    """

    def learn(self, sql: str, relation: duckdb.DuckDBPyRelation, schema: pa.Schema, pace: Pace) -> None:
        """
        Learn from a complete result of *sql*, which reads no clock and has no parameters, bound as *relation*.

        Raises:
            duckdb.Error: The statistics cannot be read.
        """
        is_fast = pace.first_s <= FIRST_S and pace.rows >= FAST_ROWS_PER_S * pace.spent_s
        if sql not in self and pace.rows >= LARGE_ROWS and is_fast:
            most = BATCH_BYTES / (_widest_row(relation, schema) or BATCH_BYTES)
            self[sql] = max(rows for rows in _BATCHES if rows == VECTOR_ROWS or rows <= most)


class SmallPatterns(BoundedDict[str, bool]):
    """
    The patterns of statements, and whether their results are small. Thread-safe.

    A statement with a known pattern (`queryengine.gate.fingerprint`) is expected to return a small result as long as
    every statement with that pattern did. If it returns more, it is run again as a stream before anything is sent.
    """

    def learn(self, pattern: str | None, *, small: bool) -> None:
        """Learn from a result of a statement with *pattern*. After one large result, the pattern is never *small*."""
        if pattern and self.get(pattern) not in (False, small):
            self[pattern] = small


class Statistics:
    """The statistics of one instance. Thread-safe."""

    def __init__(self) -> None:
        self.batch_sizes = BatchSizes(_MAX_STATEMENTS)
        self.small_texts = SmallPatterns(_MAX_PATTERNS)
        self.small_batches = SmallPatterns(_MAX_PATTERNS)
        self._fields: dict[tuple[str, ...], tuple[pa.Field, ...]] = {}

    def small_results(self, encoding: Encoding) -> SmallPatterns:
        """Return the patterns whose results are small in *encoding*: as text, or as record batches."""
        return self.small_texts if encoding in small_rows.ENCODINGS else self.small_batches

    def schema(self, columns: tuple[Column, ...], relation: Callable[[], duckdb.DuckDBPyRelation]) -> pa.Schema:
        """Return the Arrow schema of a *relation* with *columns*. It depends only on their types, and is cached."""
        types = tuple(column.type for column in columns)
        fields = self._fields.get(types)
        if fields is None:
            fields = tuple(relation().limit(0).to_arrow_table().schema)
            if len(self._fields) < _MAX_TYPES and sum(map(len, types)) <= _MAX_TYPES_CHARACTERS:
                self._fields[types] = fields
        return pa.schema([kept.with_name(column.name) for kept, column in zip(fields, columns, strict=True)])


class Threads:
    """
    Chooses the number of DuckDB threads and sets it with *set_number*. Initially *most*. For one statement at a time.

    For a light statement, each additional thread only has a cost: it wakes up, finds nothing to do and sleeps again.
    This takes 70 to 120 microseconds of CPU time, as much as `SELECT 1` itself. A statement that is not known to be
    light gets all threads. The last statement with the same pattern determines whether the next one is light. Changing
    the number costs as much as a dozen light statements with one thread too many, so it is lowered only after that many
    consecutive light statements.
    """

    def __init__(self, most: int, set_number: Callable[[int], None]) -> None:
        self._most = most
        self._set_number = set_number
        self._number = most
        self._in_a_row = 0
        self._light: BoundedDict[str, None] = BoundedDict(_MAX_PATTERNS)
        self._began_s = 0.0

    def begin(self, pattern: str | None) -> None:
        """Set the number for a statement with *pattern*. Raises the same errors as *set_number*."""
        if pattern not in self._light:
            self._in_a_row = 0
            self._set(self._most)
        elif self._in_a_row < LIGHT_IN_A_ROW:
            self._in_a_row += 1
        else:
            self._set(1)
        self._began_s = time.process_time()

    def learn(self, pattern: str | None, *, whole: bool) -> None:
        """Learn from the last statement, whose first rows, or *whole* result, have been computed."""
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


def _widest_row(relation: duckdb.DuckDBPyRelation, schema: pa.Schema) -> float | None:
    """Return the maximum number of bytes in a row of *relation*; None if it is unlimited."""
    types = list(schema.types)
    bits = len(types)  # the validity bitmaps
    texts = []
    for number, type_ in enumerate(types, start=1):
        if type_ in (pa.string(), pa.binary()):
            texts.append(f"stats(#{number}).max_string_length")
            bits += 8 * 4  # the offset of the string
        elif pa.types.is_nested(type_):
            return None
        elif not pa.types.is_null(type_):
            bits += type_.bit_width
    if not texts:
        return bits / 8
    # Statistics are known before the rows, so only the first row is computed.
    for longest in relation.project(", ".join(texts)).limit(1).fetchall():
        return None if None in longest else bits / 8 + sum(longest)
    return None
