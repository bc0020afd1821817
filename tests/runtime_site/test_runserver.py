"""The request handler of `manage.py runserver`, with a small application. tests/system covers the whole command."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.http import HttpResponse

from runtime_site.management.commands.runserver import Server, guard

PATIENCE_S = 60.0
NEXT = b"GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n"


class ThreadedServer(socketserver.ThreadingMixIn, Server):
    """The server as Django runs it: without threads it would close each connection after one answer."""

    daemon_threads = True


def echo(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    assert isinstance(environ["runtime.socket"], socket.socket)
    names = ("PATH_INFO", "HTTP_X_API_KEY", "HTTP_AUTHORIZATION", "CONTENT_LENGTH")
    body = ascii([environ.get(name) for name in names]).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


@contextmanager
def serving(application: Any) -> Iterator[Any]:
    with ThreadedServer(("127.0.0.1", 0), None) as server:
        server.set_app(application)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def address() -> Iterator[Any]:
    with serving(echo) as address:
        yield address


def answers(address: Any, request: bytes, *, ends: bool = True) -> bytes:
    """Send *request* and, if it *ends*, no more; return everything until the server closes the connection."""
    received = b""
    with socket.create_connection(address, PATIENCE_S) as client:
        client.sendall(request)
        if ends:
            client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):  # The server closed the connection with unread input.
            while part := client.recv(65536):
                received += part
    return received


def test_a_plain_body_is_skipped_and_the_connection_reused(address: Any) -> None:
    received = answers(address, b"POST /first HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" + NEXT)

    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert b"/next" in received


@pytest.mark.parametrize(
    "framing",
    [
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(NEXT),
        b"Content-Length: +%d\r\n\r\n" % len(NEXT),
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: %s\r\n\r\n" % (b"9" * 5000),
        b"Content-Length : %d\r\n\r\n" % len(NEXT),
        b"no colon\r\nContent-Length: %d\r\n\r\n" % len(NEXT),
        b"\0X: y\r\nContent-Length: %d\r\n\r\n" % len(NEXT),
    ],
)
def test_no_other_body_is_parsed_as_the_next_request(address: Any, framing: bytes) -> None:
    received = answers(address, b"POST /first HTTP/1.1\r\n" + framing + NEXT)

    assert received.count(b"HTTP/1.1") <= 1
    assert b"/next" not in received


@pytest.mark.parametrize(
    ("head", "seen"),
    [
        (b"GET //health HTTP/1.1\r\n", ["//health", None, None, "0"]),
        (b"GET / HTTP/1.1\r\nX-API-Key: \t\xa0key\x85 \r\n", ["/", "\xa0key\x85", None, "0"]),
        (b"GET / HTTP/1.1\r\nX-API-Key: a\r\nx-api-key: b\r\n", ["/", "a,b", None, "0"]),
        (b"GET / HTTP/1.1\r\nX-API-Key: \xa0\r\nAuthorization: Bearer a\r\n", ["/", "\xa0", "Bearer a", "0"]),
        (b"GET / HTTP/1.1\r\nX_API_Key: a\r\n", ["/", None, None, "0"]),
        (b"POST / HTTP/1.1\r\nContent-Length: 8\r\nContent-Length: 9\r\n", ["/", None, None, "8,9"]),
    ],
)
def test_path_credentials_and_length_arrive_as_sent(address: Any, head: bytes, seen: list[str | None]) -> None:
    received = answers(address, head + b"\r\n")

    assert received.endswith(ascii(seen).encode())


def test_refusals_of_the_server_show_no_versions(address: Any) -> None:
    received = answers(address, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n")

    assert received.startswith(b"HTTP/1.1 431 ")
    assert b"Python" not in received


def test_an_unread_body_is_not_read_into_memory() -> None:
    def refuse(environ: dict[str, Any], start_response: Any) -> HttpResponse:
        start_response("401 Unauthorized", [("Content-Length", "0")])
        return HttpResponse(status=401)

    with serving(guard(refuse)) as address:  # The server does not wait for the body.
        received = answers(address, b"POST /v1/sql HTTP/1.1\r\nContent-Length: 10000000000\r\n\r\n", ends=False)

    assert received.startswith(b"HTTP/1.1 401 ")
