"""What an operator sees and does over real sockets: statements under way, an end to them, workers, and the log."""

import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.harness import (
    K1,
    K2,
    MODES,
    NO_ROOTS,
    PATIENCE_S,
    REPOSITORY,
    WRONG,
    Mode,
    Server,
    command,
    run_program,
    wait_for,
)
from tests.system.processes import engine_workers

ACTIVE = "/v1/sql/active"
ENDLESS = "SELECT count(*) FROM range(1000000000000)"
ENDLESS_ROWS = "SELECT * FROM range(1000000000000)"


def active(server: Server, key: str = K1) -> list[dict[str, str]]:
    answer = server.get(ACTIVE, headers={"X-API-Key": key})
    assert answer.status_code == 200, answer.text
    return list(answer.json())


def cancel(server: Server, query_id: str, key: str = K1) -> httpx.Response:
    return server.request("POST", f"/v1/sql/{query_id}/cancel", headers={"X-API-Key": key})


def running(server: Server, statement: str) -> dict[str, str] | None:
    return next((row for row in active(server) if (row["sql"], row["state"]) == (statement, "running")), None)


@contextmanager
def in_background(server: Server, statement: str) -> Iterator[list[httpx.Response]]:
    """Send a statement from another thread; its answer is in the list once it is there."""
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(server.sql(statement)))
    thread.start()
    try:
        yield answers
    finally:
        thread.join()


def test_a_statement_is_listed_and_cancelled(server: Server) -> None:
    statement = f"{ENDLESS} -- {server.mode}"
    with in_background(server, statement) as answers:
        row = wait_for(lambda: running(server, statement), "the statement to run")
        others = active(server, K2)
        refused = cancel(server, row["id"], K2)
        cancelled = cancel(server, row["id"])

    assert others == []
    assert (refused.status_code, refused.json()["code"]) == (404, "query_not_found")
    assert (cancelled.status_code, list(cancelled.json())) == (200, ["message"])
    (answer,) = answers
    assert (answer.status_code, answer.json()["code"]) == (503, "query_cancelled")
    assert answer.headers["X-Query-Id"] == row["id"]
    assert "Retry-After" not in answer.headers
    wait_for(lambda: not active(server), "the place to be free")
    assert cancel(server, row["id"]).status_code == 404
    assert server.rows("SELECT 1 AS a") == [{"a": 1}]


def test_a_cancelled_stream_breaks_off(server: Server) -> None:
    headers = {"X-API-Key": K1}
    with httpx.stream(
        "POST", f"{server.url}/v1/sql", content=ENDLESS_ROWS, headers=headers,
        timeout=PATIENCE_S, trust_env=False, verify=NO_ROOTS,
    ) as answer:  # fmt: skip
        query_id = answer.headers["X-Query-Id"]
        pieces = answer.iter_raw()
        assert next(pieces).startswith(b'[{"range":0}')
        assert [row["id"] for row in active(server)] == [query_id]
        assert cancel(server, query_id).status_code == 200
        with pytest.raises(httpx.TransportError):
            deque(pieces, maxlen=0)

    wait_for(lambda: not active(server), "the place to be free")


def test_a_client_that_leaves_is_listed_no_longer(server: Server) -> None:
    statement = f"{ENDLESS} -- left by {server.mode}"
    with pytest.raises(httpx.ReadTimeout):
        server.request(
            "POST", "/v1/sql", content=statement, headers={"X-API-Key": K1}, timeout=httpx.Timeout(PATIENCE_S, read=1.0)
        )

    wait_for(lambda: not active(server), "the statement to end")


def status(server: Server) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in server.get("/v1/status", headers={"X-API-Key": K1}).json()}


@pytest.mark.exhaustive
def test_workers_are_counted(tmp_path: Path) -> None:
    with Server(tmp_path, changes={"runtime": {"query": {"workers": 2}}}) as server:
        wait_for(lambda: status(server)["engine"].get("workers_alive") == 2, "both workers")
        before = status(server)["engine"]
        os.kill(engine_workers(server.process.pid)[0], signal.SIGKILL)

        wait_for(lambda: status(server)["engine"]["workers_killed"] == 1, "the loss to be told")
        wait_for(lambda: status(server)["engine"]["workers_alive"] == 2, "the new worker")
        shown = run_program("manage.py", "status", "--http-endpoint", server.url, RUNTIME_API_KEY=K1)

    assert before == {
        "name": "engine",
        "endpoint": "unix:engine.sock",
        "status": "Ready",
        "workers_alive": 2,
        "workers_killed": 0,
    }
    assert shown.stdout.splitlines()[-1] == "engine workers: 2 alive, 1 killed since the start"


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
def test_the_log_has_a_line_for_each_request_statement_and_failed_authentication(tmp_path: Path, mode: Mode) -> None:
    with Server(tmp_path, mode=mode, environ={"LOG_FORMAT": "json"}) as server:
        answer = server.sql("SELECT * FROM orders LIMIT 3", X_Request_Id="mine")
        server.sql("DELETE FROM orders", X_Request_Id="mine-too")
        server.sql("SELECT 'a secret'", WRONG, X_Request_Id="not-mine")
        server.get("/v1/%1b[2J%e2%80%ae?secret", headers={"X-API-Key": K1, "X-Request-Id": "odd"})
        lines = wait_for(lambda: by_request(server, 4), "the lines")

    query_id = answer.headers["X-Query-Id"]
    (query,), (access,) = lines["mine", "sqlapi.queries"], lines["mine", "sqlapi.access"]
    assert (query["query_id"], query["outcome"], query["rows"]) == (query_id, "ok", 3)
    assert query["bytes"] == access["bytes"] == len(answer.content)
    assert query["fingerprint"] == access["fingerprint"] != ""
    assert all(query[name] >= 0 for name in ("queued_ms", "parse_ms", "run_ms", "encode_ms", "duration_ms"))
    assert (access["query_id"], access["status"], access["route"]) == (query_id, 200, "/v1/sql")
    assert [line["outcome"] for line in lines["mine-too", "sqlapi.queries"]] == ["statement_not_allowed"]
    (failure,), (refused,) = lines["not-mine", "authkeys.audit"], lines["not-mine", "sqlapi.access"]
    assert (failure["level"], failure["reason"], failure["status"]) == ("WARNING", "unknown_key", 401)
    assert (refused["status"], refused["fingerprint"]) == (401, "")
    assert ("not-mine", "sqlapi.queries") not in lines
    assert [line["route"] for line in lines["odd", "sqlapi.access"]] == ["unknown"]
    output = server.output()
    for secret in (K1, K2, WRONG, "a secret", "DELETE", "?secret", "\x1b", "\u202e"):
        assert secret not in output


def by_request(server: Server, count: int) -> dict[tuple[str, str], list[dict[str, Any]]] | None:
    """Return the lines of the log by request id and logger, once as many requests have their access line."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for text in server.output().splitlines():
        if text.startswith("{"):
            line = json.loads(text)
            found.setdefault((line.get("request_id", ""), line["logger"]), []).append(line)
    names = {request_id for request_id, logger in found if logger == "sqlapi.access" and len(request_id) < 32}
    return found if len(names) == count else None


@dataclass
class UnheardServer(Server):
    """A runtime whose standard error takes nothing."""

    redirection: str = ""

    def launch(self) -> None:
        environ = {**os.environ, "RUNTIME_CONFIG": str(self.file)}
        shell = ["bash", "-c", f'exec "$@" {self.redirection}', "bash", *command(self.mode)]
        self._process = subprocess.Popen(shell, cwd=REPOSITORY, env=environ, stdout=subprocess.DEVNULL)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "redirection",
    [pytest.param("2>/dev/full", id="full disk"), pytest.param("2> >(true)", id="closed pipe")],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_broken_standard_error_breaks_no_answer(tmp_path: Path, mode: Mode, redirection: str) -> None:
    with UnheardServer(tmp_path, mode=mode, redirection=redirection) as server:
        assert server.sql("SELECT 1", WRONG).status_code == 401
        assert server.sql("SELECT 1 AS a").json() == [{"a": 1}]
        assert server.sql("SELEC 1").status_code == 400
        assert len(server.sql("SELECT * FROM range(100000)").json()) == 100_000
        assert server.raw(b"GET /not well-formed HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400")
        assert server.rows("SELECT count(*) AS n FROM orders") == [{"n": 1000}]
