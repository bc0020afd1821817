"""A web server whose answers a test writes, on a port of loopback."""

import hashlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: The time that `Date` says; files that changed a second before are settled.
NOW = "Sat, 21 Nov 2026 12:00:00 GMT"
LONG_AGO = "Fri, 20 Nov 2026 12:00:00 GMT"


@dataclass(slots=True)
class File:
    """The response for a path; *after* is called once the body is sent, *take_over* replaces the response."""

    body: bytes = b""
    status: int = 200
    head_status: int = 0  # 0: as to GET
    tag: str | None = "made"  # "made" of the body
    headers: Mapping[str, str] = field(default_factory=dict)
    knows_conditions: bool = True
    chunk_bytes: int = 0  # 0: not chunked
    after: Callable[[], None] | None = None
    take_over: Callable[[socket.socket], None] | None = None

    @property
    def all_headers(self) -> dict[str, str]:
        made = f'"{hashlib.sha256(self.body).hexdigest()[:16]}"'
        tag = {"ETag": made if self.tag == "made" else self.tag} if self.tag is not None else {}
        return {**tag, **self.headers}


class WebServer(ThreadingHTTPServer):
    """
    `files` by path and query, and `otherwise` for all others.

    `requests` are the headers that came, `targets` what was asked for, `bodies` what was sent with POST, and `clients`
    the addresses that asked.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, File] = {}
        self.otherwise = File(b"nothing here", status=404)
        self.requests: list[Mapping[str, str]] = []
        self.targets: list[str] = []
        self.bodies: list[bytes] = []
        self.clients: list[tuple[str, int]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients leave as they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def date_time_string(self, timestamp: float | None = None) -> str:
        return NOW

    def do_GET(self) -> None:
        self.server.requests.append(dict(self.headers.items()))
        self.server.targets.append(self.path)
        self.server.clients.append(self.client_address)
        file = self.server.files.get(self.path, self.server.otherwise)
        if file.take_over is not None:
            self.close_connection = True
            file.take_over(self.connection)
            return
        headers = file.all_headers
        status = file.status if self.command == "GET" else file.head_status or file.status
        if status == 200 and file.knows_conditions and self._is_known(headers):
            self.send_response(304)
            self.end_headers()
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if file.chunk_bytes:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(file.body), file.chunk_bytes):
                chunk = file.body[start : start + file.chunk_bytes]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(file.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(file.body)
        if file.after is not None and self.command != "HEAD":
            file.after()

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.do_GET()

    do_HEAD = do_GET  # noqa: N815

    def _is_known(self, headers: Mapping[str, str]) -> bool:
        if "If-None-Match" in self.headers:
            return self.headers["If-None-Match"] == headers.get("ETag")
        return "Last-Modified" in headers and self.headers.get("If-Modified-Since") == headers["Last-Modified"]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """A test says what it needs itself."""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    """Run a server; with *context* it speaks TLS."""
    with WebServer() as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="web-server", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def saying(*parts: bytes, until: threading.Event | None = None) -> Callable[[socket.socket], None]:
    """Answer with *parts* as they are, and hold the connection open until an event."""

    def speak(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
        if until is not None:
            until.wait(60)

    return speak
