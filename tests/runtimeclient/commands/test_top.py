"""`history`, and `top` in a pipe and at a terminal."""

import json
import math
import os
import signal
import termios
import threading
from typing import Any

import httpx
import pytest

from runtimeclient.client import RuntimeClient
from runtimeclient.dashboard.snapshot import Poller
from tests.runtimeclient.remote import API_KEY, Remote, Reply, Request, as_reply, problem
from tests.runtimeclient.terminal import CTRL_C, Terminal

FINISHED: dict[str, Any] = {
    "id": "9f2c41d07be84a53a1c6f0e2d9a48370",
    "request_id": "r-1",
    "trace_id": None,
    "started": "2026-01-01T00:00:00.000Z",
    "protocol": "http",
    "outcome": "ok",
    "queued_ms": 0.1,
    "parse_ms": 0.2,
    "run_ms": 3.1,
    "encode_ms": 0,
    "total_ms": 1234.5,
    "rows": 7,
    "bytes": 12_345,
    "cache": None,
    "statement": "1c9f0e2d9a483705",
    "sql": None,
}
MEANS = {f"{kind}_{phase}_ms": 2 for kind in ("mean", "p95") for phase in ("queued", "parse", "run", "encode", "total")}
STATEMENT = {"statement": "1c9f0e2d9a483705", "calls": 3, "errors": 0, "cache_hits": 1, "rows": 9, "bytes": 90}
STATISTICS = {
    "since": "2026-01-01T00:00:00.000Z",
    "evicted": 0,
    "statements": [{**STATEMENT, **MEANS, "last": "2026-01-01T00:00:00.000Z", "sql": None}],
}
RUNNING = [
    {"id": letter * 32, "started": "2026-01-01T00:00:00.000Z", "state": "running", "sql": f"SELECT '{letter}'"}
    for letter in "ab"
]
ROUTES: dict[str, Any] = {
    "/v1/status": [{"name": "http", "endpoint": "x", "status": "Ready"}],
    "/v1/datasets": [
        {
            "from": "file:a",
            "name": "flights",
            "acceleration_enabled": True,
            "status": "Ready",
            "rows": 336_776,
            "refreshed_at": None,
            "snapshot": None,
            "error": None,
        }
    ],
    "/v1/key": {"name": "analyst"},
    "/v1/sql/active": RUNNING,
    "/v1/sql/statistics": STATISTICS,
}


@pytest.fixture
def top(remote: Remote) -> Remote:
    """A runtime with all that `top` asks for."""
    remote.on("GET", "/v1/ready", Reply(body=b"ready", content_type="text/plain"))
    for route, value in ROUTES.items():
        remote.on("GET", route, as_reply(value))
    return remote


def terminal_of(remote: Remote, *arguments: str) -> Terminal:
    environ = {"RUNTIME_HTTP_ENDPOINT": remote.url, "RUNTIME_API_KEY": API_KEY}
    return Terminal("top", "--interval", "0.1", *arguments, environ=environ)


def test_history_is_a_table_or_all_fields(remote: Remote) -> None:
    with_text = FINISHED | {"sql": f"SELECT\n {'x' * 100}", "outcome": "query_timeout"}
    remote.on("GET", "/v1/sql/history", as_reply([with_text, FINISHED]))

    table = remote.call("history")
    as_json = remote.call("history", "--format", "json", "--limit", "7")
    remote.on("GET", "/v1/sql/history", as_reply([FINISHED]))
    without_text = remote.call("history")

    assert (table.status, table.err) == (0, "")
    assert f"| SELECT {'x' * 70}..." in table.out
    assert "| query_timeout | 1.2 s " in table.out
    assert "12.3 kB" in table.out
    assert "1c9f0e2d9a483705" in without_text.out
    assert without_text.err.endswith(" runtime.history: {sql: true} in its YAML keeps their SQL.\n")
    assert remote.call("history", "--quiet").err == as_json.err == ""
    assert json.loads(as_json.out) == [with_text, FINISHED]
    assert [request.path.partition("?")[2] for request in remote.requests] == ["limit=20", "limit=7", *["limit=20"] * 2]


@pytest.mark.parametrize("limit", ["0", "1001", "x", "1.5"])
def test_a_limit_that_no_runtime_takes_is_wrong_usage(remote: Remote, limit: str) -> None:
    assert remote.call("history", "--limit", limit).status == 2


@pytest.mark.parametrize(
    "value", [{}, {"total_ms": "1"}, {"total_ms": math.nan}, {"total_ms": -math.inf}, {"rows": 1.5}, {"outcome": None}]
)
def test_a_history_of_something_else_is_refused(remote: Remote, value: dict[str, Any]) -> None:
    remote.on("GET", "/v1/sql/history", as_reply([FINISHED | value if value else {}]))

    assert remote.call("history").status == 3


@pytest.mark.parametrize("value", [[], {}, {**STATISTICS, "statements": [1]}, {**STATISTICS, "since": None}])
def test_statistics_of_something_else_are_refused(top: Remote, value: Any) -> None:
    top.on("GET", "/v1/sql/statistics", as_reply(value))

    assert top.call("top").status == 3


@pytest.mark.parametrize("arguments", [["--once"], []])
def test_a_pipe_gets_one_screen(top: Remote, arguments: list[str]) -> None:
    done = top.call("top", *arguments)

    assert (done.status, done.err) == (0, "")
    assert "\x1b" not in done.out
    for part in ("key analyst  ready", "http Ready", "a" * 32, "1c9f0e2d9a483705", "flights", "336,776"):
        assert part in done.out


def test_a_terminal_that_cannot_move_its_cursor_gets_one_screen(top: Remote) -> None:
    environ = {"RUNTIME_HTTP_ENDPOINT": top.url, "RUNTIME_API_KEY": API_KEY, "TERM": "dumb"}
    with Terminal("top", environ=environ) as terminal:
        terminal.shows("key analyst")
        assert terminal.leaves() == 0
        assert "\x1b" not in terminal.output


def test_what_the_key_may_not_see_is_left_out_with_the_reason(top: Remote) -> None:
    top.on("GET", "/v1/sql/statistics", problem(404, "history_disabled", "The history is off."))

    done = top.call("top", "--once")

    assert done.status == 0
    assert "The history is off. [history_disabled]" in done.out
    assert "flights" in done.out


@pytest.mark.parametrize(("reply", "status"), [(problem(401, "unauthorized", "No."), 4), (Reply(404, b"<html>"), 3)])
def test_once_fails_as_other_commands_do(top: Remote, reply: Reply, status: int) -> None:
    top.on("GET", "/v1/datasets", reply)

    assert top.call("top", "--once").status == status


def test_a_statement_is_chosen_and_cancelled(top: Remote) -> None:
    cancelled: list[str] = []

    def cancel(request: Request) -> Reply:
        cancelled.append(request.path)
        return as_reply({"message": "Query b is being cancelled."})

    top.on("POST", f"/v1/sql/{'b' * 32}/cancel", cancel)
    with terminal_of(top) as terminal:
        terminal.shows("SELECT 'b'")
        terminal.send("\x1b[Bc")
        terminal.shows(f"Cancel statement {'b' * 32}? y or n")
        terminal.send("y")
        terminal.shows("Query b is being cancelled.")
        terminal.resize(60, 12)
        terminal.until(lambda lines: "q leave" in "".join(lines[-1:]) or "cancelled" in lines[-1], "the last line")
        terminal.send("q")
        assert terminal.leaves() == 0
        assert terminal.output.endswith("\x1b[?25h\x1b[?1049l")
    assert cancelled == [f"/v1/sql/{'b' * 32}/cancel"]


@pytest.mark.exhaustive
def test_a_runtime_that_goes_away_and_comes_back_is_shown(top: Remote) -> None:
    ready = top.replies["GET", "/v1/ready"]
    with terminal_of(top) as terminal:
        terminal.shows("key analyst  ready")
        top.on("GET", "/v1/ready", Reply(500, b"<html>", "text/html"))
        terminal.shows("no connection")
        terminal.shows("flights")
        top.replies["GET", "/v1/ready"] = ready
        terminal.shows("key analyst  ready")

        top.on("GET", "/v1/status", problem(401, "unauthorized", "No."))
        assert terminal.leaves() == 4
    assert "\x1b[?1049lError: " in terminal.output.replace("\x1b[31m", "").replace("\x1b[0m", "")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("how", "status"),
    [(CTRL_C, 130), ("\x1c", 131), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["Ctrl-C", "QUIT", "TERM", "HUP"],
)
def test_the_terminal_is_given_back(top: Remote, how: str | signal.Signals, status: int) -> None:
    with terminal_of(top) as terminal:
        before = termios.tcgetattr(terminal._fd)
        terminal.shows("key analyst")
        during = termios.tcgetattr(terminal._fd)
        if isinstance(how, str):
            terminal.send(how)
        else:
            os.kill(terminal.process.pid, how)

        assert terminal.leaves() == status
        assert terminal.output.endswith("\x1b[?25h\x1b[?1049l")
        after = termios.tcgetattr(terminal._fd)
    assert before[3] & termios.ECHO
    assert not during[3] & termios.ECHO
    assert after == before


def test_a_client_closed_between_two_requests_ends_the_poller_without_a_word() -> None:
    under_way, is_closed = threading.Event(), threading.Event()

    def answer(_: httpx.Request) -> httpx.Response:
        under_way.set()
        assert is_closed.wait(60)
        return httpx.Response(200, text="ready")

    with RuntimeClient("http://127.0.0.1", transport=httpx.MockTransport(answer)) as client:
        poller = Poller(client, interval_s=0.1)
        assert under_way.wait(60)
        [thread] = [thread for thread in threading.enumerate() if thread.name == "poller"]
        poller.stop()
    is_closed.set()

    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.exhaustive
def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(top: Remote) -> None:
    with terminal_of(top) as terminal:
        terminal.shows("key analyst")
        # A process without a shell above it is not stopped; everything else happens.
        terminal.send("\x1a")
        terminal.until(lambda _: terminal.output.count("\x1b[?1049h") == 2, "the screen to be taken again")
        terminal.shows("key analyst")

        assert terminal.output.count("\x1b[?1049l") == 1
        terminal.send("q")
        assert terminal.leaves() == 0
