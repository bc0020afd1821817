"""The client for large answers."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.load import AnswerError, Endpoint, ask


class Handler(BaseHTTPRequestHandler):
    """A statement is a way of answering and a number of objects."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        way, count = self.rfile.read(int(self.headers["Content-Length"])).decode().split()
        body = b"[" + b",".join([b'{"a":1}'] * int(count)) + b"]"
        self.send_response(404 if way == "refused" else 200)
        if way in {"chunked", "broken"}:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(
                f"{len(body):x}\r\n".encode() + body + b"\r\n" + (b"0\r\n\r\n" if way == "chunked" else b"")
            )
        else:
            self.send_header("Content-Length", str(len(body) + (way == "short")))
            self.end_headers()
            self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the server's name for it)
        """Keep quiet."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Endpoint(f"http://127.0.0.1:{server.server_port}/sql")
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("way", ["chunked", "whole"])
@pytest.mark.parametrize("count", [0, 1, 300_000])
def test_objects_are_counted(endpoint: Endpoint, way: str, count: int) -> None:
    assert ask(endpoint, f"{way} {count}").objects == count


@pytest.mark.parametrize("way", ["broken", "short", "refused"])
@pytest.mark.parametrize("count", [1, 300_000])
def test_an_incomplete_answer_is_an_error(endpoint: Endpoint, way: str, count: int) -> None:
    with pytest.raises(AnswerError, match="404" if way == "refused" else "ends after"):
        ask(endpoint, f"{way} {count}")
