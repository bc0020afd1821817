"""
The HTTP side of `manage.py runserver`: Django's development server with the promises of the contract.

One request a connection; chunked bodies work; refusals are problem bodies; an answer that is cut short ends in a reset.
"""

from __future__ import annotations

import email.errors
import io
import logging
import re
import socket
import sys
from http import HTTPStatus
from typing import Any, cast
from wsgiref.types import WSGIEnvironment

from django.core.handlers.wsgi import LimitedStream
from django.core.servers import basehttp

from httpserver.connections import reset, reset_on_close
from runtimeconf.state import get_config
from sqlapi.access_log import log_refused_request
from sqlapi.errors import BodyTooLargeError
from sqlapi.problems import problem

logger = logging.getLogger(__name__)

#: What Python's parser of headers, which is one of mail, notes about lines that are no headers. (About a multipart
#: type it notes more, because it is given no body.)
BROKEN_HEADERS = (
    email.errors.FirstHeaderLineIsContinuationDefect,
    email.errors.MisplacedEnvelopeHeaderDefect,
    email.errors.MissingHeaderBodySeparatorDefect,
)

#: A chunk-size line and a trailer line hold this many bytes at most (RFC 9112, 7.1).
MAX_CHUNK_LINE = 4096


#: More digits than any body has bytes, and fewer than Python refuses to make a number of.
MAX_LENGTH_DIGITS = 18

_REQUEST_LINE = re.compile(rb"[^\x00-\x20\x7f]+ [^\x00-\x20\x7f]+ HTTP/[0-9.]+\r\n")
# RFC 9110, 5.5 and RFC 9112, 2.2: a bare CR or LF ends no line, and of the control characters only a tab is a value's.
_HEADER_LINE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*\r\n")
#: White space that may stand around a header value (RFC 9110, 5.6.3).
_OWS = " \t"


class _HeaderLines:
    """Passes the header lines to Python's parser and notes whether each is as RFC 9112 has it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.are_sound = True

    def readline(self, size: int = -1) -> bytes:
        """Return the next line, *size* bytes of it at most."""
        line: bytes = self._stream.readline(size)
        self.are_sound = self.are_sound and _HEADER_LINE.fullmatch(line) is not None
        return line


class ChunkedBody(io.RawIOBase):
    """
    The decoded body of a request with `Transfer-Encoding: chunked` (RFC 9112, 7.1), read as far as asked for.

    Args:
        stream: What comes from the client.
        max_chunk_bytes: No body that is read is longer.

    Raises:
        ValueError: The coding is malformed or ends early.
        BodyTooLargeError: A chunk is longer than *max_chunk_bytes*.
    """

    def __init__(self, stream: Any, max_chunk_bytes: int) -> None:
        super().__init__()
        self._stream = stream
        self._max_chunk_bytes = max_chunk_bytes
        self._left_in_chunk = 0
        self._ended = False

    def readable(self) -> bool:
        """Say that this is a stream to read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return *size* decoded bytes, fewer only at the end; all that are left when *size* is negative."""
        parts = []
        wanted = size if size >= 0 else None
        while wanted is None or wanted > 0:
            if not self._left_in_chunk and not self._next_chunk():
                break
            count = self._left_in_chunk if wanted is None else min(wanted, self._left_in_chunk)
            data = self._stream.read(count)
            if len(data) < count:
                raise ValueError("the body ends within a chunk")
            self._left_in_chunk -= count
            parts.append(data)
            if not self._left_in_chunk and self._line() != b"":
                raise ValueError("a chunk is longer than it says")
            if wanted is not None:
                wanted -= count
        return b"".join(parts)

    def _next_chunk(self) -> bool:
        if self._ended:
            return False
        size_text = self._line().split(b";", 1)[0].strip(b" \t")
        if not size_text or size_text.strip(b"0123456789abcdefABCDEF"):
            raise ValueError("a chunk size is not a number")
        self._left_in_chunk = int(size_text, 16)
        if self._left_in_chunk > self._max_chunk_bytes:
            raise BodyTooLargeError(self._max_chunk_bytes)
        if self._left_in_chunk == 0:
            self._ended = True
            while self._line():
                pass  # Trailers have no meaning here.
        return not self._ended

    def _line(self) -> bytes:
        line: bytes = self._stream.readline(MAX_CHUNK_LINE)
        if not line.endswith(b"\r\n"):
            raise ValueError("a line of the chunked coding does not end")
        return line[:-2]


class _AwaitedBody:
    """The body of a client that waits for 100 Continue before it sends it: the first read asks for it."""

    def __init__(self, stream: Any, out: Any) -> None:
        self._stream = stream
        self._out = out
        self._is_asked_for = False

    def read(self, size: int = -1) -> bytes:
        """Return *size* bytes, or all that are left."""
        return cast(bytes, self._asked().read(size))

    def readline(self, size: int = -1) -> bytes:
        """Return the next line, *size* bytes of it at most."""
        return cast(bytes, self._asked().readline(size))

    def _asked(self) -> Any:
        if not self._is_asked_for:
            self._is_asked_for = True
            self._out.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._stream


class _ServerHandler(basehttp.ServerHandler):
    """Runs the application for one request."""

    server_software = "runserver"  # without versions
    headers: Any  # of the answer, set by wsgiref when the application starts it
    request_handler: RequestHandler

    def __init__(self, stdin: Any, stdout: Any, stderr: Any, environ: WSGIEnvironment, **kwargs: Any) -> None:
        super().__init__(stdin, stdout, stderr, environ, **kwargs)
        if environ.get("HTTP_TRANSFER_ENCODING", "").lower() == "chunked":
            self.stdin = ChunkedBody(stdin, get_config().http.max_body_bytes)
            environ["wsgi.input_terminated"] = True
        else:
            self.stdin = LimitedStream(stdin, int(environ.get("CONTENT_LENGTH") or 0))

    def cleanup_headers(self) -> None:
        """Announce the end of the connection: an unread body must not be taken for a request."""
        super().cleanup_headers()
        self.headers["Connection"] = "close"
        self.request_handler.close_connection = True
        if "Content-Length" not in self.headers:
            # Its end is that of the connection, which until then must not look like one.
            reset_on_close(self._connection, wanted=True)

    def finish_content(self) -> None:
        """Take note that the answer is complete."""
        super().finish_content()
        reset_on_close(self._connection, wanted=False)

    def close(self) -> None:
        """Close the answer without reading what is left of the request."""
        super(basehttp.ServerHandler, self).close()

    def log_exception(self, exc_info: Any) -> None:
        """Say nothing: the application has logged what went wrong."""

    def handle_error(self) -> None:
        """End a failed answer with a reset; nothing more can be said on this connection."""
        reset(self._connection)

    @property
    def _connection(self) -> socket.socket:
        return cast(socket.socket, self.request_handler.connection)


class RequestHandler(basehttp.WSGIRequestHandler):
    """Reads one request; what is not HTTP is answered with a problem body."""

    def get_environ(self) -> dict[str, Any]:
        """Return the environ with the path as sent, and the socket by which a client that leaves is noticed."""
        self.path = self.requestline.split(" ")[1]  # the base class has folded leading slashes into one
        environ = super().get_environ() | {"runtime.socket": self.connection}
        for name in self.headers:
            # The base class also strips what only Unicode takes for white space, such as a no-break space.
            variable = f"HTTP_{name.upper().replace('-', '_')}"
            if variable in environ:
                environ[variable] = ",".join(value.strip(_OWS) for value in self.headers.get_all(name, []))
        return environ

    def handle_expect_100(self) -> bool:
        """Send no 100 Continue yet: the body may be one that nobody reads."""
        self._awaits_continue = True
        return True

    def handle_one_request(self) -> None:
        """Serve one request with `_ServerHandler`."""
        self._awaits_continue = False
        self.raw_requestline = self.rfile.readline(65537)
        if len(self.raw_requestline) > 65536:
            self.requestline = self.request_version = self.command = ""
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            return
        if not self.raw_requestline:
            return
        if _REQUEST_LINE.fullmatch(self.raw_requestline) is None:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        stream = self.rfile
        lines = _HeaderLines(stream)
        self.rfile = cast(Any, lines)
        try:
            if not self.parse_request():
                return
        finally:
            self.rfile = stream
        refusal = self._refusal() if lines.are_sound else HTTPStatus.BAD_REQUEST
        if refusal is not None:
            self.send_error(refusal)
            return
        body = _AwaitedBody(self.rfile, self.wfile) if self._awaits_continue else self.rfile
        handler = _ServerHandler(body, self.wfile, self.get_stderr(), self.get_environ())
        handler.request_handler = self
        handler.run(cast(Any, self.server).get_app())

    def _refusal(self) -> HTTPStatus | None:
        """Return the status for a request whose framing or headers can be read in two ways; None when it is sound."""
        length = self.headers.get_all("Content-Length", [])
        codings = self.headers.get_all("Transfer-Encoding", [])
        # RFC 9112, 6.1 and 6.3: with both of them, with two lengths or with an odd one a request can be smuggled.
        framed = len(length) + len(codings) <= 1 and all(
            text.isascii() and text.isdigit() and len(text) <= MAX_LENGTH_DIGITS for text in length
        )
        # Python's parser takes folded lines (RFC 9112, 5.2), and notes a line that is no header as a defect.
        folded = any("\n" in value or "\r" in value for value in self.headers.values())
        broken = any(isinstance(defect, BROKEN_HEADERS) for defect in self.headers.defects)
        too_old = self.request_version == "HTTP/0.9" or (self.request_version == "HTTP/1.0" and codings)
        if not framed or folded or broken or too_old:
            return HTTPStatus.BAD_REQUEST
        if codings and codings[0].lower() != "chunked":
            return HTTPStatus.NOT_IMPLEMENTED
        return None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the application never sees."""
        codes = {
            HTTPStatus.REQUEST_URI_TOO_LONG: ("uri_too_long", "The request line is too long."),
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: (
                "headers_too_large",
                "The request headers are too large.",
            ),
            HTTPStatus.NOT_IMPLEMENTED: ("unsupported_transfer_coding", "Only chunked is understood."),
        }
        problem_code, detail = codes.get(
            HTTPStatus(code), ("malformed_request", "The request is not well-formed HTTP/1.1.")
        )
        status = code if HTTPStatus(code) in codes else 400
        answer = problem(status, problem_code, detail)
        log_refused_request(peer=self.client_address[0], status=status, code=problem_code, request_id=answer.request_id)
        self.wfile.write(answer.as_http11())
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it so)
        """Say nothing: each request has its line in the access log."""


class DevelopmentServer(basehttp.WSGIServer):
    """Listens; many clients may wait."""

    request_queue_size = 128

    def __init__(self, address: Any, handler: Any, **kwargs: Any) -> None:
        super().__init__(address, RequestHandler, **kwargs)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that left; anything else reaches the log without the request."""
        if not basehttp.is_broken_pipe_error():
            logger.error("a request failed outside the application", exc_info=sys.exc_info())
