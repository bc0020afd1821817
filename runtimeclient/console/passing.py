"""Forwards a request from the page to the runtime with the key, and streams the response back."""

import io
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from email.message import Message
from typing import Any, NamedTuple, Protocol

import httpx

from runtimeclient.client import RuntimeClient
from runtimeclient.errors import ClientError, ConnectionFailedError
from runtimeclient.http.api_keys import masked
from runtimeclient.http.results import ARROW, SqlResult
from runtimeclient.http.timeouts import DEFAULT_TIMEOUTS

_REQUEST_HEADERS = ("Accept", "Content-Type", "Cache-Control", "X-Request-Id")
_RESPONSE_HEADERS = (
    *("Content-Type", "X-Request-Id", "X-Query-Id", "X-Cache", "Retry-After", "Allow"),
    *("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"),
)
#: The browser would read the last chunk of such a response as the start of the next response.
_WITHOUT_BODY = frozenset({204, 205, 304})
_PARQUET = "application/vnd.apache.parquet"
_LOOK_EVERY_S = 0.25


class Request(NamedTuple):
    """A validated request from the page."""

    method: str
    target: str  # path and query string
    headers: Message
    body: bytes | None


class Browser(Protocol):
    """The browser, to which a response is written."""

    connection: socket.socket

    def begin(self, status: int, headers: Mapping[str, str]) -> "Body":
        """Send the status and headers, and return the stream for the body."""


class Body(io.RawIOBase):
    """
    A chunked body. Unless `end` is called, no client considers the body complete.

    Args:
        send: Writes bytes to the browser.
    """

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send

    def writable(self) -> bool:
        """Return True, because this stream is writable."""
        return True

    def write(self, content: Any) -> int:
        """Send one chunk, unless it is empty, because an empty chunk would end the body."""
        if size := len(memoryview(content)):
            self._send(b"%x\r\n%b\r\n" % (size, content))
        return size

    def end(self) -> None:
        """Send the last chunk, which completes the body."""
        self._send(b"0\r\n\r\n")


class Connection:
    """The connection to the runtime for one request. It is shut down when the browser disconnects."""

    def __init__(self) -> None:
        self._stream: Any = None
        self._is_cut = False
        self._lock = threading.Lock()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Remember the stream that httpcore opened."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._stream = info["return_value"]
                if self._is_cut:
                    self._shut_down()

    def cut(self) -> None:
        """Shut down the connection. A thread that waits for the runtime gets an error, and the statement is stopped."""
        with self._lock:
            self._is_cut = True
            self._shut_down()

    def _shut_down(self) -> None:
        if self._stream is not None:
            # Closing a socket would not wake a thread that reads from it.
            with suppress(OSError):
                self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def pass_on(request: Request, client: RuntimeClient, browser: Browser) -> None:
    """
    Send *request* to the runtime and the response to the browser. Nothing is stored.

    Raises:
        ConnectionFailedError: The runtime does not respond. Nothing has been sent to the browser.
        OSError: The browser has disconnected, or the response is incomplete and must not look complete.
    """
    headers = {name: value for name in _REQUEST_HEADERS if (value := request.headers.get(name)) is not None}
    is_parquet = headers.get("Accept") == _PARQUET
    if is_parquet:
        from runtimeclient.output.arrow_files import write_arrow_result  # noqa: PLC0415 (an extra, slow to import)

        headers["Accept"] = ARROW
    connection = Connection()
    with (
        _cutting(connection, browser.connection),
        closing(client.exchange(request.method, request.target, headers, request.body, connection.trace)) as response,
    ):
        found = {name: response.headers.get(name) for name in _RESPONSE_HEADERS}
        kept = {name: masked(value, client.api_key) for name, value in found.items() if value is not None}
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ConnectionFailedError("The response is compressed, so the server is not a runtime.")
        if response.status_code < 200 or response.status_code in _WITHOUT_BODY:
            raise ConnectionFailedError(f"The server is not a runtime: the response has status {response.status_code}.")
        if is_parquet and response.status_code == 200:
            body = browser.begin(200, {**kept, "Content-Type": _PARQUET})
            stream = io.BufferedWriter(body)
            try:
                write_arrow_result(SqlResult(response, DEFAULT_TIMEOUTS.silence_s), "parquet", stream)
                stream.flush()
            except ClientError as exc:
                raise ConnectionAbortedError(str(exc)) from exc
            body.end()
            return
        chunks = response.iter_raw()
        if response.status_code != 200 or request.target.partition("?")[0] != "/v1/sql":
            # An error message, which is short. A server may repeat the request, including the key.
            chunks = iter([masked(_read(response).decode("latin-1"), client.api_key).encode("latin-1")])
        body = browser.begin(response.status_code, kept)
        try:
            for chunk in chunks:
                body.write(chunk)
        except httpx.TransportError as exc:
            raise ConnectionAbortedError("The runtime ended its response early.") from exc
        body.end()


def problem(status: int, code: str, detail: str) -> bytes:
    """Return an error body in the runtime's format."""
    return json.dumps({"type": "about:blank", "title": "", "status": status, "detail": detail, "code": code}).encode()


def _read(response: httpx.Response, most: int = 4 << 20) -> bytes:
    body = bytearray()
    try:
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > most:
                raise ConnectionFailedError("The response is too long, so the server is not a runtime.")
    except httpx.TransportError as exc:
        raise ConnectionFailedError("The runtime ended its response early.") from exc
    return bytes(body)


@contextmanager
def _cutting(connection: Connection, browser: socket.socket) -> Iterator[None]:
    """Shut down *connection* if the browser disconnects during the block."""
    is_over = threading.Event()

    def watch() -> None:
        with suppress(OSError, ValueError):
            while not is_over.is_set():
                if select.select([browser], [], [], _LOOK_EVERY_S)[0]:
                    if not browser.recv(1, socket.MSG_PEEK):
                        connection.cut()
                    return

    thread = threading.Thread(target=watch, name="console-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
