"""A fake runtime on a real socket; tests set its replies."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.runtimeclient.calling import Called, call

API_KEY = "correct-horse-battery-staple"
VND = "application/vnd.spiceai.sql.v1+json"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """`is_cut` closes the connection before the last chunk; without `has_end`, closing it ends the body."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    is_cut: bool = False
    has_end: bool = True


def problem(status: int, code: str, detail: str, request_id: str = "r-1") -> Reply:
    body = {"type": "about:blank", "title": "", "status": status, "detail": detail, "code": code}
    return Reply(status, json.dumps(body | {"request_id": request_id}).encode(), "application/problem+json")


def with_schema(rows: str, *columns: str) -> Reply:
    schema = {"fields": [{"name": column} for column in columns]}
    return Reply(body=f'{{"row_count":0,"schema":{json.dumps(schema)},"data":{rows}}}'.encode(), content_type=VND)


def as_reply(value: object) -> Reply:
    return Reply(body=json.dumps(value).encode())


ONE = with_schema('[{"a":1}]', "a")
ONE_TABLE = " a\n---\n 1\n(1 row)\n"


@dataclass
class Remote:
    """
    The runtime's side. `replies` maps (method, path) to a reply, or to a function from request to reply.

    Anything else is 404, in HTML.
    """

    url: str = ""
    replies: dict[tuple[str, str], Reply | Callable[[Request], Reply]] = field(
        default_factory=lambda: {
            ("GET", "/health"): Reply(body=b"ok\n", content_type="text/plain"),
            ("GET", "/v1/datasets"): Reply(body=b"[]"),
        }
    )
    requests: list[Request] = field(default_factory=list)

    def on(self, method: str, path: str, reply: Reply | Callable[[Request], Reply]) -> None:
        self.replies[method, path] = reply

    def on_sql(self, reply: Reply | Callable[[Request], Reply]) -> None:
        self.on("POST", "/v1/sql", reply)

    def on_refreshes(self, dataset: str, *runs: Mapping[str, Any]) -> None:
        """Accept a refresh request, and answer each poll with the next of *runs*."""
        path = f"/v1/datasets/{dataset}/acceleration/refresh"
        looks = iter(runs)
        message = f"Dataset refresh triggered for {dataset}."
        self.on(
            "POST",
            path,
            Reply(201, json.dumps({"message": message, "refresh": {"id": "7", "status": "queued"}}).encode()),
        )
        self.on("GET", path, lambda _: Reply(body=json.dumps([next(looks)]).encode()))

    def call(self, *arguments: str, environ: Mapping[str, str] | None = None, **streams: Any) -> Called:
        """Run `querykeep` with these arguments against this runtime."""
        return call(*arguments, environ={"RUNTIME_HTTP_ENDPOINT": self.url} | dict(environ or {}), **streams)

    @property
    def statements(self) -> list[str]:
        return [request.body.decode() for request in self.requests if request.path == "/v1/sql"]

    def reply(self, request: Request) -> Reply:
        self.requests.append(request)
        reply = self.replies.get((request.method, request.path.partition("?")[0]), Reply(404, b"<html>", "text/html"))
        return reply(request) if callable(reply) else reply


def refuse_other_keys(reply: Reply) -> Callable[[Request], Reply]:
    """Answer 401 to a request without the key."""

    def check(request: Request) -> Reply:
        if request.headers.get("X-API-Key") == API_KEY:
            return reply
        return problem(401, "unauthorized", "The API key is missing or unknown.")

    return check


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    runtime: Remote

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in the base class)
        """Keep quiet."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # The client may disconnect during a reply.
            self.close_connection = True

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        reply = self.runtime.reply(Request(self.command, self.path, dict(self.headers.items()), body))
        self.send_response(reply.status)
        framing = {"Transfer-Encoding": "chunked"} if reply.has_end else {"Connection": "close"}
        for name, value in {"Content-Type": reply.content_type, **reply.headers, **framing}.items():
            self.send_header(name, value)
        self.end_headers()
        if not reply.has_end:
            self.wfile.write(reply.body)
            return
        for start in range(0, len(reply.body), 1 << 16):
            chunk = reply.body[start : start + (1 << 16)]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        if reply.is_cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    do_POST = do_GET  # noqa: N815 (its name in the base class)


@contextmanager
def serve(remote: Remote, tls: ssl.SSLContext | None = None) -> Iterator[Remote]:
    """Serve *remote* on a free port of 127.0.0.1, with TLS if there is a context."""

    class Handler(_Handler):
        runtime = remote

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        # Accepting includes the handshake. One that fails is ignored, like any error of accept().
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    remote.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield remote
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
