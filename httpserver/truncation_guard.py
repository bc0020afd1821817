"""WSGI middleware between gunicorn and the application: connections that must close, and answers that break off."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from httpserver.connections import reset, reset_on_close
from sqlapi.body import CLOSE_CONNECTION
from sqlapi.errors import AnswerCutError


class VisibleCuts:
    """
    Ends a failed answer so that no client takes it for complete, and a connection that must not live on.

    A connection ends after its answer when the application asks for it (`CLOSE_CONNECTION`), and when *is_stopping*
    says, as the answer begins, that the server stops.
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

        return _Chunks(self._application(environ, start), response, environ["gunicorn.socket"])


class _Chunks:
    """
    The chunks of one answer; an `AnswerCutError` becomes a connection reset as gunicorn understands it.

    HTTP/1.1 sees the missing last chunk. An answer that ends by closing, as those of HTTP/1.0 do, is told by a reset
    only: until all of it was written the connection has no other end, not even when the process is killed.
    """

    def __init__(self, chunks: Iterable[bytes], response: Any, connection: Any) -> None:
        self._chunks = chunks
        self._response = response
        self._connection = connection

    def __iter__(self) -> Iterator[bytes]:
        must_reset = False
        try:
            for number, chunk in enumerate(self._chunks):
                # Not sooner: what fails before the first byte is answered like any other refusal.
                if number == 0 and not self._response.chunked and self._response.response_length is None:
                    must_reset = True
                    reset_on_close(self._connection, wanted=True)
                yield chunk
        except GeneratorExit:
            raise  # Nobody asks for more: the connection is closed.
        except BaseException as error:
            if must_reset:
                reset(self._connection)  # gunicorn might end it politely
            if isinstance(error, AnswerCutError):
                raise ConnectionResetError(errno.ECONNRESET, "the answer was cut") from error
            raise
        if must_reset:
            reset_on_close(self._connection, wanted=False)

    def close(self) -> None:
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()
