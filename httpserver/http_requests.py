"""
Requests as the web tier reads them: what cannot become one is refused at once, and 100 Continue is sent when due.

gunicorn waits for the end of a line, and of a chunk, whatever has come of it already, and sends 100 Continue before
anybody has looked at the request.
"""

from __future__ import annotations

import re
from typing import Any

from gunicorn.http.body import Body, ChunkedReader
from gunicorn.http.errors import InvalidChunkSize, InvalidHeader, InvalidRequestLine
from gunicorn.http.message import Request

from runtimeconf.state import get_config
from sqlapi.errors import BodyTooLargeError

#: What a request line may begin with, before it is complete: an empty line, then a method.
_BEGINS = re.compile(rb"(?:\r\n)?(?:\r|[!$%&'*+\-.^_`|~0-9A-Z]{0,20}|[!$%&'*+\-.^_`|~0-9A-Z]{1,20} .*)", re.DOTALL)
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
#: What the line of a chunk's size may be, before it is complete.
_SIZE_BEGINS = re.compile(rb"(?:[0-9a-fA-F]+[ \t]*(?:;[^\r\n]*)?\r?)?")


class WebRequest(Request):
    """
    A request whose sender is nobody's proxy, whatever it says of itself: `gunicorn_web` trusts none.

    Attributes:
        awaits_continue: Whether the client waits for 100 Continue before it sends the body. The connection ends with
            the answer then: nobody knows whether a body still comes.
    """

    awaits_continue = False
    body: Any
    _expected_100_continue: bool

    def _peer_is_trusted_proxy(self) -> bool:
        return False

    def read_into(self, unreader: Any, buf: bytearray, stop: bool = False) -> None:
        """Read more of the head, and refuse what no more can make a request of."""
        super().read_into(unreader, buf, stop=stop)
        if b"\r\n\r\n" in buf:
            return
        if self.method is None and not _BEGINS.fullmatch(buf):
            raise InvalidRequestLine(bytes(buf))
        if _CONTROLS.search(buf):
            raise InvalidHeader("control character")

    def set_body_reader(self) -> None:
        """Read a body with more care than gunicorn does."""
        super().set_body_reader()
        reader = self.body.reader
        if isinstance(reader, ChunkedReader):
            reader = _Chunks(self, self.unreader)
        self.body = _Body(reader, self)
        self.awaits_continue = self._expected_100_continue and getattr(reader, "length", 1) > 0
        self._expected_100_continue = False

    def should_close(self) -> bool:
        """Say whether the connection ends with the answer."""
        return self.awaits_continue or bool(super().should_close())


class _Body(Body):
    """A body that asks for itself when it is first read."""

    def __init__(self, reader: Any, request: WebRequest) -> None:
        super().__init__(reader)
        self._request = request

    def _read_reader(self, size: int) -> Any:
        if self._request.awaits_continue:
            self._request.awaits_continue = False
            self._request.unreader.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return super()._read_reader(size)


class _Chunks(ChunkedReader):
    """Chunks of which each has a size that can be one, and that a body may have."""

    def parse_chunk_size(self, unreader: Any, data: bytes | None = None) -> tuple[int, bytes | None]:
        """
        Read the line before a chunk.

        Raises:
            InvalidChunkSize: It cannot become one.
            BodyTooLargeError: No body that is read is so long.
        """
        line = bytearray(data or b"")
        while b"\r\n" not in line:
            if not _SIZE_BEGINS.fullmatch(line) or len(line) > self.limit_chunk_size_line:
                raise InvalidChunkSize(bytes(line))
            self.read_into(unreader, line)
        size, rest = super().parse_chunk_size(unreader, bytes(line))
        limit = get_config().http.max_body_bytes
        if size > limit:
            raise BodyTooLargeError(limit)
        return size, rest
