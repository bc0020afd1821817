"""What an operator sees over real sockets: workers, and the log."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import (
    K1,
    K2,
    MODES,
    WRONG,
    Mode,
    Server,
    run_program,
    wait_for,
)
from tests.system.processes import engine_workers


def status(server: Server) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in server.listed("/v1/status")}


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
        "workers_busy": 0,
        "statements_running": 0,
        "statements_queued": 0,
    }
    assert "engine workers: 2 alive, 1 killed since the start" in shown.stdout.splitlines()


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
    written, _, _ = server.output().rpartition("\n")  # The last line may be half there.
    for text in written.splitlines():
        if text.startswith("{"):
            line = json.loads(text)
            found.setdefault((line.get("request_id", ""), line["logger"]), []).append(line)
    names = {request_id for request_id, logger in found if logger == "sqlapi.access" and len(request_id) < 32}
    return found if len(names) == count else None


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("mode", "redirection"),
    [("serve", "2>/dev/full"), ("serve", "2> >(true)"), ("gunicorn", "2>/dev/full"), ("runserver", "2> >(true)")],
)
def test_a_broken_standard_error_breaks_no_answer(tmp_path: Path, mode: Mode, redirection: str) -> None:
    with Server(tmp_path, mode=mode, redirection=redirection) as server:
        assert server.sql("SELECT 1", WRONG).status_code == 401
        assert server.sql("SELECT 1 AS a").json() == [{"a": 1}]
        assert server.sql("SELEC 1").status_code == 400
        assert len(server.sql("SELECT * FROM range(100000)").json()) == 100_000
        assert server.raw(b"GET /not well-formed HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400")
        assert server.rows("SELECT count(*) AS n FROM orders") == [{"n": 1000}]
