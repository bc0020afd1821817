"""The request parser of the web tier: 100 Continue, and refusals of incomplete malformed requests."""

import socket
import time

import pytest

from httpserver.gevent_worker import HEAD_TIMEOUT_S
from tests.httpserver.web_tier import WebTier
from tests.system.harness import K1

KEY = f"X-API-Key: {K1}"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("Content-Length: 5\r\n", 401),
        (f"{KEY}\r\nContent-Length: 50000000\r\n", 413),
        (f"{KEY}\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 415),
    ],
)
def test_100_continue_is_not_sent_for_a_body_that_is_not_read(runtime: WebTier, lines: str, status: int) -> None:
    with runtime.connection() as client:
        client.send(f"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\n{lines}Expect: 100-continue\r\n\r\n".encode())
        answer = client.reply()
        assert client.rest() == b""

    assert (answer.status, answer.headers["connection"]) == (status, "close")


CHUNKED = f"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\n{KEY}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="the start of a ClientHello"),
        pytest.param(b"\x16\x03\x01\x00\x08\x01\n\x00GET / ", id="a ClientHello with a line feed"),
        pytest.param(b"\x15\x03\x01\x00\x02\x02\x28", id="a TLS alert"),
        pytest.param(b"\x80\x2e\x01\x03\x01", id="SSL 2"),
        pytest.param(b"SSH-2.0-OpenSSH_9.9\r\n", id="SSH"),
        pytest.param(b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", id="PROXY"),
        pytest.param(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", id="PROXY v2"),
        pytest.param(b"PRI * HTTP/2.0\r\n", id="HTTP/2"),
        pytest.param(b"hello there", id="words"),
        pytest.param(b" ", id="a space"),
        pytest.param(b"GET /health HTTP/1.1\r\nHost: local\0", id="a NUL in a header"),
        pytest.param(b"GET /health HTTP/1.1\r\nHost: localhost\n\n", id="bare line feeds"),
        pytest.param(CHUNKED + b"5\nhello\n0\n\n", id="chunks with bare line feeds"),
        pytest.param(CHUNKED + b"8\r\nSELECT 1\r\n0\n\n", id="a last chunk with bare line feeds"),
        pytest.param(CHUNKED + b"SELECT 1", id="a chunk without a size"),
        pytest.param(CHUNKED + b"-", id="a negative chunk"),
    ],
)
def test_malformed_input_is_refused_at_once(runtime: WebTier, data: bytes) -> None:
    began = time.monotonic()
    with runtime.connection() as client:
        client.send(data)
        answer = client.reply()
        assert client.rest() == b""

    assert answer.status == 400
    assert answer.code
    assert time.monotonic() - began < HEAD_TIMEOUT_S / 2


def test_a_request_may_come_byte_by_byte(plain: WebTier) -> None:
    request = b"\r\nPOST /body HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with plain.connection() as client:
        client.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request + b"005 ; a=b\r\nhello\r\n0\r\n\r\n":
            client.send(bytes([byte]))
        assert client.reply().body == b"5"
