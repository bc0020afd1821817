"""MCP over real sockets and pipes: many calls, callers that leave, and the command."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.blackbox.test_cancellation import ENDLESS, running
from tests.system.harness import K1, KEYED, REPOSITORY, Server, clean_environ, raw_request, wait_for


def call_of(name: str, request_id: int = 1, /, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def post(server: Server, message: object) -> httpx.Response:
    return server.request("POST", "/v1/mcp", headers=KEYED, json=message)


def text_of(answer: Any) -> str:
    return str(answer["result"]["content"][0]["text"])


@contextmanager
def stdio(server: Server) -> Iterator[subprocess.Popen[str]]:
    """The command, as an agent starts it."""
    environ = clean_environ(RUNTIME_HTTP_ENDPOINT=server.url, RUNTIME_API_KEY=K1, XDG_CONFIG_HOME="/nonexistent")
    arguments = [sys.executable, "-m", "runtimeclient", "mcp"]
    with subprocess.Popen(
        arguments, cwd=REPOSITORY, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def send(process: subprocess.Popen[str], message: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def receive(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_a_call_has_a_query_id_and_is_listed(server: Server) -> None:
    answer = post(server, call_of("query", sql="SELECT count(*) AS n FROM orders"))

    assert answer.status_code == 200
    assert text_of(answer.json()) == "columns: n BIGINT\n[1000]\n1 row."
    assert server.outcome(answer.headers["X-Request-Id"]) == "ok"
    assert len(answer.headers["X-Query-Id"]) == 32


def test_a_hundred_calls_at_once_are_all_answered(serve: Server) -> None:
    with ThreadPoolExecutor(100) as pool:
        messages = [
            call_of("query", number, sql=f"SELECT {number} AS a, count(*) FROM orders") for number in range(100)
        ]
        answers = list(pool.map(lambda message: post(serve, message), messages))

    assert {answer.status_code for answer in answers} == {200}
    found = [answer.json() for answer in answers]
    assert [one["id"] for one in found] == list(range(100))
    for number, one in enumerate(found):
        assert f"\n[{number},1000]\n" in text_of(one) or text_of(one).startswith("engine_busy: ")
    assert sum(not one["result"]["isError"] for one in found) >= 60


def test_a_statement_stops_when_its_caller_leaves(server: Server) -> None:
    body = json.dumps(call_of("query", sql=ENDLESS)).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(raw_request("POST", "/v1/mcp", [("X-API-Key", K1), ("X-Request-Id", "mcp-gone")], body))
        wait_for(lambda: running(server), "the statement to run")

    wait_for(lambda: not server.active(), "the statement to stop")
    assert wait_for(lambda: server.outcome("mcp-gone"), "its line") == "client_closed_request"


def test_a_large_body_is_refused(server: Server) -> None:
    answer = server.request("POST", "/v1/mcp", headers=KEYED, content=b" " * (10 << 20))

    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("ends", [False, True])
def test_the_command_stops_a_statement_that_is_cancelled_or_left(serve: Server, ends: bool) -> None:
    with stdio(serve) as process:
        send(process, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}})
        assert receive(process)["result"]["protocolVersion"] == "2025-06-18"
        send(process, call_of("query", 1, sql=ENDLESS))
        wait_for(lambda: running(serve), "the statement to run")
        send(process, call_of("query", 2, sql="SELECT 1 AS a"))
        assert text_of(receive(process)) == "columns: a INTEGER\n[1]\n1 row."

        if ends:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0
        else:
            send(process, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})

        wait_for(lambda: not serve.active(), "the statement to stop")
        if not ends:
            send(process, call_of("list_datasets", 3))
            answer = receive(process)
            assert (answer["id"], answer["result"]["structuredContent"]["dataset_count"]) == (3, 2)
