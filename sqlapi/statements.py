"""
The views for statements: run one, list and cancel active ones, and show finished ones.

A small result is complete before its first byte is sent, so any failure still gets an error status. A large result is
streamed, and a failure truncates it detectably.
"""

import logging
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from rest_framework.request import Request

import telemetry.state
from authkeys.principal import Principal
from mcpapi.server import USER_AGENT
from queryengine.cancellation import CancelSource
from queryengine.engine import (
    CacheState,
    Encoding,
    Parameters,
    Query,
    QueryEngine,
    QueryResult,
    QueryTimings,
    timings_of,
)
from queryengine.errors import QueryCancelledError
from queryengine.ids import new_id
from queryengine.query_log import Protocol, QueryRecord
from queryengine.state import get_engine
from runtimeconf.state import get_config
from sqlapi import disconnects, negotiation
from sqlapi.api_view import ApiView, caller_of, json_response, table
from sqlapi.error_table import code_of
from sqlapi.errors import AnswerCutError, ClientGoneError, HistoryDisabledError, QueryNotFoundError
from sqlapi.negotiation import DEFAULT_LIMIT, FORMAT, JSON_FORMAT, LIMIT, SQL_FORMAT
from sqlapi.problems import QUERY_ID, REQUEST_ID, TRACE
from sqlapi.request_bodies import read_sql_request
from telemetry import history, statistics
from telemetry.events import About, Question
from telemetry.trace_context import trace_id

logger = logging.getLogger("sqlapi.queries")

#: Results up to this size are computed completely before they are sent.
READ_AHEAD_BYTES = 64 * 1024

#: The outcome of a statement that was stopped because the server is stopping.
SERVER_STOPPED = "server_stopped"


class ResultStream:
    """
    A running statement, as an iterator of bytes. The caller must always close it.

    Args:
        engine: The engine that runs it.
        query: The statement.
        environ: The WSGI environ of its request. If the client disconnects, the statement is stopped.
        protocol: What the log and the metrics call the way it came.

    Raises:
        QueryError: The statement was refused, or failed before its first bytes.
        ClientGoneError: The client disconnected before then.
    """

    def __init__(self, engine: QueryEngine, query: Query, environ: Mapping[str, Any], protocol: Protocol) -> None:
        slow_s = get_config().query.slow_s
        self._record = QueryRecord(logger, protocol, query, environ.get(REQUEST_ID, ""), slow_s, environ.get(TRACE))
        self._first_chunks: deque[bytes] = deque()
        self._result: QueryResult | None = None
        self._outcome = ""
        cancel = CancelSource()
        self._watch = disconnects.watch(environ, cancel.cancel)
        try:
            self._result = engine.run(query, cancel)
            self._chunks = iter(self._result)
            while sum(map(len, self._first_chunks)) < READ_AHEAD_BYTES:
                self._first_chunks.append(next(self._chunks))
        except StopIteration:
            self._end("ok")
        except BaseException as error:
            self._end(self._outcome_of(error), error)
            if self._outcome == ClientGoneError.code:
                raise ClientGoneError from error
            raise

    @property
    def cache(self) -> CacheState:
        """How the results cache was used; empty if results are not cached."""
        return "" if self._result is None else self._result.timings.cache

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._first_chunks:
            return self._first_chunks.popleft()
        try:
            return next(self._chunks)
        except StopIteration:
            self._end("ok")
            raise
        except BaseException as error:
            self._end(self._outcome_of(error))
            if isinstance(error, Exception):
                raise AnswerCutError from error
            raise

    def whole(self) -> bytes | None:
        """Return the result if it is already complete; None if the caller must iterate."""
        return b"".join(self._first_chunks) if self._outcome else None

    def close(self, outcome: str = ClientGoneError.code) -> None:
        """Stop the statement if it is running, with this *outcome*, release its slot, and write its log line."""
        # If `GreenletExit` or `SystemExit` unwinds the stack, the server is stopping and the client has not left.
        error = sys.exception()
        stops = error is not None and not isinstance(error, Exception)
        self._end(SERVER_STOPPED if stops else outcome)

    def _outcome_of(self, error: BaseException) -> str:
        if not isinstance(error, Exception):
            return SERVER_STOPPED
        gone = self._watch.gone and isinstance(error, QueryCancelledError)
        return ClientGoneError.code if gone else code_of(error)

    def _end(self, outcome: str, error: BaseException | None = None) -> None:
        if self._outcome:
            return
        self._outcome = outcome
        self._watch.stop()
        if self._result is not None:
            self._result.close()
            timings: QueryTimings | None = self._result.timings
        else:
            timings = None if error is None else timings_of(error)
        self._record.write(outcome, timings)


def query_of(
    caller: Principal,
    environ: Mapping[str, Any],
    sql: str,
    encoding: Encoding,
    parameters: Parameters | None = None,
) -> Query:
    """Return a statement of *caller* with its scope and limits. Its id is already in the *environ* of its request."""
    return Query(
        sql=sql,
        encoding=encoding,
        parameters=parameters,
        query_id=environ[QUERY_ID],
        fingerprint=caller.fingerprint,
        key_name=caller.name,
        scope=caller.scope,
        limit_s=caller.limits.timeout_s,
        concurrent=caller.limits.concurrent,
        cache=negotiation.cache_use(environ.get("HTTP_CACHE_CONTROL")),
        trace_id=trace_id(environ.get(TRACE)),
    )


def _protocol_of(environ: Mapping[str, Any]) -> Protocol:
    """Return what the log calls a request to `/v1/sql`: the client says whether an agent sent it. A label, no more."""
    return "mcp" if environ.get("HTTP_USER_AGENT", "").partition("/")[0] == USER_AGENT else "http"


class SqlView(ApiView):
    """`/v1/sql`: run one statement."""

    def post(self, request: Request) -> HttpResponseBase:
        """Run the statement in the body and respond in the requested format."""
        environ = request.META
        caller = caller_of(request)
        caller.require("query")
        offer = negotiation.choose(environ.get("HTTP_ACCEPT"), SQL_FORMAT.read(environ))
        sql, parameters = read_sql_request(environ, get_config().http.max_body_bytes, caller.fingerprint)
        caller = self.authenticate_again(request)
        caller.require("query")
        environ[QUERY_ID] = new_id()
        query = query_of(caller, environ, sql, offer.encoding, parameters)
        result = ResultStream(get_engine(), query, environ, _protocol_of(environ))
        whole = result.whole()
        headers = {"X-Cache": result.cache} if result.cache else None
        if whole is None:
            return StreamingHttpResponse(result, content_type=offer.content_type, headers=headers)
        return HttpResponse(whole, content_type=offer.content_type, headers=headers)


class ActiveView(ApiView):
    """`/v1/sql/active`: the caller's queued and running statements."""

    def get(self, request: Request) -> HttpResponse:
        """List the statements, oldest first."""
        rows = [
            {"id": active.query_id, "started": active.started, "state": active.state, "sql": active.sql}
            for active in get_engine().active(caller_of(request).fingerprint)
        ]
        return table(request, rows, ("id", "started", "state", "sql"))


class HistoryView(ApiView):
    """`/v1/sql/history`: the caller's most recent statements."""

    def get(self, request: Request) -> HttpResponse:
        """List the finished statements, newest first."""
        return table(request, _remembered(request, "history"), history.COLUMNS)


class StatisticsView(ApiView):
    """`/v1/sql/statistics`: statistics of the caller's statements."""

    def get(self, request: Request) -> HttpResponse:
        """List the statements with the longest total time. CSV contains only the list."""
        found = _remembered(request, "statistics")
        if FORMAT.read(request.META) == "csv":
            return table(request, found["statements"], statistics.COLUMNS)
        return json_response(found)


class CancelView(ApiView):
    """`/v1/sql/{query_id}/cancel`: cancel one of the caller's statements."""

    def post(self, request: Request, query_id: str) -> HttpResponse:
        """Cancel the statement. Statements of other keys are not found. The body is not read."""
        JSON_FORMAT.read(request.META)
        if not get_engine().cancel(query_id, caller_of(request).fingerprint):
            raise QueryNotFoundError
        request.META[QUERY_ID] = query_id
        return json_response({"message": f"Query {query_id} is being cancelled."})


def _remembered(request: Request, about: About) -> Any:
    """
    Return the recorded history of the caller's own statements.

    Raises:
        NotPermittedError: The key may not query.
        HistoryDisabledError: The history is disabled.
        TelemetryUnavailableError: The telemetry process does not respond.
    """
    caller = caller_of(request)
    caller.require("query")
    FORMAT.read(request.META)  # An invalid value is reported even if there is nothing to show.
    limit = LIMIT.read(request.META) or DEFAULT_LIMIT
    if not get_config().history.enabled:
        raise HistoryDisabledError
    return telemetry.state.ask(Question(about, caller.fingerprint, limit))
