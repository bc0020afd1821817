"""Checks H01 to H06 and L05 to L10 over real sockets in the three server modes, and clients that leave."""

import json
import socket
import time

import pytest

from httpserver.gevent_worker import HEAD_TIMEOUT_S
from tests.corpus import each
from tests.system.harness import K1, PATIENCE_S, Server, raw_request, status_of, wait_for
from tests.system.processes import MIB, family, memory_bytes

#: Runs for minutes when nothing stops it, and can be interrupted.
ENDLESS = "SELECT count(*) FROM range(1000000000000) a"


#: Under runserver, Django's own server parses and refuses requests.
not_runserver = pytest.mark.parametrize("server", ["serve", "gunicorn"], indirect=True)


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def chunked_request(body: bytes, content_type: str = "text/plain") -> bytes:
    lines = [("X-API-Key", K1), ("Transfer-Encoding", "chunked"), ("Content-Type", content_type)]
    return raw_request("POST", "/v1/sql", [*lines], body, length=False)


@not_runserver
@each(
    ("body", "content_type", "status", "said"),
    [
        pytest.param(chunked(b"SEL", b"ECT 42", b" AS a"), "text/plain", 200, b'[{"a":42}]', id="text"),
        pytest.param(
            chunked(b'{"sql":"SELECT ? AS a",', b'"parameters":[7]}'),
            "application/json; charset=UTF-8",
            200,
            b'[{"a":7}]',
            id="JSON",
        ),
        pytest.param(chunked(), "text/plain", 400, b"empty_statement", id="empty"),
        pytest.param(b"zz\r\nSELECT 1\r\n0\r\n\r\n", "text/plain", 400, b"", id="no size"),
        pytest.param(b"-8\r\nSELECT 1\r\n0\r\n\r\n", "text/plain", 400, b"", id="a negative size"),
        pytest.param(b"3\r\nSELECT 1\r\n", "text/plain", 400, b"", id="a size too small"),
    ],
)
def test_h04_chunked_bodies(server: Server, body: bytes, content_type: str, status: int, said: bytes) -> None:
    answer = server.raw(chunked_request(body, content_type=content_type))

    assert status_of(answer) == status
    assert said in answer


@not_runserver
def test_a_chunked_body_that_is_read_is_asked_for(server: Server) -> None:
    """One with a length, and those that nobody reads: see tests/httpserver."""
    lines = [("Expect", "100-continue"), ("X-API-Key", K1), ("Transfer-Encoding", "chunked")]
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as client:
        client.sendall(raw_request("POST", "/v1/sql", [*lines], length=False))
        with client.makefile("rb") as answers:
            assert answers.readline() == b"HTTP/1.1 100 Continue\r\n"

            client.sendall(chunked(b"SELECT 42 AS a"))

            assert answers.read().endswith(b'[{"a":42}]')


@not_runserver
@pytest.mark.parametrize("size", [b"100001", b"7fffffffffffffff", b"8000000000000000", b"f" * 40])
def test_a_chunk_that_no_body_holds_is_413_before_it_comes(server: Server, size: bytes) -> None:
    began = time.monotonic()

    answer = server.raw(chunked_request(size + b"\r\nSELECT 1"))

    assert status_of(answer) == 413
    assert time.monotonic() - began < HEAD_TIMEOUT_S / 2


@not_runserver
@each(
    "request_bytes",
    [
        b"GET /health\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX : x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
        b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /v1/sql HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        (
            b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /v1/ready HTTP/1.1\r\n\r\n"
        ),
        *(
            f"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\nSEL".encode()
            for length in ("-1", "+3", "0x3", "3, 4", "1e3", "18446744073709551616x", "three", "9" * 5_000)
        ),
        b"GET\t/health\tHTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\nHost: localhost\n\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\nY: b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\rY: b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x0c\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x7f\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_problem_body(server: Server, request_bytes: bytes) -> None:
    answer = server.raw(request_bytes)

    assert status_of(answer) in {400, 414, 431, 501}
    assert answer.count(b"HTTP/1.1 ") == 1
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert json.loads(body)["request_id"]
    assert b"a" * 33 not in body  # a request id may hold 32


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("SELECT " + "(" * 50_000 + "1" + ")" * 50_000, id="L05 parens"),
        *(
            pytest.param(text, id=name, marks=pytest.mark.exhaustive)
            for name, text in {
                "L06 or": "SELECT 1 WHERE 1=0" + " OR 1=0" * 20_000,
                "L06 union": "SELECT 1" + " UNION ALL SELECT 1" * 3000,
            }.items()
        ),
    ],
)
def test_l05_l06_deep_and_long_statements_end(serve: Server, sql: str) -> None:
    """More of them: see tests/queryengine/gate/test_gate.py."""
    assert serve.sql(sql).status_code in {200, 400, 403, 504}
    assert serve.rows("SELECT 1 AS a") == [{"a": 1}]


@pytest.mark.alone
def test_l10_a_large_answer_streams_in_bounded_memory(serve: Server) -> None:
    assert serve.rows("SELECT 1 AS a") == [{"a": 1}]
    before = {pid: memory_bytes(pid, "VmHWM") for pid in family(serve.process.pid)}
    size, tail, head = 0, b"", b""

    with serve.stream("SELECT * FROM range(20000000)") as answer:
        for part in answer.iter_raw():
            head = head or part[:10]
            size += len(part)
            tail = (tail + part)[-10:]

    assert head.startswith(b"[{")
    assert tail.endswith(b"}]")
    assert size > 150_000_000
    for pid in before.keys() & family(serve.process.pid):
        assert memory_bytes(pid, "VmHWM") - before[pid] < 300 * MIB


@pytest.mark.parametrize("begun", [False, True], ids=["before the answer", "in its middle"])
def test_a_client_that_leaves_frees_the_engine(server: Server, *, begun: bool) -> None:
    name = f"leaves-{begun}"
    lines: list[tuple[str, str | bytes]] = [("X-API-Key", K1), ("X-Request-Id", name)]
    sql = b"SELECT * FROM range(100000000000)" if begun else ENDLESS.encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(raw_request("POST", "/v1/sql", lines, sql))
        if begun:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        else:
            wait_for(lambda: any(one["sql"] == ENDLESS for one in server.active()), "the statement to run")

    outcome = wait_for(lambda: server.outcome(name), "the end of the statement")
    assert outcome == "client_closed_request", "not at its time limit"
