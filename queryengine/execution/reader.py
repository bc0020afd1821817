"""Reads the result of one statement as Arrow record batches, or fetches a small result as Python values."""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa

from queryengine.cancellation import Interruption
from queryengine.encoders import small_rows
from queryengine.engine import Encoding, GatedStatement
from queryengine.errors import ParameterError, QueryError, StatementError, StatementNotAllowedError
from queryengine.execution import duckdb_errors, explained
from queryengine.execution.cursors import BoundStatement, Cursors
from queryengine.execution.parameters import UNKNOWN_TYPE
from queryengine.execution.statistics import BATCH_BYTES, VECTOR_ROWS, Pace, Statistics
from queryengine.manifest import Column
from queryengine.values import select_list

#: The values of a statement's parameters, as DuckDB accepts them.
Values = list[Any] | dict[str, Any] | None

#: Batches are joined up to this number of rows, and up to `BATCH_BYTES`. The first batch is not held back.
BATCH_ROWS = 20_000

#: The maximum size of a small result in rows and in bytes (as record batches and as text), and the maximum computation
#: time in seconds.
SMALL_ROWS = 100
SMALL_BYTES = 64 * 1024
SMALL_S = 0.1

#: DuckDB puts a projected statement into a subquery that begins on the third line, which shifts line numbers in errors.
_LINES_BEFORE_PROJECTED = 2

#: The maximum number of statements that stay bound on a cursor.
_MAX_BOUND = 16

#: The gate's form of an EXPLAIN that would run its statement.
_EXPLAIN_ANALYZE = re.compile(r"\AEXPLAIN \(ANALYZE(?:, FORMAT \w+)?\)\n")


class Reader:
    """
    The rows of one statement as Arrow record batches, in engine order. The caller closes the reader.

    A small result may already be encoded, in `encoded`. Only one thread may use a reader. Other threads may use its
    `Interruption`.
    """

    columns: tuple[Column, ...]  # the names and DuckDB types of the result, before any projection
    schema: pa.Schema

    def __init__(
        self,
        cursors: Cursors,
        statistics: Statistics,
        interruption: Interruption,
        *,
        shared: bool = False,
        database: str = "runtime",
    ) -> None:
        """
        Take a cursor in *database* and attach it to *interruption*. `fetch` or `start` runs a statement.

        A *shared* cursor may have run other statements, and may run others afterwards.
        """
        self._cursors = cursors
        self._cursor = cursors.take(shared=shared, database=database)
        self._database = database
        self._statistics = statistics
        self._interruption = interruption
        self._shared = shared
        self._batches: pa.RecordBatchReader | None = None
        self._learn: Callable[[Pace], None] | None = None
        self._pace = Pace()
        self._first: deque[pa.RecordBatch] = deque()
        self._lines_before = 0
        self._ended = False
        self._is_explain = False
        self._lock = threading.Lock()
        self._interrupted = False
        self._closed = False
        self.is_complete = False  # whether all rows have been computed
        #: A complete, encoded result, its number of rows, and the milliseconds that encoding took.
        self.encoded: tuple[bytes, int, float] | None = None
        self._interruption.attach(self.interrupt)

    def fetch(self, statement: GatedStatement, values: Values, encoding: Encoding) -> bool:
        """
        Run *statement* to its end, and set `encoded`, or keep the rows if *encoding* needs record batches.

        Return False if the result is not small, or has no small form in *encoding*.

        Raises:
            QueryError: See `EngineInstance.run`.
        """
        try:
            self._cursor.begin()
            self._interruption.check()
            result = self._execute(self._cursor.connection.execute, statement.sql, values)
            plan = small_rows.plan(
                tuple([Column(name=self._shown(name), type=str(type_)) for name, type_, *_ in result.description])
            )
            if plan is None or (rows := _small_rows(result)) is None:
                return False
            self.columns = plan.columns
            if encoding not in small_rows.ENCODINGS:
                self.schema = self._statistics.schema(self.columns, lambda: self._bind(statement.sql, values).relation)
        except duckdb_errors.ENGINE_ERRORS as exc:
            raise self._failure(exc) from exc
        self._ended = self.is_complete = True
        with suppress(small_rows.UnsureError):
            if encoding in small_rows.ENCODINGS:
                began = time.perf_counter()
                text = plan.encode(encoding, rows)
                self.encoded = text, len(rows), (time.perf_counter() - began) * 1000
                return len(text) <= SMALL_BYTES
            if small_rows.fit_batch(self.schema):  # Statements of one pattern may have different column types.
                self._first.extend([small_rows.batch(self.columns, self.schema, rows)] if rows else ())
                return sum([int(batch.nbytes) for batch in self._first]) <= SMALL_BYTES
        return False

    def start(self, statement: GatedStatement, values: Values) -> None:
        """
        Run *statement* until its first rows, or all rows, are computed.

        Raises:
            QueryError: See `EngineInstance.run`.
        """
        sizes = self._statistics.batch_sizes
        self._lines_before = -statement.lines_before
        try:
            self._is_explain = statement.kind == "explain"
            if self._is_explain:
                self._cursor.connection.execute(explained.METRICS)
            self._cursor.begin()
            is_repeatable = self._shared and not statement.parameters
            bound = self._cursor.bound.get(statement.sql) if is_repeatable else None
            if bound is None:
                bound = self._bind(statement.sql, values)
                if is_repeatable and len(self._cursor.bound) < _MAX_BOUND:
                    self._cursor.bound[statement.sql] = bound
            self.columns = bound.columns
            self._lines_before += bound.lines_before
            self._interruption.check()
            began = time.perf_counter()
            batch_rows = sizes.get(statement.sql, VECTOR_ROWS) if is_repeatable else VECTOR_ROWS
            self._batches = bound.relation.to_arrow_reader(batch_rows)
            self._pace.add(0, time.perf_counter() - began)  # to_arrow_reader sorts, groups and joins
        except duckdb_errors.ENGINE_ERRORS as exc:
            raise self._failure(self._with_line(exc, statement.sql, values)) from exc
        self.schema = self._batches.schema
        if is_repeatable:
            self._learn = partial(sizes.learn, statement.sql, bound.relation, self.schema)
        rows = size = 0
        while rows < VECTOR_ROWS and size < BATCH_BYTES:  # enough to begin the response
            if (batch := self._pull()) is None:
                self.is_complete = True
                break
            self._first.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        # Learn whether `fetch` would have been sufficient.
        if (
            self._shared
            and self.is_complete
            and rows <= SMALL_ROWS
            and self._pace.spent_s <= SMALL_S
            and size <= SMALL_BYTES
            and small_rows.plan(self.columns) is not None
        ):
            self._statistics.small_texts.learn(statement.pattern, small=True)
            if small_rows.fit_batch(self.schema):
                self._statistics.small_batches.learn(statement.pattern, small=True)

    def describe(self, statement: GatedStatement, values: Values, *, unbound: bool) -> pa.Schema | None:
        """
        Set `columns` and return the schema that the batches of *statement* would have.

        With *unbound*, *values* are placeholders for missing values. The result is None if the schema depends on them.

        Raises:
            QueryError: See `EngineInstance.describe`.
        """
        sql = _EXPLAIN_ANALYZE.sub("EXPLAIN\n", statement.sql) if statement.kind == "explain" else statement.sql
        self._lines_before = -statement.lines_before
        try:
            self._cursor.begin()
            if unbound and statement.kind in ("select", "show"):
                # PREPARE knows that values are missing, and reports only errors that no value could correct.
                self._lines_before += _LINES_BEFORE_PROJECTED
                self._cursor.connection.execute(f"PREPARE described AS\n\n{sql}")
                self._cursor.connection.execute("DEALLOCATE described")
                self._lines_before -= _LINES_BEFORE_PROJECTED
            self._interruption.check()
        except duckdb_errors.ENGINE_ERRORS as exc:
            raise self._failure(exc) from exc
        with suppress(*[StatementError] * unbound):
            try:
                bound = self._bind(sql, values)
                self.columns = bound.columns
                self._lines_before += bound.lines_before
                schema = self._statistics.schema(self.columns, lambda: bound.relation)
            except duckdb_errors.ENGINE_ERRORS as exc:
                raise self._failure(self._with_line(exc, sql, values)) from exc
            self._ended = True
            return schema
        return None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """
        Yield the batches: the first ones immediately, later ones joined up to `BATCH_ROWS` or `BATCH_BYTES`.

        Raises:
            QueryError: The statement failed, was stopped or ran out of resources before its end.
        """
        while self._first:
            yield self._first.popleft()
        held: list[pa.RecordBatch] = []
        rows = size = 0
        while (batch := self._pull()) is not None:
            batch_bytes = batch.get_total_buffer_size()
            if held and (rows + batch.num_rows > BATCH_ROWS or size + batch_bytes > BATCH_BYTES):
                yield _joined(held)
                held.clear()
                rows = size = 0
            held.append(batch)
            rows += batch.num_rows
            size += batch_bytes
        if held:
            yield _joined(held)
        learn, self._learn = self._learn, None
        batches, self._batches = self._batches, None
        if learn is not None and batches is not None and self._ended:
            try:
                batches.close()
                self._interruption.check()
                learn(self._pace)
            except (*duckdb_errors.ENGINE_ERRORS, QueryError):
                self._shared = False  # All rows were read, but the transaction may be unusable.

    def interrupt(self) -> None:
        """Interrupt DuckDB's current computation. Harmless after `close`."""
        with self._lock:
            if not self._closed:
                self._interrupted = True
                self._cursor.connection.interrupt()

    def close(self) -> None:
        """Stop the statement if it is still running, and return the cursor. Repeated calls are harmless."""
        self._interruption.detach()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._ended:
                # DuckDB finishes its current step before it closes a stream. A step that finds no more rows can take
                # hours.
                self._cursor.connection.interrupt()
        batches, self._batches = self._batches, None
        with suppress(*duckdb_errors.ENGINE_ERRORS):
            if batches is not None:
                batches.close()
            if self._shared and self._ended and not self._interrupted and self._cursors.keep(self._cursor):
                return
            self._cursor.connection.execute("ROLLBACK")
        self._cursor.connection.close()

    def _bind(self, sql: str, values: Values) -> BoundStatement:
        self._interruption.check()
        relation: duckdb.DuckDBPyRelation = self._execute(
            lambda query, params=None: self._cursor.connection.sql(query, params=params), sql, values
        )
        names = [self._shown(name) for name in relation.columns]
        columns = tuple(Column(name=n, type=str(t)) for n, t in zip(names, relation.types, strict=True))
        projection = select_list(zip(names, map(str, relation.types), strict=True), renamed=names != relation.columns)
        if projection is not None:
            return BoundStatement(relation.project(projection), columns, _LINES_BEFORE_PROJECTED)
        return BoundStatement(relation, columns, 0)

    def _shown(self, name: str) -> str:
        """Return the *name* of a column. DuckDB names some after an expression, in which tables have a database."""
        return name if self._database == "runtime" else name.replace(f"{self._database}.", "runtime.")

    def _execute(self, method: Callable[..., Any], sql: str, values: Values) -> Any:
        """Call *method* of the cursor's connection with *sql* and *values*."""
        query: str | duckdb.Statement = sql
        if self._shared:
            found = self._cursor.connection.extract_statements(sql)
            if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
                raise StatementNotAllowedError("This statement is not a single query.")
            query = found[0]
        if values is None:
            return method(query)
        try:
            return method(query, values)
        except (duckdb.Error, TypeError, ValueError) as exc:
            if isinstance(exc, duckdb.Error) and not duckdb_errors.is_about_parameters(exc):
                raise
            sentence = duckdb_errors.sentence(exc, self._cursors.state_dir)
            # Hide messages about Python and its types from the caller.
            raise ParameterError(UNKNOWN_TYPE if "python" in sentence.lower() else sentence) from exc

    def _pull(self) -> pa.RecordBatch | None:
        try:
            if self._batches is None:  # `fetch` has read all rows. Its own time limit no longer matters.
                return None
            self._interruption.check()
            began = time.perf_counter()
            batch = self._batches.read_next_batch()
        except StopIteration:
            self._ended = True
            return None
        except duckdb_errors.ENGINE_ERRORS as exc:
            raise self._failure(exc) from exc
        self._pace.add(batch.num_rows, time.perf_counter() - began)
        return explained.without_bytes(batch) if self._is_explain else batch

    def _with_line(self, exc: BaseException, sql: str, values: Values) -> BaseException:
        """Return *exc* with the line of *sql* that cannot be planned. DuckDB omits the line for a relation."""
        if duckdb_errors.lacks_line(exc):
            try:
                self._cursor.connection.execute(f"EXPLAIN\n{sql}", values)
            except duckdb_errors.ENGINE_ERRORS as other:
                if str(other).startswith(str(exc)):
                    self._lines_before += 1
                    return other
        return exc

    def _failure(self, exc: BaseException) -> Exception:
        self._interruption.check()  # The reason for a stop is more informative than DuckDB's message.
        return self._cursors.failure(exc, lines_before=self._lines_before)


def _small_rows(result: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]] | None:
    """
    Return all rows of *result*; None if there are too many or if they are too long.

    The length is limited because long strings use much memory as Python objects.
    """
    rows: list[tuple[Any, ...]] = []
    size = 0
    while (row := result.fetchone()) is not None:
        size += sum([len(value) for value in row if isinstance(value, str | bytes)])
        if len(rows) == SMALL_ROWS or size > SMALL_BYTES:
            return None
        rows.append(row)
    return rows


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
