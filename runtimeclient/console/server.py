"""
The console's local server. It serves the files of the page, its sessions, and the runtime's `/v1`.

Any user of this machine, and any web page in the user's browser, can connect to this port. Everything except the files
of the page, which contain no data, requires a session. `docs/security.md` lists the threats.
"""

import json
import re
import secrets
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote

from runtimeclient.client import RuntimeClient
from runtimeclient.console.assets import Asset
from runtimeclient.console.passing import Body, Request, pass_on, problem
from runtimeclient.console.sessions import Sessions
from runtimeclient.errors import ClientError, ConnectionFailedError

SESSION_HEADER = "X-Console-Session"
_MAX_BODY_BYTES = 16 << 20
_MAX_TOKEN_BYTES = 128
_SILENCE_S = 60.0
#: Any user of this machine can open thousands of connections. A new one closes the oldest without a session.
_MAX_STRANGERS = 64
_TARGET = re.compile(r"/v1/[A-Za-z0-9._~%/-]*(\?[A-Za-z0-9._~%=&-]*)?")
#: Only our own scripts and connections are allowed. The editor creates style sheets, which need the page's nonce.
#: Browsers refuse to turn text into HTML, because there is no trusted types policy.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data: blob:;"
    " connect-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refusal(NamedTuple):
    """The reason why a request is refused."""

    status: int
    code: str
    detail: str


class ConsoleServer(ThreadingHTTPServer):
    """
    Serves one console on 127.0.0.1.

    Args:
        assets: The files of the page by path.
        about: The facts about the runtime that the page shows, as JSON. They do not include the key.
        port: The port, or 0 for any free port.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, client: RuntimeClient, assets: Mapping[str, Asset], about: Mapping[str, Any], port: int = 0
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.client = client
        self.assets = assets
        self.about = about
        self.sessions = Sessions()
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}  # connections without a session, oldest first
        self.port = int(self.server_address[1])
        #: Another name for this address could belong to a hostile web page (DNS rebinding). localhost can also mean
        #: [::1], where another user may own the port.
        self.host = f"127.0.0.1:{self.port}".removesuffix(":80")  # browsers omit the default port

    def make_link(self, fragment: str = "") -> str:
        """Return a URL that opens the page once. Browsers never send the fragment, which contains the token."""
        return f"http://{self.host}/#token={self.sessions.make_token()}{fragment}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its own thread."""
        with self._lock:
            self._strangers[request] = None
            if len(self._strangers) > _MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection until it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.trust(request)

    def trust(self, connection: socket.socket) -> None:
        """Exempt a connection from the limit on connections without a session."""
        with self._lock:
            self._strangers.pop(connection, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback, because a browser can disconnect at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "querykeep"
    sys_version = ""
    timeout = _SILENCE_S
    disable_nagle_algorithm = True
    server: ConsoleServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in the base class)
        """Log nothing, because a request target can contain a statement."""

    def do_GET(self) -> None:
        """Serve a file of the page, the session, or the runtime's API."""
        path = self.path.partition("?")[0]
        if self.command == "GET" and ("Content-Length" in self.headers or "Transfer-Encoding" in self.headers):
            self.close_connection = True  # the body is not read, so it would be parsed as the next request
        if refusal := self._refuse_host():
            self._refuse(refusal)
        elif self.command == "GET" and (asset := self.server.assets.get("/index.html" if path == "/" else path)):
            self._send_asset(asset)
        elif refusal := self._refuse_origin():
            self._refuse(refusal)
        elif self.command == "POST" and path == "/session":
            self._open_session()
        elif not self.server.sessions.is_open(self.headers.get(SESSION_HEADER)):
            self._refuse(Refusal(401, "console_session", "This page has no session. Open the console's link."))
        else:
            self.server.trust(self.connection)
            self._serve_session(path)

    do_POST = do_GET  # noqa: N815 (its name in the base class)

    def _serve_session(self, path: str) -> None:
        if self.command == "GET" and path == "/session":
            self._send_json(self.server.about)
        elif path.startswith("/v1/"):
            self._pass_on()
        else:
            self._refuse(Refusal(404, "not_found", "The console serves only its page and the runtime's /v1."))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a malformed request or an unsupported method. The base class would send HTML without our headers."""
        self.request_version = self.protocol_version  # without a version, no headers would be sent
        self._refuse(Refusal(int(code), "bad_request", f"{HTTPStatus(code).phrase}."))

    def begin(self, status: int, headers: Mapping[str, str]) -> Body:
        """Send the status and headers of a response, and return the stream for its body."""
        sandbox = {"Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'"}
        self.send_response(status)
        for name, value in {**sandbox, **headers, **_HEADERS, "Transfer-Encoding": "chunked"}.items():
            # A header from the runtime can contain anything, but must not become two headers.
            self.send_header(name, re.sub(r"[^ -~]", "?", value))
        self.end_headers()
        return Body(self.wfile.write)

    def _refuse_host(self) -> Refusal | None:
        if self.headers.get_all("Host", []) == [self.server.host]:
            return None
        return Refusal(403, "console_host", f"Open the console as http://{self.server.host}/.")

    def _refuse_origin(self) -> Refusal | None:
        """Refuse a request from a page with another origin. Browsers send Origin with every POST."""
        own = [f"http://{self.server.host}"]
        origins = self.headers.get_all("Origin", [] if self.command == "POST" else own)
        if origins == own and self.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin":
            return None
        return Refusal(403, "console_origin", "This request was not sent by the console's page.")

    def _open_session(self) -> None:
        body = self._read_body(_MAX_TOKEN_BYTES)
        if body is None:
            return
        session = self.server.sessions.open(body.decode("ascii", "replace"))
        if session is None:
            detail = "This link has already been used or has expired. Press Enter in its terminal for a new link."
            self._refuse(Refusal(403, "console_token", detail))
        else:
            self._send_json({"session": session})

    def _pass_on(self) -> None:
        segments = unquote(self.path.partition("?")[0]).split("/")
        if not _TARGET.fullmatch(self.path) or not {".", ".."}.isdisjoint(segments):
            self._refuse(Refusal(400, "console_target", "This path is not part of the runtime's API."))
            return
        body = self._read_body(_MAX_BODY_BYTES) if self.command == "POST" else None
        if self.command == "POST" and body is None:
            return
        request = Request(self.command, self.path, self.headers, body)
        try:
            pass_on(request, self.server.client, self)
        except ConnectionFailedError as exc:
            self._refuse(Refusal(502, "console_no_runtime", str(exc)))
        except ClientError as exc:  # pyarrow is not installed
            self._refuse(Refusal(501, "console_format", str(exc)))
        except OSError:
            # The connection ends without the last chunk.
            self.close_connection = True

    def _read_body(self, most: int) -> bytes | None:
        """Return the request body. Refuse the request and return None if it is too long or cannot be read."""
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) != 1 or not re.fullmatch("[0-9]{1,9}", lengths[0]) or "Transfer-Encoding" in self.headers:
            self._refuse(Refusal(411, "length_required", "Send a body with exactly one Content-Length header."))
            return None
        if int(lengths[0]) > most:
            self._refuse(Refusal(413, "body_too_large", f"The request body is longer than {most:,} bytes."))
            return None
        body = self.rfile.read(int(lengths[0]))
        if len(body) < int(lengths[0]):
            self.close_connection = True
            return None
        return body

    def _send_asset(self, asset: Asset) -> None:
        nonce = secrets.token_urlsafe(16)
        content = asset.content.replace(b"{{nonce}}", nonce.encode()) if "html" in asset.content_type else asset.content
        self.send_response(200)
        for name, value in {**_HEADERS, "Content-Security-Policy": _POLICY.format(nonce=nonce)}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", asset.content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _send_json(self, value: Mapping[str, Any]) -> None:
        body = self.begin(200, {"Content-Type": "application/json"})
        body.write(json.dumps(value).encode())
        body.end()

    def _refuse(self, refusal: Refusal) -> None:
        # An unread body would be parsed as the next request.
        self.close_connection = True
        body = self.begin(refusal.status, {"Content-Type": "application/problem+json", "Connection": "close"})
        body.write(problem(*refusal))
        body.end()
