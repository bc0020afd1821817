"""
Takes one statement through the process that runs it: gate, session, encoder.

Engine workers and the in-process engine both run statements through a `StatementRunner`. Slots are assigned elsewhere:
by the broker before a worker gets a statement, or by the fair queue of the in-process engine.
"""

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from queryengine.bounded_dict import BoundedDict
from queryengine.cancellation import Interruption, Watchdog
from queryengine.encoders import encode_parts
from queryengine.encoders.arrow import answer_schema
from queryengine.engine import MAX_SPECULATIVE_BYTES, Answer, Description, GatedStatement, Query, QueryTimings
from queryengine.errors import EngineUnavailableError, QueryError
from queryengine.execution.instance import DuckDBBackend, limited
from queryengine.execution.parameters import ordered
from queryengine.execution.rule_gate import gated_or_unavailable
from queryengine.execution.session import Backend, ResultReader, Session
from queryengine.execution.session_manager import Lease, SessionManager
from queryengine.execution.statement_result import StatementResult
from queryengine.execution.views import gate_views
from queryengine.gate.arrays import refuse_views
from queryengine.gate.gate import Gate
from queryengine.key_catalog import KeyCatalog
from queryengine.manifest import Manifest
from runtimeconf.model import RuntimeConfig, Scope
from system import process_limits
from system.scratch import ScratchDirectory

#: Seconds that `close` waits for statements that were told to stop.
_CLOSE_S = 2.0

#: The maximum number of key scopes that are kept.
_SCOPES = 4096

#: A catalog name for the gate that stands for the catalog of any key.
_ANY_KEY = "_k"

#: Waits until an admitted statement has its execution slot.
WaitForSlot = Callable[[], None]

_stopping = partial(EngineUnavailableError, "The runtime is stopping: try again.")


class StatementRunner:
    """
    Runs statements over the published data. Create it only after any fork.

    Statements spill to the `scratch` directory.
    """

    def __init__(self, config: RuntimeConfig, backend: Backend | None = None, replaced: Path | None = None) -> None:
        """
        Check the views and open a session of *backend* (DuckDB by default) over the published data.

        *replaced* is the mark of an engine that another has replaced (see `SessionManager`).

        Raises:
            ConfigError: A view cannot be created.
            EngineReplacedError: The engine has been replaced.
            EngineUnavailableError: The engine cannot start.
        """
        process_limits.set_stack_size()  # for DuckDB's threads, and for the threads that will run statements
        self.closed = False
        self._newest: Session | None = None
        self._config = config
        self._serial = itertools.count(1)
        datasets = frozenset(dataset.name.lower() for dataset in config.datasets)
        with ExitStack() as undo:
            self._backend = backend or DuckDBBackend(config)
            undo.callback(self._backend.close)
            self._gate = self._backend.gate
            self._views = gate_views(config.views, datasets, self._gate, config.file)
            self._relations = datasets | {view.config.name.lower() for view in self._views}
            self._plain_views = frozenset(view.config.name.lower() for view in self._views)
            self._materialized = frozenset(one.name.lower() for one in config.datasets if one.view is not None)
            self._visible_in: BoundedDict[Scope, KeyCatalog] = BoundedDict(_SCOPES)
            self.scratch = ScratchDirectory(config.state_dir)
            undo.callback(self.scratch.close)
            self.sessions = SessionManager(config.state_dir, self._open, config.datasets, replaced)
            undo.callback(self.sessions.close, _CLOSE_S)
            self._watchdog = Watchdog()
            undo.pop_all()

    def run(
        self, query: Query, interruption: Interruption, held: ExitStack, wait_for_slot: WaitForSlot | None = None
    ) -> StatementResult:
        """
        Gate and start one statement, and wait for its first bytes. A small result is computed in full.

        Args:
            query: The statement.
            interruption: Stops the statement.
            held: Receives the resources that must be released when the statement ends. The result takes them over. If
                this method raises, the caller closes *held*.
            wait_for_slot: Called between the gate and the session.

        Raises:
            EngineReplacedError: The engine has been replaced, and the statement has not begun.
            QueryError: Any error of the tree in `queryengine.errors`.
        """
        timings = QueryTimings()
        with _noted_on_errors(timings):
            statement, lease, start = self._prepare(query, timings, interruption, held, wait_for_slot)
            reader = _started(start, timings, interruption, held)
            if reader.encoded is None:
                chunks = encode_parts(query.encoding, reader.columns, reader.schema, _counted(reader, timings))
            else:
                text, timings.rows, timings.encode_ms = reader.encoded
                timings.bytes = len(text)
                timings.run_ms -= timings.encode_ms
                chunks = iter(())
            result = StatementResult(chunks, timings, interruption, held.pop_all())
            if lease.session.is_cacheable(statement):
                result.data_version = lease.data_version
            if reader.encoded is None:
                result.begin(reader.interrupt, to_end=reader.is_complete)
            else:
                result.complete((text,))
        return result

    def describe(
        self,
        query: Query,
        interruption: Interruption,
        held: ExitStack,
        wait_for_slot: WaitForSlot | None = None,
        *,
        speculate_s: float = 0.0,
    ) -> Description:
        """See `QueryEngine.describe`, and `run` for the arguments. The caller closes *held*."""
        timings = QueryTimings()
        with _noted_on_errors(timings):
            statement, lease, start = self._prepare(query, timings, interruption, held, wait_for_slot)
            found, answer = None, None
            if speculate_s and lease.session.speculates and (query.parameters is not None or not statement.parameters):
                with limited(interruption, self._watchdog, speculate_s) as early, ExitStack() as held_early:
                    reader = _started(start, timings, early, held_early)
                    found = reader.columns, reader.schema
                    if reader.is_complete:
                        chunks = encode_parts(query.encoding, *found, _counted(reader, timings))
                        result = StatementResult(chunks, timings, early, held_early.pop_all())
                        result.begin(reader.interrupt, to_end=True)
                        if timings.bytes <= MAX_SPECULATIVE_BYTES:
                            answer = Answer(chunks=tuple(result), timings=timings)
            if found is None:
                found = lease.session.describe(statement, query.parameters, interruption)
        schema = None
        if found is not None:
            columns, of_batches = found
            schema = answer_schema(columns, of_batches).serialize().to_pybytes()
        return Description(
            schema=schema,
            parameters=ordered(statement.parameters),
            # The columns of a pivot depend on the result of its query, which may depend on the time.
            is_schema_cacheable=statement.kind != "pivot",
            is_cacheable=lease.session.is_cacheable(statement),
            answer=answer,
        )

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """See `QueryEngine.admit`. The SQL is for a load, which DuckDB runs even if another engine runs statements."""
        if self._config.engine is None:
            return self._gate.admit(sql, relations)
        with closing(Gate(datafusion_sql=self._config.query.datafusion_sql)) as gate:
            return gate.admit(sql, relations)

    def is_alive(self) -> bool:
        """Return whether a statement would be accepted now. A busy runner is alive."""
        try:
            self.sessions.lease(self._gate.admit("SELECT 1", self._relations)).release()
        except EngineUnavailableError:
            return False
        return True

    def close(self) -> None:
        """Stop all statements, close the sessions and empty the scratch directory. Repeated calls are harmless."""
        self.closed = True
        self._watchdog.stop_all(_stopping)
        self.sessions.close(_CLOSE_S)
        self._watchdog.close()
        self.scratch.close()
        self._backend.close()

    def _prepare(
        self,
        query: Query,
        timings: QueryTimings,
        interruption: Interruption,
        held: ExitStack,
        wait_for_slot: WaitForSlot | None,
    ) -> tuple[GatedStatement, Lease, Callable[[Interruption], ResultReader]]:
        """
        Gate the statement, wait for its slot, and lease a session. *held* receives the resources to release.

        The returned callable runs the statement up to its first rows.
        """
        if self.closed:
            raise _stopping()
        self._watchdog.watch(interruption, query.time_limit_s(self._config.query), left_s=query.timeout_s)
        held.callback(self._watchdog.forget, interruption)
        began = time.perf_counter()
        if query.scope is None:
            statement = self._gate.admit(query.sql, self._relations)
        else:
            statement = self._within(self._visible(query.scope), query.sql)
        if statement.makes_arrays and statement.key_catalog is None:  # In a key's catalog, views are copies.
            refuse_views(statement.relations, self._plain_views)
        timings.parse_ms = _ms_since(began)
        timings.statement = statement.digest
        if wait_for_slot is not None:
            began = time.perf_counter()
            wait_for_slot()
            timings.queued_ms = _ms_since(began)
        interruption.check()
        lease = self.sessions.lease(statement)
        held.callback(lease.release)
        run = lease.session.run
        start = partial(run, statement, query, watchdog=self._watchdog)
        return statement, lease, start

    @property
    def cached_bytes(self) -> int:
        """The memory that the newest session may keep for later statements, in bytes."""
        return 0 if self._newest is None else self._newest.cached_bytes

    def free_cache(self) -> None:
        """Free the memory that the newest session keeps for later statements, if it can read the data again."""
        if self._newest is not None:
            self._newest.free_cache()

    def _within(self, visible: KeyCatalog, sql: str) -> GatedStatement:
        """Gate *sql*, which may read the relations in *visible*."""
        if not visible.name:
            statement = self._gate.admit(sql, visible.relations)
            views = statement.relations & self._materialized
            return replace(statement, limiting_views=views) if views else statement
        # Keys that see the same names share gate decisions, except on statements that list columns.
        statement = self._gate.admit(sql, visible.relations, _ANY_KEY)
        if statement.catalog is not None:
            statement = self._gate.admit(sql, visible.relations, visible.name)
        return replace(statement, key_catalog=visible)

    def _visible(self, scope: Scope) -> KeyCatalog:
        """Return the catalog for *scope*, one cached object per scope. It has no name if it needs no own database."""
        visible = self._visible_in.get(scope)
        if visible is None:
            relations = self._relations & scope.relations
            is_limited = bool(scope.rules) or not relations.isdisjoint(self._plain_views)
            visible = self._visible_in[scope] = KeyCatalog(
                name=f"_k{secrets.token_hex(6)}" if is_limited else "",
                relations=relations,
                rules={
                    rule.dataset: gated_or_unavailable(rule, self._relations, self._gate)
                    for rule in scope.rules
                    if rule.dataset in relations
                },
            )
        return visible

    def _open(self, manifest: Manifest, tolerant: bool) -> Session:
        scratch = self.scratch.path / str(next(self._serial))  # The engine creates it when a statement spills.
        self._newest = self._backend.open(manifest, self._views, scratch, tolerant=tolerant)
        return self._newest


@contextmanager
def _noted_on_errors(timings: QueryTimings) -> Iterator[None]:
    try:
        yield
    except QueryError as error:
        error.timings = timings
        raise


def _started(
    start: Callable[[Interruption], ResultReader], timings: QueryTimings, interruption: Interruption, held: ExitStack
) -> ResultReader:
    began = time.perf_counter()
    try:
        reader = start(interruption)
    finally:
        timings.run_ms = _ms_since(began)
    held.callback(reader.close)
    return reader


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def _counted(batches: Iterable[pa.RecordBatch], timings: QueryTimings) -> Iterator[pa.RecordBatch]:
    """Yield *batches*, and count their rows and the time that the engine took to produce them."""
    iterator = iter(batches)
    while True:
        began = time.perf_counter()
        try:
            batch = next(iterator, None)
        finally:
            timings.run_ms += _ms_since(began)
        if batch is None:
            return
        timings.rows += batch.num_rows
        yield batch
