"""WSGI middleware between gunicorn and the application: connections that must close, and answers that break off."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from runtime_site.connections import reset
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

        return _Chunks(self._application(environ, start), environ)


class _Chunks:
    """The chunks of one answer; an `AnswerCutError` becomes a connection reset as gunicorn understands it."""

    def __init__(self, chunks: Iterable[bytes], environ: dict[str, Any]) -> None:
        self._chunks = chunks
        self._environ = environ

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._chunks
        except AnswerCutError as error:
            # HTTP/1.1 sees the missing last chunk; HTTP/1.0 ends an answer by closing, so only a reset tells it.
            if self._environ.get("SERVER_PROTOCOL") == "HTTP/1.0":
                reset(self._environ["gunicorn.socket"])
            raise ConnectionResetError(errno.ECONNRESET, "the answer was cut") from error

    def close(self) -> None:
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()
