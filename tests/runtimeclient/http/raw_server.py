"""A server that says what a test makes it say, byte by byte."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n"


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

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            try:
                self.speak()
            except OSError:  # The client has disconnected.
                if is_left is not None:
                    is_left.set()

        def speak(self) -> None:
            while request := self.rfile.readline():
                while self.rfile.readline() not in {b"\r\n", b""}:
                    pass
                if request.startswith(b"GET /health"):
                    self.wfile.write(HEALTHY)
                    continue
                self.wfile.write(head)
                while again and not is_over.wait(pause_s):
                    self.wfile.write(again)
                return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            is_over.set()
            server.shutdown()
            thread.join()
