"""
Serves one page over HTTP: `GET` and `HEAD` of `/metrics`, and nothing else.

It is for scrapers, not for browsers. A connection serves one request, in a thread of its own, and is closed after a few
seconds. At most `MAX_CONNECTIONS` are served at once; further ones wait. A hundred silent clients delay a scrape by
less than the usual time-out, 10 s. Pages are made one at a time, so that many requests leave time to the other threads.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from system.addresses import Address

logger = logging.getLogger(__name__)

PATH = "/metrics"

MAX_CONNECTIONS = 32
MAX_REQUEST_BYTES = 16 * 1024

#: Seconds until a request must have arrived, and until its answer must have been read.
REQUEST_S = 1.0
ANSWER_S = 5.0

_POLL_S = 0.5

#: Returns the content type and the page for an `Accept` header.
Page = Callable[[str], tuple[str, bytes]]


class PageServer:
    """
    Serves *page* on *listener*, a listening socket that is closed by `stop`.

    On a loopback address it answers only requests whose `Host` is one too, so that no page in a browser of this machine
    can read it under a name of its own.
    """

    def __init__(self, listener: socket.socket, page: Page) -> None:
        self._listener = listener
        self._page = page
        self._is_local = Address(listener.getsockname()[0], 0).is_loopback
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._making = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-page", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._listener.getsockname()[1]
        return port

    def start(self) -> None:
        """Serve from now on."""
        self._listener.settimeout(_POLL_S)
        self._thread.start()

    def stop(self) -> None:
        """Accept no more connections."""
        self._stop.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait for a connection
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._slots.acquire(timeout=_POLL_S):
                continue
            try:
                self._accept()
            except (OSError, RuntimeError) as error:
                self._slots.release()
                if not isinstance(error, TimeoutError):  # no descriptor or no thread left
                    self._stop.wait(_POLL_S)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            threading.Thread(target=self._serve, args=(connection,), name="metrics-request", daemon=True).start()
        except RuntimeError:
            connection.close()
            raise

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                answer = self._answer(_request(connection))
                connection.settimeout(ANSWER_S)
                connection.sendall(answer)
        except Exception:
            logger.exception("the page of metrics could not be made")
        finally:
            self._slots.release()

    def _answer(self, lines: list[str]) -> bytes:
        method, _, rest = lines[0].partition(" ")
        target, _, version = rest.partition(" ")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if not version.startswith("HTTP/1."):
            return _response("400 Bad Request", "text/plain", b"This is not an HTTP/1.1 request.\n")
        if self._is_local and not _is_loopback_host(headers.get("host", "localhost")):
            return _response("421 Misdirected Request", "text/plain", b"The Host is not an address of this machine.\n")
        if target.partition("?")[0] != PATH:
            return _response("404 Not Found", "text/plain", b"There is only /metrics here.\n")
        if method not in {"GET", "HEAD"}:
            return _response("405 Method Not Allowed", "text/plain", b"Only GET is allowed.\n", "Allow: GET, HEAD")
        with self._making:
            content_type, body = self._page(headers.get("accept", ""))
        return _response("200 OK", content_type, body, is_head=method == "HEAD")


def _request(connection: socket.socket) -> list[str]:
    """Return the lines of the request; raises OSError if it does not arrive in time, or is too long."""
    deadline = time.monotonic() + REQUEST_S
    received = b""
    while b"\r\n\r\n" not in received:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or len(received) > MAX_REQUEST_BYTES:
            raise OSError("no request")
        connection.settimeout(left_s)
        data = connection.recv(MAX_REQUEST_BYTES)
        if not data:
            raise OSError("no request")
        received += data
    return received.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")


def _response(status: str, content_type: str, body: bytes, *headers: str, is_head: bool = False) -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if is_head else body)


def _is_loopback_host(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return Address(name.lower(), 0).is_loopback
