"""
A session on the engine: today a locked DuckDB instance over the snapshots of one manifest.

The instance is made once per manifest generation and never changes: snapshots are attached read-only under hidden
names, each declared dataset is a view `runtime.main.<dataset>`, the views of the YAML follow, then access to files
and settings is closed for good. What may run at all is the gate's decision, not this module's.

A statement runs on a cursor of its own, inside a read-only transaction that is rolled back, so nothing it does survives
it. Making these takes longer than a small query itself. So a short query that cannot leave anything behind, because it
is plain (see `GatedStatement`) and DuckDB also takes it for one query, leaves its cursor and transaction to the next
such query when it came to its end in peace. That goes on for `_SHARED_S`: the data never changes, but what in DuckDB
looks at the clock without saying so sees the time at which its transaction began.

A session on another engine has the same shape: `open` for a generation, `run` a statement to a reader, interrupt it
through its `Interruption`, `close`.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from queryengine.cancellation import Interruption, Watchdog
from queryengine.encoders import small_batch, small_rows
from queryengine.engine import ArrowParameters, Encoding, GatedStatement, Parameters
from queryengine.errors import (
    DatasetNotLoadedError,
    EngineUnavailableError,
    ParameterError,
    QueryCancelledError,
    QueryError,
    SqlError,
    StatementError,
    StatementNotAllowedError,
)
from queryengine.execution import duckdb_errors, macros
from queryengine.execution.arrow_parameters import from_arrow
from queryengine.execution.duckdb_threads import Threads
from queryengine.execution.parameters import UNKNOWN_TYPE, bind, nulls
from queryengine.execution.small_results import BRIEF_BYTES, BRIEF_ROWS, BRIEF_S, BriefAnswers, brief_rows
from queryengine.execution.streamed_results import BATCH_BYTES, VECTOR_ROWS, LongAnswers, Pace
from queryengine.execution.views import GatedView
from queryengine.manifest import Column, Manifest, Snapshot, snapshot_path
from queryengine.values import quoted, select_list
from runtimeconf.model import QueryConfig, RuntimeConfig

logger = logging.getLogger(__name__)

#: DuckDB puts a projected statement into a subquery that begins on the third line, and counts from there in errors.
_LINES_BEFORE_PROJECTED = 2

#: What stands before a statement of which only the error is asked for.
_LINES_BEFORE_EXPLAINED = 1

#: What a reader joins batches to, besides `BATCH_BYTES`. The first batch is not held back.
BATCH_ROWS = 20_000

#: How long queries share a cursor, in seconds, and how many cursors wait for the next query.
_SHARED_S = 1.0
_IDLE_CURSORS = 8

#: How many statements stay bound on a cursor.
_MOST_BOUND = 16

#: The longest text that shares a cursor, in characters: DuckDB holds the interpreter while it parses it.
_SHARED_CHARACTERS = 1000


#: The Arrow fields of rows of DuckDB types, of so many kinds of rows at most, and none with longer types.
_KEPT_TYPES = 256
_KEPT_TYPES_CHARACTERS = 2000

#: The part of the time limit after which a brief answer is given up, and the most that this is, in seconds.
_BRIEF_PART = 0.1
_MOST_BRIEF_S = 1.0

#: What the system says when a process has opened as many files as it may, or all processes together.
_WANT_OF_DESCRIPTORS = os.strerror(errno.EMFILE)

#: How the gate writes an EXPLAIN that would run its statement.
_NOT_ANALYZED = re.compile(r"\AEXPLAIN \(ANALYZE(?:, FORMAT \w+)?\)\n")


@dataclass(frozen=True, slots=True)
class _Bound:
    """A statement as a relation that Arrow can hold, and the names and DuckDB types of its columns before that."""

    relation: duckdb.DuckDBPyRelation
    columns: tuple[Column, ...]
    lines_before: int


@dataclass(eq=False, slots=True)
class Cursor:
    """
    A cursor of DuckDB with its transaction, which began at `begun_s` (`time.monotonic`), and what was bound in it.

    Nothing that a name stands for changes in the transaction, so a statement without parameters is bound in it once.
    """

    connection: duckdb.DuckDBPyConnection
    begun_s: float | None = None
    bound: dict[str, _Bound] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BriefAnswer:
    """All of an answer, encoded, with the number of its rows and the time that the encoding took."""

    text: bytes
    rows: int
    encode_ms: float


class SnapshotGoneError(Exception):
    """A snapshot of the manifest is not there: a newer manifest has taken its place, or somebody removed the file."""


class Reader:
    """
    The rows of one statement as Arrow record batches, in engine order. The caller closes it.

    A brief answer may be complete in `answer` instead. One thread at a time; only the `Interruption` it was made with
    is for others.
    """

    columns: tuple[Column, ...]  # the names and DuckDB types of the result, before any projection
    schema: pa.Schema
    short: bool  # whether all rows are here already
    answer: BriefAnswer | None

    def __init__(
        self,
        session: EngineInstance,
        cursor: Cursor,
        interruption: Interruption,
        *,
        shared: bool = False,
    ) -> None:
        """
        Own *cursor*, and let *interruption* stop what happens on it. `start` runs a statement.

        Args:
            session: Where the cursor comes from.
            cursor: New, or from another reader that kept it.
            interruption: Stops the statement.
            shared: Whether the cursor may be kept for another reader.
        """
        self._session = session
        self._cursor = cursor
        self._interruption = interruption
        self._shared = shared
        self._batches: pa.RecordBatchReader | None = None
        self._learn: Callable[[Pace], None] | None = None
        self._pace = Pace()
        self._ahead: deque[pa.RecordBatch] = deque()
        self._lines_before = 0
        self._ended = False
        self._lock = threading.Lock()
        self._interrupted = False
        self._closed = False
        self.short = False
        self.answer = None
        self._interruption.attach(self.interrupt)

    def fetch(
        self, statement: GatedStatement, parameters: list[Any] | dict[str, Any] | None, encoding: Encoding
    ) -> bool:
        """
        Run *statement* to its end, and set `answer`, or the rows if *encoding* is made of record batches.

        False when that is not brief, or not for this *encoding*.

        Raises:
            QueryError: See `EngineInstance.run`.
        """
        try:
            self._begin()
            self._interruption.check()
            result = self._run(self._cursor.connection.execute, statement.sql, parameters)
            plan = small_rows.plan(
                tuple([Column(name=name, type=str(type_)) for name, type_, *_ in result.description])
            )
            rows = None if plan is None else brief_rows(result)
            if plan is None or rows is None:
                return False
            self.columns = plan.columns
            if encoding not in small_rows.ENCODINGS:
                self.schema = self._schema(lambda: self._bind(statement.sql, parameters).relation)
        except duckdb_errors.ENGINE_ERRORS as exc:
            raise self._failure(exc) from exc
        self._ended = self.short = True
        try:
            return self._wrote(plan, encoding, rows)
        except small_rows.UnsureError:
            return False

    def _wrote(self, plan: small_rows.Plan, encoding: Encoding, rows: Sequence[tuple[Any, ...]]) -> bool:
        """Write *rows*, or keep them as a batch if *encoding* is made of these; False if that cannot be, or is long."""
        if encoding not in small_rows.ENCODINGS:
            if not small_batch.fits(self.schema):  # Statements of one pattern may have columns of other types.
                return False
            if rows:
                self._ahead.append(small_batch.batch(self.columns, self.schema, rows))
            return sum([int(batch.nbytes) for batch in self._ahead]) <= BRIEF_BYTES
        began = time.perf_counter()
        text = plan.encode(encoding, rows)
        self.answer = BriefAnswer(text, len(rows), (time.perf_counter() - began) * 1000)
        return len(text) <= BRIEF_BYTES

    def start(self, statement: GatedStatement, parameters: list[Any] | dict[str, Any] | None) -> None:
        """
        Run *statement* until its first rows are there, or its end.

        Raises:
            QueryError: See `EngineInstance.run`.
        """
        known = self._session.long_answers
        self._lines_before = -statement.lines_before
        try:
            self._begin()
            lasting = self._shared and not statement.parameters
            bound = self._bound_before(statement.sql) if lasting else self._bind(statement.sql, parameters)
            self.columns = bound.columns
            self._lines_before += bound.lines_before
            self._interruption.check()
            began = time.perf_counter()
            self._batches = bound.relation.to_arrow_reader(known.batch_rows(statement.sql) if lasting else VECTOR_ROWS)
            self._pace.add(0, time.perf_counter() - began)  # which sorts, groups and joins
        except duckdb_errors.ENGINE_ERRORS as exc:
            raise self._failure(self._with_place(exc, statement.sql, parameters)) from exc
        self.schema = self._batches.schema
        if lasting:
            self._learn = partial(known.learn, statement.sql, bound.relation, self.schema)
        self._look_ahead()
        if self._shared and self._is_brief():
            self._session.brief_answers.learn(statement.pattern, brief=True)
            if small_batch.fits(self.schema):
                self._session.brief_batches.learn(statement.pattern, brief=True)

    def describe(
        self, statement: GatedStatement, parameters: list[Any] | dict[str, Any] | None, *, unbound: bool
    ) -> pa.Schema | None:
        """
        Set `columns` and return the schema that the batches of *statement* would have.

        *unbound* says that *parameters* only stand for values to come: None when the schema depends on them.

        Raises:
            QueryError: See `EngineInstance.describe`.
        """
        sql = _NOT_ANALYZED.sub("EXPLAIN\n", statement.sql) if statement.kind == "explain" else statement.sql
        self._lines_before = -statement.lines_before
        try:
            self._begin()
            if unbound and statement.kind in ("select", "show"):
                # It knows that values are missing, and complains only of what no value could mend.
                self._lines_before += _LINES_BEFORE_PROJECTED
                self._cursor.connection.execute(f"PREPARE described AS\n\n{sql}")
                self._cursor.connection.execute("DEALLOCATE described")
                self._lines_before -= _LINES_BEFORE_PROJECTED
            self._interruption.check()
        except duckdb_errors.ENGINE_ERRORS as exc:
            raise self._failure(exc) from exc
        try:
            try:
                bound = self._bind(sql, parameters)
                self.columns = bound.columns
                self._lines_before += bound.lines_before
                schema = self._schema(lambda: bound.relation)
            except duckdb_errors.ENGINE_ERRORS as exc:
                raise self._failure(self._with_place(exc, sql, parameters)) from exc
        except StatementError:
            if unbound:
                return None
            raise
        self._ended = True
        return schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """
        Give the batches: the first as soon as there is one, later ones joined to `BATCH_ROWS` or `BATCH_BYTES` at most.

        Raises:
            QueryError: The statement failed, was stopped or ran out of resources under way.
        """
        while self._ahead:
            yield self._ahead.popleft()
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
        self._learn_from_it()

    def interrupt(self) -> None:
        """Make the engine give up what it computes now, if it looks. Harmless after `close`."""
        with self._lock:
            if not self._closed:
                self._interrupted = True
                self._cursor.connection.interrupt()

    def close(self) -> None:
        """Stop the statement if it still runs, and give the cursor back. More than one call is harmless."""
        self._interruption.detach()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._ended:
                # Before it lets go of a stream DuckDB ends the step it is in: for hours, where no more rows are found.
                self._interrupted = True
                self._cursor.connection.interrupt()
        batches, self._batches = self._batches, None
        with suppress(*duckdb_errors.ENGINE_ERRORS):
            if batches is not None:
                batches.close()
            in_peace = self._ended and not self._interrupted
            if self._shared and in_peace and self._session.keep(self._cursor):
                return
            self._cursor.connection.execute("ROLLBACK")
        self._cursor.connection.close()

    def _learn_from_it(self) -> None:
        """Learn from an answer that came to its end; what stops the statement stops this too."""
        learn, self._learn = self._learn, None
        batches, self._batches = self._batches, None
        if learn is None or batches is None or not self._ended:
            return
        try:
            batches.close()
            self._interruption.check()
            learn(self._pace)
        except (*duckdb_errors.ENGINE_ERRORS, QueryError):
            self._shared = False  # All rows are there, but who knows how the transaction is.

    def _begin(self) -> None:
        if self._cursor.begun_s is None:
            self._cursor.begun_s = time.monotonic()
            self._cursor.connection.execute("USE runtime")
            self._cursor.connection.execute("BEGIN TRANSACTION READ ONLY")

    def _bound_before(self, sql: str) -> _Bound:
        """As `_bind` without parameters; a reader that had the cursor before may have done it."""
        known = self._cursor.bound
        bound = known.get(sql)
        if bound is None:
            bound = self._bind(sql, None)
            if len(known) < _MOST_BOUND:
                known[sql] = bound
        return bound

    def _bind(self, sql: str, parameters: list[Any] | dict[str, Any] | None) -> _Bound:
        relation = self._relation(sql, parameters)
        types = [str(type_) for type_ in relation.types]
        columns = tuple(Column(name=name, type=type_) for name, type_ in zip(relation.columns, types, strict=True))
        projection = select_list((column.name, column.type) for column in columns)
        if projection is None:
            return _Bound(relation, columns, 0)
        return _Bound(relation.project(projection), columns, _LINES_BEFORE_PROJECTED)

    def _schema(self, relation: Callable[[], duckdb.DuckDBPyRelation]) -> pa.Schema:
        """Return the Arrow schema of a *relation* with `columns`. It follows from their types, and is remembered."""
        types = tuple(column.type for column in self.columns)
        known = self._session.known_fields
        fields = known.get(types)
        if fields is None:
            fields = tuple(relation().limit(0).to_arrow_table().schema)
            if len(known) < _KEPT_TYPES and sum(map(len, types)) <= _KEPT_TYPES_CHARACTERS:
                known[types] = fields
        return pa.schema([field.with_name(column.name) for field, column in zip(fields, self.columns, strict=True)])

    def _relation(self, sql: str, parameters: list[Any] | dict[str, Any] | None) -> duckdb.DuckDBPyRelation:
        self._interruption.check()

        def run(query: str | duckdb.Statement, values: Any = None) -> duckdb.DuckDBPyRelation:
            return self._cursor.connection.sql(query, params=values)

        relation: duckdb.DuckDBPyRelation = self._run(run, sql, parameters)
        return relation

    def _run(self, run: Callable[..., Any], sql: str, parameters: list[Any] | dict[str, Any] | None) -> Any:
        """Have *run*, a method of the cursor's connection, take *sql* with *parameters*."""
        query: str | duckdb.Statement = sql
        if self._shared:
            found = self._cursor.connection.extract_statements(sql)
            if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
                raise StatementNotAllowedError("This statement is not one query.")
            query = found[0]
        if parameters is None:
            return run(query)
        try:
            return run(query, parameters)
        except (duckdb.Error, TypeError, ValueError) as exc:
            if isinstance(exc, duckdb.Error) and not duckdb_errors.is_about_parameters(exc):
                raise
            sentence = duckdb_errors.sentence(exc, self._session.state_dir)
            # Our language is nothing to the caller, nor are the names that it has for types.
            raise ParameterError(UNKNOWN_TYPE if "python" in sentence.lower() else sentence) from exc

    def _look_ahead(self) -> None:
        """Take the first rows: enough to answer with, or all there are."""
        rows = size = 0
        while rows < VECTOR_ROWS and size < BATCH_BYTES:
            batch = self._pull()
            if batch is None:
                self.short = True
                return
            self._ahead.append(batch)
            rows += batch.num_rows
            size += batch.nbytes

    def _is_brief(self) -> bool:
        """Say whether `fetch` would have done as well."""
        return (
            self.short
            and self._pace.rows <= BRIEF_ROWS
            and self._pace.spent_s <= BRIEF_S
            and sum(batch.nbytes for batch in self._ahead) <= BRIEF_BYTES
            and small_rows.plan(self.columns) is not None
        )

    def _pull(self) -> pa.RecordBatch | None:
        try:
            self._interruption.check()
            if self._batches is None:
                return None
            began = time.perf_counter()
            batch = self._batches.read_next_batch()
        except StopIteration:
            self._ended = True
            return None
        except duckdb_errors.ENGINE_ERRORS as exc:
            raise self._failure(exc) from exc
        self._pace.add(batch.num_rows, time.perf_counter() - began)
        return batch

    def _with_place(self, exc: BaseException, sql: str, parameters: list[Any] | dict[str, Any] | None) -> BaseException:
        """Return *exc* with the line of *sql* that could not be planned, which DuckDB leaves out for a relation."""
        if duckdb_errors.lacks_place(exc):
            try:
                self._cursor.connection.execute(f"EXPLAIN\n{sql}", parameters)
            except duckdb_errors.ENGINE_ERRORS as placed:
                if str(placed).startswith(str(exc)):
                    self._lines_before += _LINES_BEFORE_EXPLAINED
                    return placed
        return exc

    def _failure(self, exc: BaseException) -> Exception:
        self._interruption.check()  # Who stopped it knows the reason better than what DuckDB says then.
        return self._session.failure(exc, lines_before=self._lines_before)


@dataclass(frozen=True, slots=True)
class UnfitView:
    """A view that does not fit the data: where it stands in the YAML, and the engine's reason."""

    yaml_path: str
    reason: str


class EngineInstance:
    """
    A locked DuckDB instance over the snapshots of *manifest*, private to this object.

    `broken` is True once DuckDB reported a state that no further statement should trust.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, config: RuntimeConfig, manifest: Manifest, scratch: Path
    ) -> None:
        """Wrap *connection*; `open` is what makes instances."""
        self.generation = manifest.generation
        self.state_dir = config.state_dir
        self.broken = False
        self._connection = connection
        self._config = config
        self._scratch = scratch
        self._snapshots = {snapshot.dataset.lower(): snapshot for snapshot in manifest.snapshots}
        #: The datasets that each view reads, by names in lower case.
        self._datasets_of: dict[str, frozenset[str]] = {}
        #: Why a declared name cannot be read now: not loaded yet, or its snapshot is unusable.
        self._unavailable: dict[str, str] = {}
        #: Why a view cannot be read at all: its SQL does not fit the data that is there.
        self._faulty: dict[str, str] = {}
        #: The views that were found not to fit, by name; not those that only read one of them.
        self.unfit_views: dict[str, UnfitView] = {}
        #: Views that are not plain: a query of one does not share its cursor.
        self._unsteady: set[str] = set()
        self._lock = threading.Lock()
        self.long_answers = LongAnswers()
        self.brief_answers = BriefAnswers()  # those that are text
        self.brief_batches = BriefAnswers()  # and the others
        self.known_fields: dict[tuple[str, ...], tuple[pa.Field, ...]] = {}
        #: None where statements run side by side: the number is that of the whole instance.
        self._threads = Threads(len(os.sched_getaffinity(0)), self._set_threads) if config.query.workers == 1 else None
        self._idle: deque[Cursor] = deque()
        self._closed = False

    @classmethod
    def open(
        cls,
        config: RuntimeConfig,
        manifest: Manifest,
        views: Sequence[GatedView],
        scratch: Path,
        *,
        tolerant: bool = False,
    ) -> EngineInstance:
        """
        Attach, define and lock.

        *views* are in an order in which each reads only earlier ones; *scratch* is a directory of this instance's own
        for what it spills. With *tolerant*, a snapshot that is gone or unreadable makes its dataset alone unavailable.

        Raises:
            SnapshotGoneError: A snapshot is gone or unreadable, and not *tolerant*.
            EngineUnavailableError: DuckDB cannot start, or may not open so many files.
        """
        try:
            with ExitStack() as undo:
                connection = duckdb.connect(":memory:", config=_settings(config.query, scratch))
                instance = cls(connection, config, manifest, scratch)
                undo.callback(instance.close)
                instance._define(views, tolerant=tolerant)
                undo.pop_all()
                return instance
        except duckdb.Error as exc:
            logger.exception("engine cannot start")
            raise EngineUnavailableError("The engine cannot start.") from exc

    def run(
        self,
        statement: GatedStatement,
        parameters: Parameters | None,
        interruption: Interruption,
        *,
        encoding: Encoding | None = None,
        watchdog: Watchdog | None = None,
    ) -> Reader:
        """
        Run one statement that the gate let through, and wait for its first rows. The caller closes the reader.

        With a *watchdog*, a brief answer may be fetched as Python values; in an *encoding* of `small_rows.ENCODINGS` it
        then comes encoded, in `Reader.answer`.

        Raises:
            ParameterError: *parameters* do not fit the statement.
            DatasetNotLoadedError: A dataset it reads has no data yet.
            EngineUnavailableError: The engine failed.
            StatementError: It is wrong, or fails on the data.
            ResourceLimitError: Memory or temporary space is used up.
            QueryTimeoutError: DuckDB's own clock ran out.
            QueryError: *interruption* was stopped; its reason.
        """
        values = _values(statement, parameters)
        self._require(statement.relations)
        if self._threads is None:
            return self._run(statement, values, interruption, encoding, watchdog)
        self._threads.begin(statement.pattern)
        reader = self._run(statement, values, interruption, encoding, watchdog)
        self._threads.learn(statement.pattern, whole=reader.short)
        return reader

    def describe(
        self, statement: GatedStatement, parameters: Parameters | None, interruption: Interruption
    ) -> tuple[tuple[Column, ...], pa.Schema] | None:
        """
        Return the columns and the schema that the reader of `run` would have; None when they depend on values to come.

        Without *parameters*, a statement that takes some is described as far as that goes.

        Raises:
            QueryError: As `run`.
        """
        unbound = bool(statement.parameters) and parameters is None
        values = nulls(statement.parameters) if unbound else _values(statement, parameters)
        self._require(statement.relations)
        shared = not unbound and self._may_share(statement)
        with closing(Reader(self, self._take(shared=shared), interruption, shared=shared)) as reader:
            schema = reader.describe(statement, values, unbound=unbound)
            return None if schema is None else (reader.columns, schema)

    def keep(self, cursor: Cursor) -> bool:
        """Take back *cursor*, in its transaction, for another query; False when it is not wanted."""
        with self._lock:
            if self._closed or self.broken or len(self._idle) == _IDLE_CURSORS:
                return False
            self._idle.append(cursor)
            return True

    def failure(self, exc: BaseException, *, lines_before: int = 0) -> Exception:
        """Translate what DuckDB raised, and remember when no further statement should trust this instance."""
        if duckdb_errors.fault_of(exc) in {duckdb_errors.Fault.BROKEN, duckdb_errors.Fault.DATA}:
            self.broken = True
        return duckdb_errors.translate(exc, self._config.query, self.state_dir, lines_before=lines_before)

    def close(self) -> None:
        """Free the snapshots' files and the space it spilled to. Readers must be closed before."""
        with self._lock:
            self._closed = True
            for cursor in self._idle:
                cursor.connection.close()
            self._idle.clear()
        self._connection.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def is_steady(self, statement: GatedStatement) -> bool:
        """Say whether its parameters and the data alone decide the answer of *statement*."""
        return statement.plain and self._unsteady.isdisjoint(statement.relations)

    def finds_the_same(self, statement: GatedStatement, snapshots: Mapping[str, Snapshot]) -> bool:
        """Say whether *statement* reads here what it would over *snapshots*, given by dataset in lower case."""
        return self.is_steady(statement) and all(
            _file(self._snapshots.get(dataset)) == _file(snapshots.get(dataset))
            for dataset in self._read_by(statement.relations)
        )

    def holds_superseded(self, snapshots: Mapping[str, Snapshot]) -> bool:
        """Say whether a file is open here that is not among *snapshots*, given by dataset in lower case."""
        return any(_file(snapshots.get(dataset)) != held.file for dataset, held in self._snapshots.items())

    def _read_by(self, relations: Iterable[str]) -> frozenset[str]:
        """Return the datasets that *relations* are or, being views, read."""
        return frozenset().union(*(self._datasets_of.get(name, {name}) for name in relations))

    def _run(
        self,
        statement: GatedStatement,
        values: list[Any] | dict[str, Any] | None,
        interruption: Interruption,
        encoding: Encoding | None,
        watchdog: Watchdog | None,
    ) -> Reader:
        shared = self._may_share(statement)
        if watchdog and encoding and shared and self._brief(encoding).expects(statement.pattern):
            fetched = self._fetched(statement, values, interruption, encoding, watchdog)
            if fetched is not None:
                return fetched
        reader = Reader(self, self._take(shared=shared), interruption, shared=shared)
        try:
            reader.start(statement, values)
        except BaseException:
            reader.close()
            raise
        return reader

    def _fetched(
        self,
        statement: GatedStatement,
        values: list[Any] | dict[str, Any] | None,
        interruption: Interruption,
        encoding: Encoding,
        watchdog: Watchdog,
    ) -> Reader | None:
        """
        Return a reader with all of the answer to *statement*; None when it is to be computed as record batches.

        It is stopped early, so that a statement that takes long is not run almost to its end twice within its time.
        """
        soon = Interruption()
        with ExitStack() as undo:
            interruption.attach(partial(soon.stop, QueryCancelledError))
            watchdog.watch(soon, min(_BRIEF_PART * self._config.query.timeout_s, _MOST_BRIEF_S))
            try:
                reader = Reader(self, self._take(shared=True), soon, shared=True)
                undo.callback(reader.close)
                if reader.fetch(statement, values, encoding):
                    undo.pop_all()
                    return reader
            except StatementError:
                return None  # It is at fault, and told so in the same words whatever ran before it.
            except QueryError:
                interruption.check()
                if not soon.stopped:
                    raise
            finally:
                watchdog.forget(soon)
                interruption.detach()
            self._brief(encoding).learn(statement.pattern, brief=False)
            return None

    def _brief(self, encoding: Encoding) -> BriefAnswers:
        return self.brief_answers if encoding in small_rows.ENCODINGS else self.brief_batches

    def _may_share(self, statement: GatedStatement) -> bool:
        """Say whether *statement* may run on a cursor on which others ran."""
        return len(statement.sql) <= _SHARED_CHARACTERS and self.is_steady(statement)

    def _take(self, *, shared: bool) -> Cursor:
        """Return a cursor, for a *shared* one perhaps one that others had."""
        oldest_s = time.monotonic() - _SHARED_S
        with self._lock:  # A cursor is made on the one connection that all threads share.
            while shared and self._idle:
                cursor = self._idle.pop()
                if cursor.begun_s is not None and cursor.begun_s > oldest_s:
                    return cursor
                cursor.connection.close()
            return Cursor(self._connection.cursor())

    def _set_threads(self, number: int) -> None:
        try:
            with self._lock:
                self._connection.execute(f"SET GLOBAL threads = {number}")
        except duckdb_errors.ENGINE_ERRORS as exc:
            raise self.failure(exc) from exc

    def _require(self, relations: frozenset[str]) -> None:
        for name in sorted(relations):
            if name in self._unavailable:
                raise DatasetNotLoadedError(self._unavailable[name])
            if name in self._faulty:
                raise SqlError(self._faulty[name])

    def _define(self, views: Sequence[GatedView], *, tolerant: bool) -> None:
        execute = self._connection.execute
        execute("ATTACH ':memory:' AS runtime")
        execute("USE runtime")
        execute("DETACH memory")  # The database that `connect` made: nobody is to see it, or find a place to write.
        execute("SET GLOBAL TimeZone = 'UTC'")  # whatever the machine's
        # Not among the settings of `connect`: DuckDB 2.0 shows it then, but does not keep to it.
        execute(f"SET max_temp_directory_size = '{self._config.query.temp_directory_limit_bytes}B'")
        self._define_datasets(tolerant=tolerant)
        execute("ATTACH ':memory:' AS _catalog (HIDDEN)")
        self._define_catalog()
        for definition in macros.definitions():
            execute(definition)
        for view in views:
            self._define_view(view)
        self._forget_blocks()
        # A clock that needs no thread of Python; it starts after ours, so it rings second. Opening is not timed.
        execute(f"SET GLOBAL max_execution_time = {max(1, round(self._config.query.timeout_s * 1000))}")
        if self._threads is not None:
            execute("SET allowed_configs = ['threads']")
        execute("SET enable_external_access = false")
        execute("SET lock_configuration = true")

    def _forget_blocks(self) -> None:
        """Free what was read to attach the snapshots, a block of 256 KiB of each: it would stay until there is need."""
        with suppress(duckdb.OutOfMemoryException):  # Then the limit is what it was.
            self._connection.execute("SET memory_limit = '1MB'")
        self._connection.execute(f"SET memory_limit = '{self._config.query.memory_limit_bytes}B'")

    def _define_catalog(self) -> None:
        """Make what the gate reads for `information_schema`: the same tables, with the declared names only."""
        datasets = ", ".join(["NULL", *(_text(dataset.name) for dataset in self._config.datasets)])
        table_type = f"if(table_name IN ({datasets}), 'BASE TABLE', 'VIEW') AS table_type"
        for view, selected, condition in (
            ("tables", f"* REPLACE ({table_type})", "table_catalog = 'runtime' AND table_schema = 'main'"),
            ("columns", "*", "table_catalog = 'runtime' AND table_schema = 'main'"),
            ("schemata", "*", "catalog_name = 'runtime' AND schema_name = 'main'"),
        ):
            source = f"information_schema.{view}"
            self._create_view(f"_catalog.main.{view}", f"FROM {source} SELECT {selected} WHERE {condition}")

    def _define_datasets(self, *, tolerant: bool) -> None:
        with ExitStack() as held:
            # All at once, in a fiftieth of the time that it takes to attach them: with refreshes coming faster than
            # that, one would be gone each time that it is tried.
            files = [self._held_file(dataset.name, held, tolerant=tolerant) for dataset in self._config.datasets]
            for number, (dataset, file) in enumerate(zip(self._config.datasets, files, strict=True)):
                if file is not None:
                    with file:
                        self._define_dataset(number, dataset.name, file.fileno(), tolerant=tolerant)

    def _held_file(self, name: str, held: ExitStack, *, tolerant: bool) -> io.FileIO | None:
        """Open the snapshot of the dataset *name*, so that it can be attached even if it is superseded before."""
        snapshot = self._snapshots.get(name.lower())
        if snapshot is None:
            self._unavailable[name.lower()] = f"Dataset '{name}' is not loaded yet."
            return None
        try:
            return held.enter_context(io.FileIO(snapshot_path(self.state_dir, snapshot)))
        except OSError as exc:
            self._refuse_file(name, snapshot, exc, tolerant=tolerant)
            return None

    def _define_dataset(self, number: int, name: str, descriptor: int, *, tolerant: bool) -> None:
        snapshot = self._snapshots[name.lower()]
        path = snapshot_path(self.state_dir, snapshot)
        try:
            try:
                self._attach(number, path)
            except duckdb.IOException:
                if path.exists():
                    raise
                self._attach(number, Path(f"/proc/self/fd/{descriptor}"))
            self._create_view(f"runtime.main.{quoted(name)}", f"FROM _s{number}.main.{quoted(snapshot.dataset)}")
        except duckdb.Error as exc:
            self._refuse_file(name, snapshot, exc, tolerant=tolerant)

    def _refuse_file(self, name: str, snapshot: Snapshot, exc: Exception, *, tolerant: bool) -> None:
        """Do without the *snapshot* that cannot be read for *exc*, or raise what that means."""
        if _WANT_OF_DESCRIPTORS in str(exc):  # It is there: who waits for it is told, and it is tried again.
            logger.error("too few file descriptors", extra={"fields": {"snapshots": len(self._snapshots)}})
            raise EngineUnavailableError("The system allows the engine too few open files.") from exc
        if not tolerant:
            raise SnapshotGoneError(snapshot.file) from exc
        fields = {"dataset": name, "snapshot": snapshot.file}
        logger.error("snapshot unusable", exc_info=exc, extra={"fields": fields})
        self._unavailable[name.lower()] = f"Dataset '{name}' cannot be read at the moment."

    def _attach(self, number: int, path: Path) -> None:
        self._connection.execute(f"ATTACH {_text(str(path))} AS _s{number} (READ_ONLY, HIDDEN)")

    def _define_view(self, view: GatedView) -> None:
        name = view.config.name
        self._datasets_of[name.lower()] = self._read_by(view.statement.relations)
        if not view.statement.plain or not self._unsteady.isdisjoint(view.statement.relations):
            self._unsteady.add(name.lower())
        for needed in sorted(view.statement.relations):
            if needed in self._unavailable:
                self._unavailable[name.lower()] = f"View '{name}' has no data yet: {self._unavailable[needed]}"
                return
            if needed in self._faulty:
                self._faulty[name.lower()] = f"View '{name}' cannot be read: {self._faulty[needed]}"
                return
        try:
            self._create_view(f"runtime.main.{quoted(name)}", view.statement.sql)
        except duckdb.Error as exc:
            # Without the excerpt: it would show our CREATE VIEW, and the author of the statement wrote neither.
            reason = duckdb_errors.sentence(exc, self.state_dir).partition("\n\nLINE ")[0]
            self.unfit_views[name] = UnfitView(view.config.yaml_path, reason)
            self._faulty[name.lower()] = f"View '{name}' does not fit the data: {reason}"

    def _create_view(self, name: str, sql: str) -> None:
        self._connection.execute(f"CREATE VIEW {name} AS {sql}")


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _settings(limits: QueryConfig, scratch: Path) -> dict[str, Any]:
    return {
        "threads": len(os.sched_getaffinity(0)),
        "async_threads": 1,  # They wait for files; eight, DuckDB's default, take the memory of their stacks.
        "memory_limit": f"{limits.memory_limit_bytes}B",
        "temp_directory": str(scratch),
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
    }


def _values(statement: GatedStatement, parameters: Parameters | None) -> list[Any] | dict[str, Any] | None:
    """Return *parameters* as DuckDB takes them for *statement*; raises ParameterError."""
    if isinstance(parameters, ArrowParameters):
        named = not all(name.isdecimal() for name in statement.parameters)
        return bind(statement.parameters, from_arrow(parameters.stream, named=named))
    return bind(statement.parameters, parameters)


def _file(snapshot: Snapshot | None) -> str | None:
    return None if snapshot is None else snapshot.file


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
