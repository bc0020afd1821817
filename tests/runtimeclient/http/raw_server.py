"""A server that says what a test makes it say, byte by byte."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.web_server import File, serving

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def answer(content_type: str, rest: bytes = CHUNKED, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n".encode() + rest


@contextmanager
def speaking(
    head: bytes, again: bytes = b"", pause_s: float = 0, is_left: threading.Event | None = None
) -> Iterator[str]:
    """
    Answer /health like a runtime, and anything else with *head*, then *again* until the client disconnects.

    Pause for *pause_s* before each *again*. Set *is_left* when the client has disconnected.
    """
    is_over = threading.Event()

    def speak(connection: socket.socket) -> None:
        try:
            connection.sendall(head)
            while again and not is_over.wait(pause_s):
                connection.sendall(again)
        except OSError:
            if is_left is not None:
                is_left.set()

    with serving() as server:
        server.files["/health"] = File(b"ok\n", headers={"Content-Type": "text/plain"})
        server.otherwise = File(take_over=speak)
        try:
            yield server.url
        finally:
            is_over.set()
