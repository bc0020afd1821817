"""
The answer to a statement: from the engine's chunks to the bytes of a response.

A small answer is complete before its first byte is sent, so any failure still gets a status. A large one is streamed,
and a failure truncates it visibly.
"""

import logging
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from queryengine.cancellation import CancelSource
from queryengine.engine import CacheState, Query, QueryEngine, QueryResult, QueryTimings, timings_of
from queryengine.errors import QueryCancelledError
from queryengine.query_log import QueryRecord
from runtimeconf.state import get_config
from sqlapi import disconnects
from sqlapi.error_table import code_of
from sqlapi.errors import AnswerCutError, ClientGoneError
from sqlapi.problems import REQUEST_ID, TRACE

logger = logging.getLogger("sqlapi.queries")

#: Answers up to this size are computed completely before they are sent.
READ_AHEAD_BYTES = 64 * 1024

#: The outcome of a statement that was stopped because the server stops.
SERVER_STOPPED = "server_stopped"


class Answer:
    """
    A running statement, as an iterator of bytes. The holder must always close it.

    Args:
        engine: The engine that runs it.
        query: The statement.
        environ: The WSGI environ of its request. If the client disconnects, the statement is stopped.

    Raises:
        QueryError: The statement was refused or failed before its first bytes.
        ClientGoneError: The client disconnected before then.
    """

    def __init__(self, engine: QueryEngine, query: Query, environ: Mapping[str, Any]) -> None:
        slow_s = get_config().query.slow_s
        self._record = QueryRecord(logger, "http", query, environ.get(REQUEST_ID, ""), slow_s, environ.get(TRACE))
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
        """Where the answer comes from; empty if no results are cached."""
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
        """Return the answer if it is already complete; None if the caller must iterate over it."""
        return b"".join(self._first_chunks) if self._outcome else None

    def close(self) -> None:
        """Stop the statement if it is running, release its execution slot, and write its log line."""
        # `GreenletExit` or `SystemExit` unwinding the stack means that the server stops, not that the client left.
        error = sys.exception()
        stops = error is not None and not isinstance(error, Exception)
        self._end(SERVER_STOPPED if stops else ClientGoneError.code)

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
