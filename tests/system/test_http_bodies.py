"""Checks H04, H06, H17, L05 to L10, streaming and cancellation, over real sockets in the three server modes."""

import csv
import io
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from httpserver.gevent_worker import HEAD_TIMEOUT_S
from tests.system.harness import (
    K1,
    MODES,
    NO_ROOTS,
    PATIENCE_S,
    Mode,
    Server,
    raw_request,
    status_of,
    wait_for,
)
from tests.system.processes import family

#: Runs for minutes when nothing stops it, and can be interrupted.
ENDLESS = "SELECT count(*) FROM range(1000000000000) a"


#: Under runserver, Django's own server parses and refuses requests.
not_runserver = pytest.mark.parametrize("server", ["serve", "gunicorn"], indirect=True)


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def chunked_request(body: bytes, key: str | None = K1, content_type: str = "text/plain") -> bytes:
    lines: list[tuple[str, str | bytes]] = [("Transfer-Encoding", "chunked"), ("Content-Type", content_type)]
    if key:
        lines.append(("X-API-Key", key))
    return raw_request("POST", "/v1/sql", lines, body, length=False)


@not_runserver
@pytest.mark.parametrize(
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


@pytest.mark.exhaustive
@not_runserver
@pytest.mark.parametrize(("key", "length", "status"), [(None, 8, 401), (K1, 50_000_000, 413)])
def test_nobody_is_asked_for_a_body_that_nobody_reads(
    server: Server, key: str | None, length: int, status: int
) -> None:
    lines: list[tuple[str, str | bytes]] = [("Expect", "100-continue"), ("Content-Length", str(length))]
    if key:
        lines.append(("X-API-Key", key))

    assert status_of(server.raw(raw_request("POST", "/v1/sql", lines, length=False))) == status


@not_runserver
@pytest.mark.parametrize("framing", ["Content-Length", "Transfer-Encoding"])
def test_a_body_that_is_read_is_asked_for(server: Server, framing: str) -> None:
    body = b"SELECT 42 AS a" if framing == "Content-Length" else chunked(b"SELECT 42 AS a")
    value = str(len(body)) if framing == "Content-Length" else "chunked"
    lines = [("Expect", "100-continue"), ("X-API-Key", K1), ("Connection", "close"), (framing, value)]
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as client:
        client.sendall(raw_request("POST", "/v1/sql", [*lines], length=False))
        with client.makefile("rb") as answers:
            assert answers.readline() == b"HTTP/1.1 100 Continue\r\n"

            client.sendall(body)

            assert answers.read().endswith(b'[{"a":42}]')


@not_runserver
@pytest.mark.parametrize("size", [b"100001", b"7fffffffffffffff", b"8000000000000000", b"f" * 40])
def test_a_chunk_that_no_body_holds_is_413_before_it_comes(server: Server, size: bytes) -> None:
    began = time.monotonic()

    answer = server.raw(chunked_request(size + b"\r\nSELECT 1"))

    assert status_of(answer) == 413
    assert time.monotonic() - began < HEAD_TIMEOUT_S / 2


@not_runserver
def test_h06_l08_too_large_body_is_413(server: Server) -> None:
    limit = 1048576
    padding = b" " * (limit - 8)

    assert status_of(server.raw(raw_request("POST", "/v1/sql", [("X-API-Key", K1)], b"SELECT 1" + padding))) == 200
    declared = raw_request("POST", "/v1/sql", [("X-API-Key", K1), ("Content-Length", str(limit + 1))], length=False)
    assert status_of(server.raw(declared)) == 413
    assert status_of(server.raw(chunked_request(chunked(b"SELECT 1", padding, b" ")))) == 413
    assert status_of(server.raw(chunked_request(chunked(b"SELECT 1", padding, b" "), None))) == 401


@pytest.mark.parametrize("length", ["-1", "+3", "0x3", "3, 4", "1e3", "18446744073709551616x", "three"])
def test_h03_odd_lengths_are_refused(server: Server, length: str) -> None:
    request = raw_request("POST", "/v1/sql", [("X-API-Key", K1), ("Content-Length", length)], b"SEL", length=False)

    assert status_of(server.raw(request)) in {400, 413}


@not_runserver
def test_h01_length_and_chunked_together_are_refused(server: Server) -> None:
    lines: list[tuple[str, str | bytes]] = [
        ("X-API-Key", K1),
        ("Content-Length", "6"),
        ("Transfer-Encoding", "chunked"),
    ]

    answer = server.raw(raw_request("POST", "/v1/sql", lines, b"0\r\n\r\nGET /v1/ready HTTP/1.1\r\n\r\n", length=False))

    assert answer.count(b"HTTP/1.1 ") == 1
    assert status_of(answer) == 400


@not_runserver
@pytest.mark.parametrize(
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
        b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n",
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
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert json.loads(body)["request_id"]
    assert b"a" * 33 not in body  # a request id may hold 32


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("SELECT " + "(" * depth + "1" + ")" * depth, id=f"L05 parens {depth}")
        for depth in (200, 600, 1500, 5000, 50_000)
    ]
    + [
        pytest.param("SELECT " + "(" * 100_000, id="L05 unbalanced"),
        pytest.param("SELECT " + "NOT " * 50_000 + "true", id="L05 not"),
        pytest.param("SELECT " + "-" * 3 + "- " * 50_000 + "1", id="L05 minus"),
        pytest.param("SELECT " + "abs(" * 5000 + "1" + ")" * 5000, id="L05 functions"),
        pytest.param("SELECT " + "CASE WHEN true THEN " * 5000 + "1" + " END" * 5000, id="L05 case"),
        pytest.param("SELECT NULL::INTEGER" + "[]" * 50_000, id="L05 types"),
        pytest.param("SELECT " + "[" * 5000 + "]" * 5000, id="L05 lists"),
        pytest.param("SELECT " + "(SELECT " * 600 + "1" + ")" * 600, id="L05 subqueries"),
        pytest.param("SELECT 1" + "+1" * 10_000, id="L06 plus 10,000"),
        pytest.param("SELECT 1" + "+1" * 100_000, id="L06 plus 100,000"),
        pytest.param("SELECT 1 WHERE 1=0" + " OR 1=0" * 20_000, id="L06 or"),
        pytest.param("SELECT 1" + " UNION ALL SELECT 1" * 3000, id="L06 union"),
    ],
)
def test_l05_l06_deep_and_long_statements_end(serve: Server, sql: str) -> None:
    assert serve.sql(sql).status_code in {200, 400, 403, 504}
    assert serve.rows("SELECT 1 AS a") == [{"a": 1}]


def peak_rss_mb(server: Server) -> float:
    """Peak resident memory of the largest process of the runtime, in MB."""
    pid = server.process.pid
    pids = [str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    peaks = []
    for name in pids:
        lines = Path(f"/proc/{name}/status").read_text().splitlines()
        peaks += [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")]
    return max(peaks)


@pytest.mark.parametrize(
    ("accept", "first", "last"), [("application/json", b"[{", b"}]"), ("text/csv", b"range", b"\n")]
)
def test_l10_large_answers_stream_in_bounded_memory(serve: Server, accept: str, first: bytes, last: bytes) -> None:
    assert serve.rows("SELECT 1 AS a") == [{"a": 1}]
    before = peak_rss_mb(serve)
    size, tail, head = 0, b"", b""
    headers = {"X-API-Key": K1, "Accept": accept}

    with httpx.stream(
        "POST", f"{serve.url}/v1/sql", content=b"SELECT * FROM range(20000000)", headers=headers,
        timeout=PATIENCE_S, trust_env=False, verify=NO_ROOTS,
    ) as answer:  # fmt: skip
        for part in answer.iter_raw():
            head = head or part[:10]
            size += len(part)
            tail = (tail + part)[-10:]

    assert head.startswith(first)
    assert tail.endswith(last)
    assert size > 150_000_000
    assert peak_rss_mb(serve) - before < 300


def was_left(server: Server, request_id: str) -> bool:
    """Say whether a statement has ended because its client left, and not at its time limit."""
    lines = [line for line in server.output().splitlines() if request_id in line and "sqlapi.queries" in line]
    assert all("outcome=client_closed_request" in line for line in lines)
    return bool(lines)


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
            wait_for(lambda: server.get("/v1/sql/active", headers={"X-API-Key": K1}).json(), "the statement to run")

    wait_for(lambda: was_left(server, name), "the end of the statement")


def test_values_arrive_exact_in_each_format(server: Server) -> None:
    sql = "SELECT 12345678901234567890123456789012345678::HUGEINT AS h, 1.10::DECIMAL(9,2) AS d, 'é\n' AS s"

    from_json = json.loads(server.sql(sql).text, parse_float=Decimal)
    from_csv = list(csv.DictReader(io.StringIO(server.sql(sql, Accept="text/csv").text, newline="")))

    assert from_json == [{"h": 12345678901234567890123456789012345678, "d": Decimal("1.10"), "s": "é\n"}]
    assert from_csv == [{"h": "12345678901234567890123456789012345678", "d": "1.10", "s": "é\n"}]


@pytest.fixture(scope="module", params=["serve", "runserver"])
def cutting_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    changes = {"runtime": {"query": {"timeout": "2s"}}}
    with Server(tmp_path_factory.mktemp("cut"), mode=request.param, changes=changes) as running:
        yield running


@pytest.mark.exhaustive
def test_an_answer_that_is_cut_never_looks_complete(cutting_server: Server) -> None:
    # Rows come at once and then never again within the time limit.
    sql = (
        "SELECT * FROM range(300000) UNION ALL "
        "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range = -1"
    )
    for version in (b"HTTP/1.1", b"HTTP/1.0"):
        request = raw_request("POST", "/v1/sql", [("X-API-Key", K1), ("Accept", "text/csv")], sql.encode())
        with socket.create_connection(("127.0.0.1", cutting_server.port), timeout=PATIENCE_S) as connection:
            connection.sendall(request.replace(b"HTTP/1.1", version, 1))
            received, reset = b"", False
            try:
                while part := connection.recv(65536):
                    received += part
            except ConnectionResetError:
                reset = True

        if status_of(received) == 200:
            is_chunked = b"transfer-encoding: chunked" in received.lower()
            assert reset or (is_chunked and not received.endswith(b"0\r\n\r\n"))
        else:
            assert status_of(received) == 504


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_ends_with_the_connection_is_reset_when_its_server_dies(tmp_path: Path, mode: Mode) -> None:
    request = raw_request("POST", "/v1/sql", [("X-API-Key", K1), ("Accept", "text/csv")], b"FROM range(1000000000)")
    with (
        Server(tmp_path, mode=mode) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection,
    ):
        connection.sendall(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert status_of(connection.recv(1000)) == 200
        for pid, command in family(server.process.pid).items():
            if mode != "serve" or "runweb" in command:
                os.kill(pid, signal.SIGKILL)

        with connection.makefile("rb") as rest, pytest.raises(ConnectionResetError):
            rest.read()
