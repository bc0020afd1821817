"""Remembered answers in a whole runtime: data is replaced, workers are killed, and no answer is old."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.system.harness import K2, KEYED, WRONG, Server, wait_for, write_orders
from tests.system.processes import busy_engine_workers, family

ROWS = 1000

#: Takes a second or so.
SLOW = "SELECT count(*) AS c FROM range(20000) a, range(20000) b WHERE a.range * b.range = -1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("cached")
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
    with Server(directory, changes=changes) as running:
        yield running


def test_once_a_refresh_is_done_no_answer_is_old(server: Server) -> None:
    states = set()
    for offset in range(1, 5):
        write_orders(server.directory / "orders.parquet", ROWS, offset)
        write_orders(server.directory / "growing.parquet", 10 + offset)
        for name in ("orders", "growing"):
            assert server.refresh(name)["status"] == "succeeded"
        for _ in range(6):  # of both web processes
            answer = server.sql("SELECT sum(id)::BIGINT AS s FROM orders")
            assert answer.json() == [{"s": ROWS * (ROWS - 1) // 2 + ROWS * offset}]
            states.add(answer.headers["X-Cache"])
            assert server.rows("SELECT count(*) AS n FROM growing") == [{"n": 10 + offset}]
    assert states == {"hit", "miss"}


def test_a_key_is_checked_before_every_answer(server: Server) -> None:
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
def test_an_engine_that_was_started_anew_is_asked_anew(server: Server) -> None:
    def states() -> set[str]:
        with httpx.Client(trust_env=False) as client:
            answers = [client.post(server.url + "/v1/sql", content="SELECT 99 AS a", headers=KEYED) for _ in range(3)]
        return {f"{answer.status_code} {answer.headers.get('X-Cache')}" for answer in answers}

    wait_for(lambda: states() == {"200 hit"}, "hits")
    os.kill(arbiter_of(server), signal.SIGKILL)

    wait_for(lambda: "200 miss" in states(), "an answer of the new engine")
    wait_for(lambda: states() == {"200 hit"}, "hits")


def arbiter_of(server: Server) -> int:
    """Return the process under which the engine workers are: the first that runs the engine's command."""
    return next(pid for pid, command in family(server.process.pid).items() if "runengine" in command)
