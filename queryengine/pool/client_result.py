"""A statement of a client process: its wait for a slot, its response from a worker, and its end."""

import enum
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self

from msgspec.structs import replace

from queryengine.cancellation import Reason
from queryengine.engine import ACTIVE_SQL_CHARACTERS, Admitted, CancelToken, QueryTimings
from queryengine.errors import (
    EngineUnavailableError,
    EngineWorkerDiedError,
    ParameterError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
)
from queryengine.execution.parameters import UNKNOWN_TYPE, check_values
from queryengine.gate.lexer import check_text
from queryengine.manifest import Signature
from queryengine.pool.broker_client import reclaimed, unreachable
from queryengine.pool.exchange import Exchange, NotStartedError, Phase, connect, unreadable
from queryengine.pool.frames import FrameError, Kind, encode
from queryengine.pool.messages import End, Request, Statement
from queryengine.pool.slots import Slot, SlotPool
from system.wallclock import utc_at

#: A worker that was asked to stop is killed after this number of seconds.
STOP_S = 1.5
#: A worker ends itself one second after the time limit. If it does not, it is killed this many seconds after the limit.
CLIENT_KILL_S = 2.5
#: Seconds to wait for the change of the configuration that a replaced engine has noticed first, and between two checks.
CHANGE_S = 2.0
CHANGE_POLL_S = 0.01

#: The SQL text in a list of statements is truncated further if its encoding is longer than this, for example because of
#: control characters.
LISTED_SQL_BYTES = 4096
#: The maximum length of one encoded character, as escapes.
_CHARACTER_BYTES = 12


class State(enum.Enum):
    """
    The state of a `ClientResult`.

    ::

        QUEUED ---> ACTIVE <---> PAUSED
                      |             |
                      +-> OVERDUE <-+       any of these may become ENDED; ACTIVE and OVERDUE may become COMPLETE

    The caller's thread owns a statement that is QUEUED, ACTIVE or OVERDUE, and ends it. Any thread may end a PAUSED
    statement. The reason to stop is stored separately. It can be set in any of these states, and takes effect at the
    next step.
    """

    QUEUED = "waits for a slot"
    ACTIVE = "the caller's thread sends the request or receives the answer"
    PAUSED = "between two chunks: no thread works on it"
    OVERDUE = "its time is long up: its worker will be killed"
    COMPLETE = "the whole answer has come; the slot is free"
    ENDED = "failed or stopped; the slot is free, or will be once the worker has stopped"


_OWNED = (State.QUEUED, State.ACTIVE, State.OVERDUE)
_OVER = (State.COMPLETE, State.ENDED)


def _replaced() -> QueryError:
    return EngineUnavailableError("The configuration of the runtime has changed: try again.")


class ClientResult:
    """A `QueryResult`. One thread waits and reads. Any thread can call `cancel` and `close`."""

    def __init__(
        self,
        pool: SlotPool,
        request: Request,
        limit_s: float,
        *,
        repeats: "ClientResult | None" = None,
        is_replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Start the clock for the remaining time of *request*. Errors show its full limit, *limit_s* seconds.

        A statement that *repeats* a stopped one has the rest of its time, and waits that long for a slot. It does not
        begin if *is_replaced* then says that the engine is that of a former configuration.
        """
        query = request.query
        self.timings = QueryTimings()
        self.query_id = query.query_id
        self.key = query.fingerprint
        self._concurrent = query.concurrent
        self.end: End | None = None
        self.data_version: Signature = None  # as `QueryResult.data_version`
        self.slot: Slot | None = None
        self.had_slot = False  # Without a slot, the statement has not run at all.
        self._pool = pool
        self._lock = pool.lock
        self._state = State.QUEUED
        self.arrived: float = time.monotonic() if repeats is None else repeats.arrived
        self._deadline = self.arrived + (limit_s if query.timeout_s is None else query.timeout_s)
        self._timeout = partial(QueryTimeoutError, limit_s)
        self.started: float = time.time() if repeats is None else repeats.started
        self._is_repeated, self._is_replaced = repeats is not None, is_replaced
        self._sql = query.sql
        self._is_inner = request.call == "admit"  # The runtime's own: callers cannot see or stop it.
        self._request: Request | None = request  # until it has been sent
        self._decided: threading.Lock | None = None  # held until the broker has decided or there is a reason to stop
        self._reason: Reason | None = None  # to stop; the first reason wins
        self._stopped_at = 0.0
        self._unsubscribe: Callable[[], None] | None = None
        self._exchange: Exchange | None = None
        self._chunks: deque[bytes] = deque()

    def start(self, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> Self:
        """
        Wait for a slot, send the request to a worker, and receive the start of the response, or all of a small one.

        Raises:
            QueryError: There is no slot, or the statement failed. All resources are released.
        """
        try:
            if cancel is not None:
                self._unsubscribe = cancel.subscribe(self.cancel)
            self._wait_for_slot()
            self._check_engine()
            if admitted is not None:
                admitted()
                self._check()
            self._begin()
            self._request = None  # Parameters are large, and a client may read slowly.
            self._pause()
        except BaseException as error:
            self._end()
            if isinstance(error, QueryError):
                error.timings = self.timings
            raise
        return self

    def entry(self) -> Statement:
        """Return the description of the statement for the broker."""
        durations = self._pool.durations
        return Statement(
            id=self.query_id,
            sql=_listed(self._sql),
            started=utc_at(self.started),
            short=durations is not None and durations.is_short(self._sql),
            repeated=self._is_repeated,
            inner=self._is_inner,
            concurrent=self._concurrent,
        )

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next chunk, or raise the reason why the response is incomplete."""
        if self._state is State.COMPLETE:  # Other threads no longer change it, so no lock is needed.
            if not self._chunks:
                raise StopIteration
            return self._chunks.popleft()
        with self._lock:
            if self._state is State.ENDED:
                raise self._reason() if self._reason is not None else QueryCancelledError()
            if self._chunks and self._reason is None:  # a stopped statement returns no more chunks
                return self._chunks.popleft()
            if self._state is State.PAUSED:
                self._state = State.ACTIVE
        try:
            self._check()
            self._receive()
            # Take the chunk before another thread may end the statement. A partial response must not look complete.
            chunk = self._chunks.popleft() if self._chunks else None
            self._pause()
        except BaseException:
            self._end()
            raise
        if chunk is None:
            raise StopIteration
        return chunk

    def cancel(self) -> None:
        """Stop the statement. The iterator then raises `QueryCancelledError`."""
        self.stop(QueryCancelledError)

    def close(self) -> None:
        """Stop the statement if it is still running, and return its slot. Idempotent."""
        self._end(unless_owned=True)
        if self._state not in _OVER:
            self.cancel()
            self._end(unless_owned=True)  # The reader may have finished its step before the reason was set.

    # Called by the slot pool. It holds its lock while it calls `wake` and `refused`.

    def wake(self) -> None:
        """Wake the thread that waits for a slot, because the statement has a slot or a reason to stop."""
        if self._state is State.QUEUED:
            self._state = State.ACTIVE
            if self._decided is not None:
                self._decided.release()

    def refused(self, error: QueryError) -> None:
        """Refuse a slot. Ignored if the statement has a slot."""
        if self._state is State.QUEUED:
            self._reason = lambda: error
            self.wake()

    def stop(self, reason: Reason) -> None:
        """Stop the statement because of *reason*. An earlier reason wins, unless the statement would be repeated."""
        with self._lock:
            if self._reason not in (None, reclaimed) or self._state in _OVER:
                return
            self._reason = reason
            self._stopped_at = self._stopped_at or time.monotonic()
            self.wake()
            if self._exchange is not None:
                self._exchange.ask_to_stop()

    def check_time(self, now: float) -> None:
        """End a wait whose time is up. Request the kill of a worker that neither responds nor stops in time."""
        if now >= self._deadline and self._state is State.QUEUED:
            with self._lock:
                self.refused(self._timeout())
        is_stopped = self._stopped_at and now >= self._stopped_at + STOP_S
        if not is_stopped and now < self._deadline + CLIENT_KILL_S:
            return
        with self._lock:
            if self._state in _OVER:
                return
            if self._reason is None:
                self._reason = self._timeout
            is_owned = self._state in _OWNED
            self._state = State.OVERDUE
            if self._exchange is not None:
                self._exchange.hang_up()
        if not is_owned:
            self._end()

    # The steps of a statement, in the caller's thread.

    def _wait_for_slot(self) -> None:
        self._check()
        self._pool.enter(self)
        if self._state is State.QUEUED:  # Most statements get an unused slot immediately.
            decided = threading.Lock()  # An event would cost several times as much.
            decided.acquire()
            self._decided = decided
            if self._state is State.QUEUED:  # `wake` changes the state before it looks for the lock.
                decided.acquire()
        self.timings.queued_ms = (time.monotonic() - self.arrived) * 1000
        self._check()

    def _begin(self) -> None:
        """Send the request and wait for the first bytes of the response."""
        while True:
            exchange = self._connected()
            try:
                exchange.send(self._frame())
                self._receive()
            except NotStartedError:
                self._disconnect()
                self._check()
                if not exchange.is_reused:
                    self._wait_for_successor()
                self._check_engine()
            else:
                return

    def _wait_for_successor(self) -> None:
        """Wait for the change of the configuration, which an engine knows first if it refuses a new connection."""
        until = time.monotonic() + CHANGE_S
        while not self._is_replaced():
            if time.monotonic() > until:
                raise unreadable()
            self._check()
            time.sleep(CHANGE_POLL_S)

    def _check_engine(self) -> None:
        """Check that the statement may begin on this engine."""
        self.had_slot = not self._is_replaced()
        if not self.had_slot:
            self.stop(_replaced)
        self._check()

    def _connected(self) -> Exchange:
        """Start an exchange over the connection of the slot, which is created if there is none."""
        if self.slot is None:
            raise unreachable()
        reused = self.slot.connection is not None
        connection = self.slot.connection or connect(self._pool.engine_path)
        exchange = Exchange(connection, reused=reused)
        self.slot.connection = connection
        self._chunks = exchange.chunks
        self._exchange = exchange
        self._check()  # From now on `stop` finds the exchange.
        return exchange

    def _disconnect(self) -> None:
        with self._lock:
            exchange, self._exchange = self._exchange, None
            if self.slot is not None:
                self.slot.connection = None
        if exchange is not None:
            exchange.close()

    def _frame(self) -> bytes:
        if (request := self._request) is None:  # not reached, because it is sent before it is dropped
            raise EngineWorkerDiedError
        left_s = max(0.0, self._deadline - time.monotonic())
        query = replace(request.query, query_id=self.query_id, timeout_s=left_s)
        try:
            return encode(Kind.REQUEST, replace(request, query=query))
        except FrameError as error:
            raise ParameterError("The statement and its parameters are too large.") from error
        except (TypeError, ValueError, RecursionError) as error:  # not JSON, because of the SQL text or a parameter
            check_text(query.sql)
            if not isinstance(query.parameters, bytes):
                check_values(query.parameters)
            raise ParameterError(UNKNOWN_TYPE) from error

    def _receive(self) -> None:
        """Receive until there is a chunk or the response is complete."""
        exchange = self._exchange
        if exchange is None:  # not reached, because only `_end` and `_disconnect` remove it
            raise EngineWorkerDiedError
        while not exchange.chunks and self._state is not State.COMPLETE:
            try:
                exchange.receive()
            except QueryError as error:
                self._check()
                is_late = exchange.phase is Phase.CUT and time.monotonic() >= self._deadline
                if is_late or isinstance(error, QueryTimeoutError):  # The worker knows only the remaining time.
                    self._learn(math.inf)
                    raise self._timeout() from None
                raise
            finally:
                if exchange.timings is not None:
                    self.timings.take(exchange.timings)
            self.data_version = exchange.data_version
            if exchange.phase is Phase.FINISHED:
                self._complete(exchange)

    def _pause(self) -> None:
        """Allow any thread to end the statement from now on. Raises the reason to stop if there already is one."""
        if self._state is State.COMPLETE:
            return
        with self._lock:
            if self._reason is None:
                self._state = State.PAUSED
                return
        # The thread that stopped the statement relies on this one to end it, as the caller may not ask for more chunks.
        self._check()

    def _complete(self, exchange: Exchange) -> None:
        self.end = exchange.end
        self._end(State.COMPLETE)
        self._learn(self.timings.run_ms)

    def _learn(self, run_ms: float) -> None:
        if (durations := self._pool.durations) is not None:
            durations.learn(self._sql, run_ms)

    def _check(self) -> None:
        if self._reason is not None:
            raise self._reason()

    def _end(self, state: State = State.ENDED, *, unless_owned: bool = False) -> None:
        """End in *state*, and return the slot as soon as the worker is done with the statement. Idempotent."""
        with self._lock:
            if self._state in _OVER or (unless_owned and self._state in _OWNED):
                return
            kill = self._state is State.OVERDUE
            self._state = state
            if state is State.ENDED:
                self._chunks.clear()
            exchange, self._exchange = self._exchange, None
            # After a normal end, the next statement takes over the connection.
            if exchange is not None and exchange.is_reusable and self._reason is None:
                exchange = None
            elif self.slot is not None and exchange is not None:
                self.slot.connection = None
        if self._unsubscribe is not None:
            self._unsubscribe()
        if exchange is None:
            self._pool.leave(self)
        elif exchange.worker_is_done or kill:
            # Return the slot first, because the next statement still has to connect.
            self._pool.leave(self, kill=kill)
            exchange.close()
        else:
            exchange.ask_to_stop()
            self._give_back_later(exchange)

    def _give_back_later(self, exchange: Exchange) -> None:
        """Return the slot once the worker has stopped, without waiting here."""

        def wait() -> None:
            self._pool.leave(self, kill=not exchange.drain(STOP_S))

        try:
            threading.Thread(target=wait, name="engine-farewell", daemon=True).start()
        except RuntimeError:  # The process is ending, or cannot start more threads.
            self._pool.leave(self, kill=True)
            exchange.close()


def _listed(sql: str) -> str:
    """Truncate *sql* for a list of statements, so that the message stays short even with many statements."""
    listed = sql[:ACTIVE_SQL_CHARACTERS].encode("utf-8", "replace").decode()
    is_short = len(encode(Kind.MESSAGE, {"": listed})) <= LISTED_SQL_BYTES
    return listed if is_short else listed[: LISTED_SQL_BYTES // _CHARACTER_BYTES]
