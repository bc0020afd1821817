"""Runs the statements of calls on the engine: describes, runs, cancels and logs them."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial

from flightapi.calls import QUERY_ID, Call
from flightapi.error_table import code_of
from queryengine.cancellation import CancelSource
from queryengine.engine import (
    Answer,
    Description,
    Parameters,
    Query,
    QueryEngine,
    QueryResult,
    QueryTimings,
    timings_of,
)
from queryengine.errors import QueryCancelledError
from queryengine.ids import new_id
from queryengine.query_log import QueryRecord
from telemetry.events import CLIENT_GONE
from telemetry.trace_context import trace_id

logger = logging.getLogger("flightapi.queries")

#: The number of recently cancelled tickets that are remembered.
MAX_CANCELLED = 10_000


class Statements:
    """Runs the statements of calls on *engine*. Statements that take *slow_s* seconds or more are logged as slow."""

    def __init__(self, engine: QueryEngine, slow_s: float | None = None) -> None:
        self._engine = engine
        self._slow_s = slow_s
        self._lock = threading.Lock()
        self._cancelled: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        # By key and ticket id, because several calls may run the same ticket at once.
        self._running: dict[tuple[str, bytes], list[CancelSource]] = {}

    def describe(self, call: Call, sql: str, parameters: Parameters | None, budget_s: float = 0.0) -> Description:
        """
        Describe *sql* for *call*, and run it speculatively for at most *budget_s* seconds.

        A failure is logged here because the caller will not run the statement.

        Raises:
            QueryError: The statement is not allowed, cannot be bound, or fails while it runs.
        """
        query = _query(call, sql, parameters, new_id())
        record = self._record(query, call)
        cancel = CancelSource()
        call.on_end(cancel.cancel)
        try:
            return self._engine.describe(query, cancel, speculate_s=budget_s)
        except Exception as error:
            gone = cancel.cancelled and isinstance(error, QueryCancelledError)
            record.write(CLIENT_GONE if gone else code_of(error), timings_of(error))
            raise

    def run(
        self, call: Call, sql: str, parameters: Parameters | None, ticket_id: bytes, answer: Answer | None
    ) -> Iterator[bytes]:
        """
        Return the result of *sql* as serialised FlightData: *answer* if given, otherwise the engine's result.

        Raises:
            QueryError: Raised immediately or while the result streams. A truncated result never looks complete.
        """
        cancel = CancelSource()
        query_id = self._enter(call, ticket_id, cancel) if ticket_id else new_id()
        query = _query(call, sql, parameters, query_id)
        call.add_trailing(QUERY_ID, query.query_id)
        record = self._record(query, call)
        return _RunningStatement(lambda: answer or self._engine.run(query, cancel), record, call, cancel)

    def cancel(self, call: Call, ticket_id: bytes) -> None:
        """
        Cancel the current and future statements that the caller's key runs with this ticket.

        Only this process redeems tickets, so no other process needs to know.
        """
        key = call.principal.fingerprint, ticket_id
        with self._lock:
            self._cancelled[key] = None
            self._cancelled.move_to_end(key)
            while len(self._cancelled) > MAX_CANCELLED:
                self._cancelled.popitem(last=False)
            running = list(self._running.get(key, ()))
        for cancel in running:
            cancel.cancel()

    def _record(self, query: Query, call: Call) -> QueryRecord:
        return QueryRecord(logger, "flight-sql", query, call.request_id, self._slow_s, call.trace)

    def _enter(self, call: Call, ticket_id: bytes, cancel: CancelSource) -> str:
        """
        Register *cancel* for the ticket until *call* ends.

        Returns:
            The id of the statement, which is the ticket's id unless a statement with that id is running.

        Raises:
            QueryCancelledError: The ticket was cancelled before.
        """
        key = call.principal.fingerprint, ticket_id
        with self._lock:
            if key in self._cancelled:
                raise QueryCancelledError
            is_free = all(ticket_id != other for _, other in self._running)
            self._running.setdefault(key, []).append(cancel)
        call.on_end(partial(self._leave, key, cancel))
        return ticket_id.hex() if is_free else new_id()

    def _leave(self, key: tuple[str, bytes], cancel: CancelSource) -> None:
        with self._lock:
            self._running[key].remove(cancel)
            if not self._running[key]:
                del self._running[key]


def _query(call: Call, sql: str, parameters: Parameters | None, query_id: str) -> Query:
    caller = call.principal
    caller.require("query")
    return Query(
        sql=sql,
        encoding="flight",
        parameters=parameters,
        query_id=query_id,
        fingerprint=caller.fingerprint,
        key_name=caller.name,
        scope=caller.scope,
        limit_s=caller.limits.timeout_s,
        concurrent=caller.limits.concurrent,
        trace_id=trace_id(call.trace),
    )


class _RunningStatement:
    """An iterator over the result of a statement. It ends with its call, even if gRPC still references it."""

    def __init__(self, begin: Callable[[], QueryResult], record: QueryRecord, call: Call, cancel: CancelSource) -> None:
        """Call *begin* to start the statement of *record*. *cancel* stops the statement."""
        self._record = record
        self._lock = threading.Lock()
        self._ended = False
        self._gone = False
        self._result: QueryResult | None = None
        self._cancel = cancel
        call.on_end(self._leave)
        try:
            self._result = begin()
        except Exception as error:
            self._end(self._outcome(error), timings_of(error))
            raise
        if self._gone:  # The call ended before there was a result to close.
            self._end(CLIENT_GONE)
        self._data = iter(self._result)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._data)
        except StopIteration:
            self._end("ok")
            raise
        except Exception as error:
            self._end(self._outcome(error))
            raise

    def _leave(self) -> None:
        """Stop the statement when its call ends."""
        self._gone = True
        self._cancel.cancel()
        if self._result is not None:
            self._end(CLIENT_GONE)

    def _outcome(self, error: Exception) -> str:
        return CLIENT_GONE if self._gone and isinstance(error, QueryCancelledError) else code_of(error)

    def _end(self, outcome: str, timings: QueryTimings | None = None) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
        if self._result is not None:
            self._result.close()
            timings = self._result.timings
        self._record.write(outcome, timings)
