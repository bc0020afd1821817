"""Remembered answers in a whole runtime: data is replaced, workers are killed, clients leave, and no answer is old."""

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.system.harness import K1, K2, MODES, WRONG, Mode, Server, wait_for, write_orders
from tests.system.processes import busy_engine_workers, family

REFRESH = "/v1/datasets/orders/acceleration/refresh"
SUM = "SELECT sum(id)::BIGINT AS s FROM orders"
ROWS = 1000

#: Takes a second or so.
SLOW = "SELECT count(*) AS c FROM range(20000) a, range(20000) b WHERE a.range * b.range = -1"


def served(directory: Path, mode: Mode) -> Server:
    append = {"enabled": True, "refresh_mode": "append"}
    changes = {
        "runtime": {
            "results_cache": {"enabled": True, "max_bytes": "8MiB"},
            "query": {"workers": 3, "queue_timeout": "30s"},
        },
        "datasets": [
            {"from": "file:orders.parquet", "name": "orders", "acceleration": {"enabled": True}},
            {"from": "file:growing.parquet", "name": "growing", "time_column": "placed_at", "acceleration": append},
        ],
    }
    write_orders(directory / "growing.parquet", rows=10)
    return Server(directory, mode=mode, changes=changes)


@pytest.fixture(
    scope="module", params=["serve", *(pytest.param(mode, marks=pytest.mark.exhaustive) for mode in MODES[1:])]
)
def any_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp(request.param), request.param) as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("cached"), "serve") as running:
        yield running


def expected(offset: int) -> int:
    return ROWS * (ROWS - 1) // 2 + ROWS * offset


def refresh(server: Server, name: str = "orders") -> None:
    """Refresh a dataset, and return as soon as its end is listed."""
    path = REFRESH.replace("orders", name)
    run = server.request("POST", path, headers={"X-API-Key": K1}).json()["refresh"]["id"]

    def finished() -> bool:
        (found,) = (one for one in server.get(path, headers={"X-API-Key": K1}).json() if one["id"] == run)
        assert found["status"] != "failed", found
        return found["finished_at"] is not None

    wait_for(finished, "the end of the refresh")


def test_once_a_refresh_is_done_no_answer_is_old(any_server: Server) -> None:
    server = any_server
    states = set()
    for offset in range(1, 5):
        write_orders(server.directory / "orders.parquet", ROWS, offset)
        refresh(server)
        for _ in range(6):  # of both web processes
            answer = server.sql(SUM)
            assert answer.json() == [{"s": expected(offset)}]
            states.add(answer.headers["X-Cache"])
    assert states == {"hit", "miss"}


@pytest.mark.exhaustive
def test_once_rows_are_appended_no_answer_is_old(any_server: Server) -> None:
    server = any_server
    statement = "SELECT count(*) AS n FROM growing"
    for rows in (20, 30, 40):
        write_orders(server.directory / "growing.parquet", rows)
        refresh(server, "growing")
        assert [server.rows(statement) for _ in range(4)] == [[{"n": rows}]] * 4


def test_a_key_is_checked_before_every_answer(any_server: Server) -> None:
    server = any_server
    for _ in range(4):
        assert server.sql("SELECT 42 AS a", K2).json() == [{"a": 42}]
    for key in (WRONG, None):
        answer = server.sql("SELECT 42 AS a", key)
        assert (answer.status_code, answer.headers.get("X-Cache")) == (401, None)


def ask(server: Server, statement: str) -> tuple[int, str]:
    answer = server.sql(statement)
    return answer.status_code, answer.text if answer.status_code == 200 else answer.json()["code"]


@pytest.mark.exhaustive
def test_a_killed_worker_costs_the_statement_it_ran_and_no_other(server: Server) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(ask, server, SLOW) for _ in range(4)]
        worker = wait_for(lambda: busy_engine_workers(server.process.pid), "a busy worker")[0]
        os.kill(worker, signal.SIGKILL)
        outcomes = sorted(answer.result() for answer in answers)

    assert outcomes.count((500, "engine_worker_died")) == 1
    assert outcomes.count((200, '[{"c":0}]')) == 3
    assert ask(server, SLOW) == (200, '[{"c":0}]')


@pytest.mark.exhaustive
def test_a_client_that_leaves_takes_nobody_with_it(server: Server) -> None:
    statement = SLOW.replace("-1", "-2")
    request = f"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {K1}\r\nContent-Length: {len(statement)}\r\n\r\n"
    with ThreadPoolExecutor(3) as threads:
        with socket.create_connection(("127.0.0.1", server.port)) as leaves:
            leaves.sendall((request + statement).encode())
            wait_for(lambda: busy_engine_workers(server.process.pid), "a busy worker")
            answers = [threads.submit(ask, server, statement) for _ in range(3)]
        assert [answer.result() for answer in answers] == [(200, '[{"c":0}]')] * 3


@pytest.mark.exhaustive
def test_an_engine_that_was_started_anew_is_asked_anew(server: Server) -> None:
    def states() -> set[str]:
        with httpx.Client(trust_env=False) as client:
            answers = [
                client.post(server.url + "/v1/sql", content="SELECT 99 AS a", headers={"X-API-Key": K1})
                for _ in range(3)
            ]
        return {f"{answer.status_code} {answer.headers.get('X-Cache')}" for answer in answers}

    wait_for(lambda: states() == {"200 hit"}, "hits")
    os.kill(arbiter_of(server), signal.SIGKILL)

    wait_for(lambda: "200 miss" in states(), "an answer of the new engine")
    wait_for(lambda: states() == {"200 hit"}, "hits")


def arbiter_of(server: Server) -> int:
    """Return the process under which the engine workers are: the first that runs the engine's command."""
    return next(pid for pid, command in family(server.process.pid).items() if "runengine" in command)
