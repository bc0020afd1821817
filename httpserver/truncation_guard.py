"""WSGI middleware that makes every truncated answer look truncated, and closes connections that must not be reused."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from httpserver.connection_reset import reset, reset_on_close
from sqlapi.body import CLOSE_CONNECTION
from sqlapi.errors import AnswerCutError


class TruncationGuard:
    """
    Guards the answers that gunicorn sends.

    A connection closes after its answer when the application asks for it (`CLOSE_CONNECTION`), or when *is_stopping*
    is true as the answer begins.
    """

    def __init__(self, application: Any, is_stopping: Callable[[], bool]) -> None:
        self._application = application
        self._is_stopping = is_stopping

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Call the application."""
        response = start_response.__self__  # gunicorn passes a bound method of its response

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if environ.get(CLOSE_CONNECTION) or self._is_stopping():
                response.force_close()
            return start_response(status, headers, exc_info)

        def ends_by_closing() -> bool:
            return not response.chunked and response.response_length is None

        return GuardedChunks(self._application(environ, start), environ["gunicorn.socket"], ends_by_closing)


class GuardedChunks:
    """
    The chunks of one answer. An `AnswerCutError` becomes the `ConnectionResetError` that WSGI servers expect.

    With chunked coding the client notices the missing last chunk. An answer that *ends_by_closing* the connection, as
    in HTTP/1.0, needs a reset: until it is complete the connection can end in no other way, even if the process is
    killed. *ends_by_closing* is asked when the first chunk is there.
    """

    def __init__(self, chunks: Iterable[bytes], connection: Any, ends_by_closing: Callable[[], bool]) -> None:
        self._chunks = chunks
        self._connection = connection
        self._ends_by_closing = ends_by_closing

    def __iter__(self) -> Iterator[bytes]:
        must_reset = False
        try:
            for number, chunk in enumerate(self._chunks):
                # Not sooner: a failure before the first byte gets an ordinary error response.
                if number == 0 and self._ends_by_closing():
                    must_reset = True
                    reset_on_close(self._connection, wanted=True)
                yield chunk
        except GeneratorExit:
            raise  # The server stopped iterating: the connection is closed.
        except BaseException as error:
            if must_reset:
                reset(self._connection)  # The server might close it gracefully.
            if isinstance(error, AnswerCutError):
                raise ConnectionResetError(errno.ECONNRESET, "the answer was cut") from error
            raise
        if must_reset:
            reset_on_close(self._connection, wanted=False)

    def close(self) -> None:
        """Close the application's iterator."""
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()
