"""Statements under way over real sockets: the list of them, and an end to them."""

import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.system.harness import K1, K2, PATIENCE_S, Server, raw_request, status_of, wait_for

ENDLESS = "SELECT count(*) FROM range(1000000000000)"
ENDLESS_ROWS = "SELECT * FROM range(1000000000000)"


def cancel(server: Server, query_id: str, key: str = K1) -> httpx.Response:
    return server.request("POST", f"/v1/sql/{query_id}/cancel", headers={"X-API-Key": key})


def running(server: Server) -> dict[str, str] | None:
    return next((row for row in server.active() if (row["sql"], row["state"]) == (ENDLESS, "running")), None)


def test_a_statement_is_listed_and_cancelled(server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(server.sql, ENDLESS)
        row = wait_for(lambda: running(server), "the statement to run")
        others = server.active(K2)
        refused = cancel(server, row["id"], K2)
        cancelled = cancel(server, row["id"])
        answer = answering.result()

    assert others == []
    assert (refused.status_code, refused.json()["code"]) == (404, "query_not_found")
    assert (cancelled.status_code, list(cancelled.json())) == (200, ["message"])
    assert (answer.status_code, answer.json()["code"]) == (503, "query_cancelled")
    assert answer.headers["X-Query-Id"] == row["id"]
    assert "Retry-After" not in answer.headers
    wait_for(lambda: not server.active(), "the place to be free")
    assert cancel(server, row["id"]).status_code == 404
    assert server.rows("SELECT 1 AS a") == [{"a": 1}]


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
def test_an_answer_that_is_cancelled_never_looks_complete(server: Server, version: bytes) -> None:
    request = raw_request("POST", "/v1/sql", [("X-API-Key", K1)], ENDLESS_ROWS.encode())
    is_reset, tail = False, b""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(request.replace(b"HTTP/1.1", version, 1))
        head = b"".join(iter(answer.readline, b"\r\n"))
        (row,) = server.active()
        cancelled = cancel(server, row["id"])
        try:
            while part := answer.read1(65536):
                tail = (tail + part)[-10:]
        except ConnectionResetError:
            is_reset = True

    assert (status_of(head), cancelled.status_code) == (200, 200)
    assert row["id"].encode() in head
    assert is_reset or (b"transfer-encoding: chunked" in head.lower() and not tail.endswith(b"0\r\n\r\n"))
    wait_for(lambda: not server.active(), "the place to be free")
