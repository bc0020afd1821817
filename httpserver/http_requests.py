"""
A stricter version of gunicorn's request parser: refuses malformed input early, and sends 100 Continue only when due.

gunicorn waits for the end of a line or chunk even after receiving garbage, and sends 100 Continue before the
application has authenticated the request.
"""

import errno
import logging
import re
import ssl
from typing import Any

from gunicorn.http import errors as http_errors
from gunicorn.http.body import Body, ChunkedReader
from gunicorn.http.errors import InvalidChunkSize, InvalidHeader, InvalidRequestLine
from gunicorn.http.message import Request

from httpserver.application import Application
from runtimeconf.state import get_config

#: The valid prefixes of a request line: an empty line, then a method.
_BEGINS = re.compile(rb"(?:\r\n)?(?:\r|[!$%&'*+\-.^_`|~0-9A-Z]{0,20}|[!$%&'*+\-.^_`|~0-9A-Z]{1,20} .*)", re.DOTALL)
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
#: The valid prefixes of a chunk-size line.
_SIZE_BEGINS = re.compile(rb"(?:[0-9a-fA-F]+[ \t]*(?:;[^\r\n]*)?\r?)?")


class WebRequest(Request):
    """A request that is refused as soon as it cannot be well-formed."""

    #: Whether the client waits for 100 Continue before it sends the body. The connection then closes after the response
    #: because the client may or may not send the body.
    awaits_continue = False
    body: Any
    #: A private attribute of gunicorn. While it is true, gunicorn sends 100 Continue as soon as it has read the
    #: headers.
    _expected_100_continue = False

    def read_into(self, unreader: Any, buf: bytearray, stop: bool = False) -> None:
        """Read more of the headers, and refuse headers that cannot be well-formed."""
        super().read_into(unreader, buf, stop=stop)
        if b"\r\n\r\n" in buf:
            return
        if self.method is None and not _BEGINS.fullmatch(buf):
            raise InvalidRequestLine(bytes(buf))
        if _CONTROLS.search(buf):
            raise InvalidHeader("control character")

    def set_body_reader(self) -> None:
        """Use the stricter chunk reader, and send 100 Continue only when the body is read."""
        super().set_body_reader()
        reader = self.body.reader
        if isinstance(reader, ChunkedReader):
            reader = _Chunks(self, self.unreader)
        self.awaits_continue = self._expected_100_continue and getattr(reader, "length", 1) > 0
        self._expected_100_continue = False
        self.body = Body(_AwaitedReader(reader, self) if self.awaits_continue else reader)

    def should_close(self) -> bool:
        """Return whether the connection closes after the response."""
        return self.awaits_continue or bool(super().should_close())


class _AwaitedReader:
    """Reads a body, and sends 100 Continue when the application first asks for the body."""

    def __init__(self, reader: Any, request: WebRequest) -> None:
        self._reader = reader
        self._request = request

    def read(self, size: int) -> Any:
        if self._request.awaits_continue:
            self._request.awaits_continue = False
            self._request.unreader.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._reader.read(size)


class _Chunks(ChunkedReader):
    """Chunked coding, refused at the first malformed or too large chunk size."""

    def parse_chunk_size(self, unreader: Any, data: bytes | None = None) -> tuple[int, bytes | None]:
        """
        Read a chunk-size line.

        Raises:
            InvalidChunkSize: The line is malformed.
            OSError: The chunk is larger than any allowed body (EMSGSIZE).
        """
        line = bytearray(data or b"")
        while b"\r\n" not in line:
            if not _SIZE_BEGINS.fullmatch(line) or len(line) > self.limit_chunk_size_line:
                raise InvalidChunkSize(bytes(line))
            self.read_into(unreader, line)
        size, rest = super().parse_chunk_size(unreader, bytes(line))
        if size > get_config().http.max_body_bytes:
            raise OSError(errno.EMSGSIZE, "the chunk is larger than any allowed body")
        return size, rest


logger = logging.getLogger(__name__)


class HeadTimeoutError(Exception):
    """The request headers were not complete in time."""


#: Exception class, status, code, sentence. The first matching class is used.
REFUSALS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (HeadTimeoutError, 408, "request_timeout", "The headers were not complete in time: send them without long pauses."),
    (http_errors.LimitRequestLine, 414, "uri_too_long", "The request line is too long."),
    (http_errors.LimitRequestHeaders, 431, "headers_too_large", "The request headers are too large."),
    (http_errors.ExpectationFailed, 417, "expectation_failed", "The Expect header contains an unknown expectation."),
    (
        http_errors.UnsupportedTransferCoding,
        501,
        "unsupported_transfer_coding",
        "The only supported transfer coding is chunked.",
    ),
    (http_errors.ParseException, 400, "malformed_request", "The request is not well-formed HTTP/1.1."),
)


def refuse(application: Application, client: Any, address: Any, error: BaseException) -> None:
    """
    Respond to a request that failed outside *application* as the application would, unless TLS has failed.

    Only the peer is logged, because a malformed header may contain a key.
    """
    peer = address[0] if isinstance(address, tuple) and address else ""
    if isinstance(error, ssl.SSLError):
        # The peer caused the failure (plain HTTP, an untrusted certificate) and cannot read a response.
        logger.info("a TLS connection failed", extra={"fields": {"peer": peer, "reason": error.reason}})
        return
    found = (row[1:] for row in REFUSALS if isinstance(error, row[0]))
    status, code, detail = next(found, (500, "internal_error", "The server failed to handle the request."))
    if status == 500:
        logger.error("a request failed outside the application", exc_info=error)
    response = application.refuse(peer, status, code, detail)
    try:
        client.sendall(response)
    except OSError:
        logger.debug("the client of a refused request disconnected")
