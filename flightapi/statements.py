"""Statements on their way between a call and the engine: described, run, stopped when the caller leaves, logged."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator

from flightapi.calls import QUERY_ID, Call
from flightapi.error_table import code_of
from flightapi.protocol.framing import flight_data
from queryengine.cancellation import CancelSource
from queryengine.engine import Description, Parameters, Query, QueryEngine, QueryResult
from queryengine.errors import QueryCancelledError
from queryengine.ids import new_id
from queryengine.query_log import QueryRecord

logger = logging.getLogger("flightapi.queries")

#: The outcome of a statement whose caller has left, as over HTTP.
CLIENT_GONE = "client_closed_request"

#: Cancelled tickets that are remembered, the newest.
MAX_CANCELLED = 10_000


class Statements:
    """Runs the statements of calls on *engine*."""

    def __init__(self, engine: QueryEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._cancelled: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def describe(self, call: Call, sql: str, parameters: Parameters | None) -> Description:
        """
        Describe *sql* for *call*. One that fails has its line in the log: nobody will run it.

        Raises:
            QueryError: It is refused, or cannot be bound.
        """
        query = Query(sql=sql, parameters=parameters, query_id=new_id(), fingerprint=call.principal.fingerprint)
        record = QueryRecord(logger, "flight-sql", query, call.request_id)
        cancel = CancelSource()
        call.on_end(cancel.cancel)
        try:
            return self._engine.describe(query, cancel)
        except Exception as error:
            gone = cancel.cancelled and isinstance(error, QueryCancelledError)
            record.write(CLIENT_GONE if gone else code_of(error), None)
            raise

    def run(self, call: Call, sql: str, parameters: Parameters | None, ticket_id: bytes | None) -> Iterator[bytes]:
        """
        Run *sql* for *call* and give its answer as serialised FlightData.

        Raises:
            QueryError: Any, before or while the answer is given.
            AnswerCutError: The engine's answer is no Arrow stream.
        """
        fingerprint = call.principal.fingerprint
        with self._lock:
            if ticket_id is not None and (fingerprint, ticket_id) in self._cancelled:
                raise QueryCancelledError
        query = Query(
            sql=sql,
            encoding="arrow",
            parameters=parameters,
            query_id=new_id() if ticket_id is None else ticket_id.hex(),
            fingerprint=fingerprint,
        )
        call.say_last(QUERY_ID, query.query_id)
        return _Answer(self._engine, query, call)

    def cancel(self, call: Call, ticket_id: bytes) -> None:
        """
        Stop the statement of a ticket that the caller's key was given, and any that begins with it later.

        Raises:
            EngineUnavailableError: The engine cannot be told.
        """
        key = call.principal.fingerprint, ticket_id
        with self._lock:
            self._cancelled[key] = None
            self._cancelled.move_to_end(key)
            while len(self._cancelled) > MAX_CANCELLED:
                self._cancelled.popitem(last=False)
        self._engine.cancel(ticket_id.hex(), call.principal.fingerprint)


class _Answer:
    """A statement that runs, as an iterator. It ends with its call, whoever still holds it."""

    def __init__(self, engine: QueryEngine, query: Query, call: Call) -> None:
        self._record = QueryRecord(logger, "flight-sql", query, call.request_id)
        self._lock = threading.Lock()
        self._ended = False
        self._gone = False
        self._result: QueryResult | None = None
        self._cancel = CancelSource()
        call.on_end(self._leave)
        try:
            self._result = engine.run(query, self._cancel)
        except Exception as error:
            self._end(self._outcome(error))
            raise
        if self._gone:  # The call ended when there was nothing to close yet.
            self._end(CLIENT_GONE)
        self._data = flight_data(self._result)

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
        """Stop the statement: its call has ended."""
        self._gone = True
        self._cancel.cancel()
        if self._result is not None:
            self._end(CLIENT_GONE)

    def _outcome(self, error: Exception) -> str:
        return CLIENT_GONE if self._gone and isinstance(error, QueryCancelledError) else code_of(error)

    def _end(self, outcome: str) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
        if self._result is not None:
            self._result.close()
        self._record.write(outcome, None if self._result is None else self._result.timings)
