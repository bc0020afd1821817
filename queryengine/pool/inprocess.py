"""
The engine in the process that asks: threads, one DuckDB instance per manifest generation.

A statement passes the gate, waits for a place, leases the newest session, runs, and leaves as encoded chunks. What
this engine cannot do is end a single call inside DuckDB that does not look at its interrupt flag; engine workers in
processes of their own, which can be killed, come behind the same interface.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial

import pyarrow as pa

from queryengine.cancellation import Interruption, Watchdog
from queryengine.encoders import encode_parts
from queryengine.encoders.arrow import answer_schema
from queryengine.encoders.parts import Parts, joined, length
from queryengine.encoders.plan import renderers
from queryengine.engine import (
    MAX_AHEAD_BYTES,
    ActiveQuery,
    Admitted,
    Answer,
    CancelToken,
    Description,
    Encoding,
    EngineStatus,
    GatedStatement,
    Query,
    QueryTimings,
)
from queryengine.errors import EngineUnavailableError, QueryCancelledError, QueryError, ResourceLimitError
from queryengine.execution.parameters import ordered
from queryengine.execution.session import EngineInstance, Reader
from queryengine.execution.session_manager import Generations, Lease
from queryengine.execution.views import gate_views
from queryengine.gate.gate import Gate
from queryengine.manifest import Column, Manifest, Signature
from queryengine.pool.active import ActiveStatements
from queryengine.pool.fair_queue import Admission
from runtimeconf.model import RuntimeConfig
from system import process_limits
from system.scratch import ScratchDirectory

logger = logging.getLogger(__name__)

#: How long `close` waits for statements that were told to stop.
_CLOSE_S = 2.0

_stopping = partial(EngineUnavailableError, "The runtime is stopping: try again.")


class InProcessResult:
    """
    A `QueryResult`: one thread iterates; `cancel` and `close` come from any.

    Nothing is taken away from under a thread that computes a chunk: it is interrupted, and gives back itself what the
    statement holds. A statement that is stopped between two chunks gives it back at once, so that a client who reads
    slowly, or not at all, keeps no place longer than the time limit.
    """

    columns: tuple[Column, ...]  # the names and DuckDB types of the result
    whole: bool  # whether all chunks are here already
    basis: Signature  # see `QueryResult`

    def __init__(
        self,
        columns: tuple[Column, ...],
        chunks: Iterator[Parts],
        timings: QueryTimings,
        interruption: Interruption,
        held: ExitStack,
    ) -> None:
        """Take over a running statement with what it holds, which is closed once, when it ends in any way."""
        self.columns = columns
        self.whole = False
        self.basis = None
        self.timings = timings
        self._chunks = chunks
        self._interruption = interruption
        self._held = held
        self._lock = threading.Lock()
        self._ready: deque[Parts] = deque()
        self._computing = False
        self._complete = False
        self._freed = False
        self._release: threading.Thread | None = None
        self._interrupt: partial[None] | None = None

    def begin(self, interrupt: partial[None], *, whole: bool) -> None:
        """
        Compute the first chunk, or all when *whole*. *interrupt* stops the engine in the middle of one.

        Raises:
            QueryError: The statement failed, and what it held is given back.
        """
        self._interrupt = interrupt
        self._interruption.attach(partial(self._stop, interrupt))
        self._ready.extend(list(self.parts() if whole else itertools.islice(self.parts(), 1)))
        self.whole = whole

    def complete(self, chunk: Parts) -> None:
        """
        Take *chunk* for the whole answer, instead of `begin`: what the statement held is given back.

        Raises:
            QueryError: The statement was stopped.
        """
        try:
            self._interruption.check()
        except QueryError:
            self._end(complete=False)
            raise
        self._end(complete=True)
        self._ready.append(chunk)
        self.whole = True

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Give the next chunk of a complete answer, or raise why there is none."""
        chunk = self._next()
        if chunk is None:
            raise StopIteration
        return joined(chunk)

    def parts(self) -> Iterator[Parts]:
        """As the iterator itself, for whoever can send a chunk that is not in one place."""
        while (chunk := self._next()) is not None:
            yield chunk

    def _next(self) -> Parts | None:
        with self._lock:
            if self._ready:
                return self._ready.popleft()
            if self._complete:
                return None
            if self._freed:
                self._interruption.check()
                raise QueryCancelledError
            self._computing = True
        try:
            self._interruption.check()
            chunk = self._compute()
        except BaseException:
            self._end(complete=False)
            raise
        if chunk is None:
            self._end(complete=True)
        with self._lock:
            self._computing = False
        return chunk

    def cancel(self) -> None:
        """Stop the statement; the iterator raises `QueryCancelledError`."""
        self._interruption.stop(QueryCancelledError)

    def close(self) -> None:
        """
        Stop the statement if it still runs and give its place back. More than one call is harmless.

        Unless another thread computes a chunk, nothing is held any more on return.
        """
        with self._lock:
            computing, release = self._computing, self._release
        if computing:
            self._interruption.stop(QueryCancelledError)
        elif release is not None:
            release.join()
        else:
            self._end(complete=False)

    def _compute(self) -> Parts | None:
        started, ran_before_ms = time.perf_counter(), self.timings.run_ms
        try:
            chunk = next(self._chunks, None)
        except QueryError:
            raise
        except MemoryError as exc:
            raise ResourceLimitError("The answer needs more memory than there is: ask for less at once.") from exc
        except Exception as exc:
            logger.exception("encoder failure")
            raise QueryError("The result could not be encoded.") from exc
        finally:
            elapsed_ms = (time.perf_counter() - started) * 1000
            self.timings.encode_ms += elapsed_ms - (self.timings.run_ms - ran_before_ms)
        if chunk is not None:
            self.timings.bytes += length(chunk)
        return chunk

    def _stop(self, interrupt: partial[None]) -> None:
        """Do what a stopped statement needs now; called again and again until it has ended."""
        with self._lock:
            computing = self._computing
            if not computing and not self._freed and self._release is None:
                # Not in this thread, which may be the clock of all statements: DuckDB can take its time over a
                # rollback. No memory for a thread now: the next call tries again.
                release = threading.Thread(
                    target=self._end, kwargs={"complete": False}, name="engine-release", daemon=True
                )
                with suppress(RuntimeError):
                    release.start()
                    self._release = release
        if computing:
            interrupt()

    def _end(self, *, complete: bool) -> None:
        with self._lock:
            self._computing = False
            if self._freed:
                return
            self._freed = True
            self._complete = complete
        if not complete and self._interrupt is not None:
            self._interrupt()  # DuckDB may be looking for the next rows, and would be waited for.
        self._held.close()


class InProcessEngine:
    """
    A `QueryEngine` for one process with threads. It is made after any fork, and closed by who made it.

    *several_keys* says whether there is more than one key to be fair to. The engine spills to its `scratch` directory.
    """

    def __init__(self, config: RuntimeConfig, *, several_keys: bool = True) -> None:
        """
        Check the views and open a session over what is published.

        Raises:
            ConfigError: A view cannot be made.
            EngineUnavailableError: The engine cannot start.
            RuntimeError: This process runs on gevent.
        """
        _refuse_gevent()
        process_limits.set_stack_size()  # for DuckDB's threads, and for those that will run statements
        self._config = config
        datasets = frozenset(dataset.name.lower() for dataset in config.datasets)
        self._closed = False
        self._serial = itertools.count(1)
        self._snapshot_bytes = 0
        self._active = ActiveStatements()
        limits = config.query
        self._admission = Admission(
            workers=limits.workers,
            max_queued=limits.max_queued,
            queue_timeout_s=limits.queue_timeout_s,
            several_keys=several_keys,
        )
        with ExitStack() as undo:
            self._gate = Gate()
            undo.callback(self._gate.close)
            self._views = gate_views(config.views, datasets, self._gate, config.file)
            self._relations = datasets | {view.config.name.lower() for view in self._views}
            self.scratch = ScratchDirectory(config.state_dir)
            undo.callback(self.scratch.close)
            self._generations = Generations(config.state_dir, self._open)
            undo.callback(self._generations.close, _CLOSE_S)
            self._watchdog = Watchdog()
            undo.pop_all()

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> InProcessResult:
        """
        Gate and start one statement, and wait for its first bytes; a short answer is computed to its end.

        Raises:
            QueryError: Any of the tree in `queryengine.errors`.
        """
        timings = QueryTimings()
        interruption = Interruption()
        with ExitStack() as held:
            statement, lease = self._enter(query, cancel, timings, interruption, held)
            if admitted is not None:
                admitted()
                interruption.check()
            session = lease.session
            begin = partial(session.run, statement, query.parameters, encoding=query.encoding, watchdog=self._watchdog)
            reader = _reader(begin, timings, interruption, held)
            answer = reader.answer
            if answer is None:
                chunks = encode_parts(query.encoding, reader.columns, reader.schema, _counted(reader, timings))
            else:
                chunks = iter(())
                timings.rows, timings.bytes, timings.encode_ms = answer.rows, len(answer.text), answer.encode_ms
                timings.run_ms -= answer.encode_ms
            result = InProcessResult(reader.columns, chunks, timings, interruption, held.pop_all())
        if session.is_steady(statement):
            result.basis = lease.basis
        if answer is None:
            result.begin(partial(reader.interrupt), whole=reader.short)
        else:
            result.complete((answer.text,))
        return result

    def describe(self, query: Query, cancel: CancelToken | None = None, *, ahead_s: float = 0.0) -> Description:
        """As `QueryEngine.describe`."""
        interruption = Interruption()
        timings = QueryTimings()
        found, answer = None, None
        with ExitStack() as held:
            statement, lease = self._enter(query, cancel, timings, interruption, held)
            session = lease.session
            is_steady = session.is_steady(statement)
            if ahead_s and (query.parameters is not None or not statement.parameters):
                begin = partial(
                    session.run, statement, query.parameters, encoding=query.encoding, watchdog=self._watchdog
                )
                found, answer = self._ahead(begin, query.encoding, timings, interruption, ahead_s)
            if found is None:
                found = session.describe(statement, query.parameters, interruption)
        schema = None
        if found is not None:
            columns, of_batches = found
            renderers(columns, of_batches)  # Refuses what the answer would be refused for.
            schema = answer_schema(columns, of_batches).serialize().to_pybytes()
        # A pivot finds its columns in what its query gives, which may be the time.
        is_lasting = statement.kind != "pivot"
        return Description(
            schema=schema,
            parameters=ordered(statement.parameters),
            is_lasting=is_lasting,
            is_steady=is_steady,
            answer=answer,
        )

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """As `QueryEngine.admit`."""
        return self._gate.admit(sql, relations)

    def active(self, fingerprint: str) -> tuple[ActiveQuery, ...]:
        """As `QueryEngine.active`."""
        return self._active.of(fingerprint)

    def cancel(self, query_id: str, fingerprint: str) -> bool:
        """As `QueryEngine.cancel`."""
        return self._active.cancel(query_id, fingerprint)

    @property
    def snapshot_bytes(self) -> int:
        """The size of the files that the newest session reads: DuckDB's cache of them can be as large."""
        return self._snapshot_bytes

    @property
    def era(self) -> object | None:
        """As `QueryEngine.era`: its own from its start to its end."""
        return None if self._closed else self

    def status(self) -> EngineStatus | None:
        """Say that there are no worker processes."""
        return None

    def is_alive(self) -> bool:
        """Say whether a statement would be taken now; a busy engine is alive."""
        try:
            self._generations.lease(self._gate.admit("SELECT 1", self._relations)).release()
        except EngineUnavailableError:
            return False
        return True

    def close(self) -> None:
        """Stop everything that runs, close the sessions and empty the scratch directory. Twice is harmless."""
        self._closed = True
        self._watchdog.stop_all(_stopping)
        self._generations.close(_CLOSE_S)
        self._watchdog.close()
        self.scratch.close()
        self._gate.close()

    def _enter(
        self,
        query: Query,
        cancel: CancelToken | None,
        timings: QueryTimings,
        interruption: Interruption,
        held: ExitStack,
    ) -> tuple[GatedStatement, Lease]:
        """Gate a statement and wait for its place; *held* gets what is to be given back when it has ended."""
        if self._closed:
            raise _stopping()
        self._watchdog.watch(interruption, self._config.query.timeout_s, left_s=query.timeout_s)
        held.callback(self._watchdog.forget, interruption)
        if cancel is not None:
            held.callback(cancel.subscribe(partial(interruption.stop, QueryCancelledError)))
        active = self._active.enter(query, partial(interruption.stop, QueryCancelledError))
        held.callback(active.leave)
        began = time.perf_counter()
        statement = self._gate.admit(query.sql, self._relations)
        timings.parse_ms = _ms_since(began)
        began = time.perf_counter()
        held.callback(self._admission.enter(query.fingerprint, interruption).leave)
        timings.queued_ms = _ms_since(began)
        active.run()
        lease = self._generations.lease(statement)
        held.callback(lease.release)
        return statement, lease

    def _ahead(
        self,
        begin: Callable[[Interruption], Reader],
        encoding: Encoding,
        timings: QueryTimings,
        interruption: Interruption,
        limit_s: float,
    ) -> tuple[tuple[tuple[Column, ...], pa.Schema] | None, Answer | None]:
        """
        Run the statement that *begin* starts for *limit_s* seconds.

        Returns:
            Its columns and schema, None when they are not known by then; and its answer, if all of it is there.

        Raises:
            QueryError: It failed, or *interruption* was stopped.
        """
        soon = Interruption()
        try:
            with ExitStack() as held:
                interruption.attach(partial(soon.stop, QueryCancelledError))
                held.callback(interruption.detach)
                self._watchdog.watch(soon, limit_s)
                held.callback(self._watchdog.forget, soon)
                reader = _reader(begin, timings, soon, held)
                found = reader.columns, reader.schema
                if not reader.short:
                    return found, None
                chunks = encode_parts(encoding, *found, _counted(reader, timings))
                result = InProcessResult(reader.columns, chunks, timings, soon, held.pop_all())
            result.begin(partial(reader.interrupt), whole=True)
        except QueryError:
            interruption.check()
            if soon.stopped:
                return None, None
            raise
        answer = Answer(chunks=tuple(result), timings=timings)
        return found, answer if timings.bytes <= MAX_AHEAD_BYTES else None

    def _open(self, manifest: Manifest, tolerant: bool) -> EngineInstance:
        try:
            scratch = self.scratch.subdirectory(str(next(self._serial)))
        except OSError as exc:
            logger.exception("engine cannot start")
            raise EngineUnavailableError("The engine cannot start.") from exc
        self._snapshot_bytes = sum(snapshot.size_bytes for snapshot in manifest.snapshots)
        return EngineInstance.open(self._config, manifest, self._views, scratch, tolerant=tolerant)


def _reader(
    begin: Callable[[Interruption], Reader], timings: QueryTimings, interruption: Interruption, held: ExitStack
) -> Reader:
    """Run the statement that *begin* starts until its first rows; *held* closes the reader."""
    began = time.perf_counter()
    reader = begin(interruption)
    timings.run_ms = _ms_since(began)
    held.callback(reader.close)
    return reader


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def _counted(batches: Iterable[pa.RecordBatch], timings: QueryTimings) -> Iterator[pa.RecordBatch]:
    """Pass *batches* on, and count their rows and the time spent on them in the engine."""
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


def _refuse_gevent() -> None:
    """
    Refuse gevent.

    Raises:
        RuntimeError: Its patches are in place, so one query would hold every other greenlet for its length.
    """
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        raise RuntimeError(
            "The engine needs threads, and gevent has replaced them: run the server with gunicorn's gthread or sync "
            "worker, or with manage.py serve."
        )
