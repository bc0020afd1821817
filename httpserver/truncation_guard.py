"""WSGI middleware that makes truncated responses look truncated, and closes connections that must not be reused."""

import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from httpserver.application import Application


def guarded(application: Application, is_stopping: Callable[[], bool]) -> Any:
    """
    Return *application* with guarded responses, for gunicorn.

    A connection closes after its response if the application requires it, or if *is_stopping* is true when the response
    begins.
    """

    def call(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        response = start_response.__self__  # gunicorn passes a bound method of its response object

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if application.must_close(environ) or is_stopping():
                response.force_close()
            return start_response(status, headers, exc_info)

        def ends_by_closing() -> bool:
            return not response.chunked and response.response_length is None

        return GuardedChunks(application(environ, start), environ["gunicorn.socket"], ends_by_closing)

    return call


class GuardedChunks:
    """
    The chunks of one response. The connection is reset if they end with an error.

    With chunked coding the client notices the missing last chunk. A response that *ends_by_closing* the connection, as
    in HTTP/1.0, needs the reset. Until such a response is complete, the connection can only end with a reset, even if
    the process is killed. *ends_by_closing* is called when the first chunk is available.
    """

    def __init__(self, chunks: Iterable[bytes], connection: Any, ends_by_closing: Callable[[], bool]) -> None:
        self._chunks = chunks
        self._connection = connection
        self._ends_by_closing = ends_by_closing

    def __iter__(self) -> Iterator[bytes]:
        must_reset = False
        try:
            for number, chunk in enumerate(self._chunks):
                # Not earlier, because a failure before the first byte gets an ordinary error response.
                if number == 0 and self._ends_by_closing():
                    must_reset = True
                    reset_on_close(self._connection, wanted=True)
                yield chunk
        except GeneratorExit:
            raise  # The server stopped iterating because the connection is closed.
        except BaseException:
            if must_reset:
                reset(self._connection)  # The server might close the connection gracefully.
            raise
        if must_reset:
            reset_on_close(self._connection, wanted=False)

    def close(self) -> None:
        """Close the application's iterator."""
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()


def reset_on_close(connection: Any, *, wanted: bool) -> None:
    """
    Make every close of a socket a reset (RST), even if the system closes it because the process died.

    No peer can mistake a reset for the end of a complete response. If *wanted* is false, closing is graceful again and
    everything written so far reaches the peer.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", wanted, 0))


def reset(connection: Any) -> None:
    """Reset *connection* now. Other holders of the socket object find it closed."""
    reset_on_close(connection, wanted=True)
    # Do not use connection.close(): files made from the socket would keep it open, and a later shutdown would be
    # graceful.
    socket.close(connection.detach())
