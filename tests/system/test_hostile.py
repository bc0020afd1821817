"""Statements and signals that end an engine worker, while everybody else goes on."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import pytest

from benchmarks.processes import peak_pss, pss_bytes
from queryengine.pool.worker import SPARE_BYTES
from tests.system.harness import K1, K2, Server, probing, wait_for
from tests.system.processes import MIB, busy_engine_workers

TIMEOUT_S = 2.0
#: Seconds within which a statement that no interrupt stops has ended after its limit: its worker is killed after one,
#: and a busy machine takes its time over that.
OVERDUE_S = 20.0
MEMORY_LIMIT_MIB = 256
WORKERS = 2

#: Statements that no interrupt stops, or that take memory that the engine does not count, or both.
ENDLESS = {
    "levenshtein": "SELECT levenshtein(repeat('a',200000), repeat('b',200000))",
    "alias": "SELECT editdist3(repeat('ab',100000), repeat('ba',100000))",
    "rows": "SELECT sum(damerau_levenshtein(repeat('a',3000)||i, repeat('b',3000))) FROM range(2048) t(i)",
    "lambda": "SELECT list_transform(range(1000), lambda x: levenshtein(repeat('a',9000), repeat('b',9000)||x))",
    "filter": "SELECT list_filter(range(1000), lambda x: levenshtein(repeat('a',9000), repeat('b',9000)||x) > 1)",
    "constant": "SELECT 1 WHERE levenshtein(repeat('a',200000), repeat('b',200000)) > 0",
    "case": "SELECT CASE WHEN i < 0 THEN 0 ELSE levenshtein(repeat('a',60000)||i, repeat('b',60000)) END"
    " FROM range(2000) t(i)",
    "explain": "EXPLAIN SELECT levenshtein(repeat('a',200000), repeat('b',200000))",
    "order": "SELECT i FROM range(2000) t(i) ORDER BY levenshtein(repeat('a',20000)||i, repeat('b',20000))",
    "group": "SELECT count(*) FROM range(2000) t(i) GROUP BY levenshtein(repeat('a',20000)||i, repeat('b',20000))",
    "window": "SELECT max(levenshtein(repeat('a',20000)||i, repeat('b',20000))) OVER () FROM range(2000) t(i)",
    "laterals": "SELECT count(*) FROM range(90000), LATERAL (SELECT levenshtein(repeat('a',90000), repeat('b',90000)))",
}
HUNGRY = {
    "repeat": "SELECT length(repeat('a', 4000000000))",
    "pad": "SELECT length(lpad('x', 2000000000, 'y'))",
    "sort": "SELECT list_sort(list_reverse(range(80000000)))[1]",
    "transform": "SELECT list_sum(list_transform(range(200000000), lambda x: x + 1))",
    "split": "SELECT len(string_split(repeat('a,', 40000000), ','))",
    "aggregate": "SELECT length(string_agg(repeat('a',1000000), '')) FROM range(100000)",
    "unnest": "SELECT max(u) FROM (SELECT unnest(range(100000000)) AS u ORDER BY u DESC)",
    "list": "SELECT length(list(i)) FROM range(1000000000) t(i)",
    "hex": "SELECT length(hex(repeat('a', 1500000000)))",
    "distinct": "SELECT count(DISTINCT repeat(i::VARCHAR, 200)) FROM range(50000000) t(i)",
}


@contextmanager
def serving(directory: Path, timeout_s: float) -> Iterator[Server]:
    """A runtime with two workers and little memory."""
    query = {
        "timeout": f"{timeout_s:g}s",
        "workers": WORKERS,
        "memory_limit": f"{MEMORY_LIMIT_MIB}MiB",
        "temp_directory_limit": "256MiB",
        "queue_timeout": "20s",
    }
    with Server(directory, changes={"runtime": {"query": query}}) as running:
        wait_for(lambda: running.rows("SELECT 1 AS a") == [{"a": 1}], "an answer")
        yield running


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two seconds a statement."""
    with serving(tmp_path_factory.mktemp("hostile"), TIMEOUT_S) as running:
        yield running


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ENDLESS)
def test_a_statement_that_no_interrupt_stops_ends_in_time_and_disturbs_nobody(limited: Server, name: str) -> None:
    def workers() -> int:
        return sum(row.get("workers_alive", 0) for row in limited.listed("/v1/status"))

    wait_for(lambda: workers() == WORKERS, "the worker that the statement before has cost")
    with probing(limited) as seconds:
        answer = limited.sql(ENDLESS[name])
        wait_for(lambda: seconds, "a first look at the others")
    assert answer.status_code == 504
    problem = answer.json()
    assert problem["code"] == "query_timeout"
    assert answer.headers["X-Request-Id"] == problem["request_id"]
    assert answer.headers["X-Query-Id"]
    assert answer.elapsed.total_seconds() < TIMEOUT_S + OVERDUE_S
    # Whoever waits for the statement waits for as long as it runs; a busy machine is slow now and then.
    assert median(seconds) < TIMEOUT_S


@pytest.mark.alone
def test_all_workers_hostile_at_once_stay_within_their_memory_and_give_it_back(limited: Server) -> None:
    base = pss_bytes(limited.process.pid)
    with peak_pss(limited.process.pid) as peak, ThreadPoolExecutor(WORKERS) as pool:
        statements = [(statement, key) for statement in HUNGRY.values() for key in (K1, K2)]
        answers = list(pool.map(lambda pair: limited.sql(*pair), statements))
    codes = {answer.json()["code"] for answer in answers}
    assert codes <= {"query_timeout", "resource_limit", "engine_worker_died", "sql_error"}
    assert peak() <= base + WORKERS * (MEMORY_LIMIT_MIB * MIB + SPARE_BYTES)
    wait_for(lambda: limited.rows("SELECT 1 AS a", K2) == [{"a": 1}], "the runtime to go on")
    wait_for(lambda: pss_bytes(limited.process.pid) < base + 96 * MIB, "the memory to be given back")


#: Spills some hundred MiB within a second, and then computes without an end.
SPILLING = """
WITH wide AS MATERIALIZED (SELECT repeat(i::VARCHAR, 1000) AS r FROM range(60000) t(i))
SELECT count(*) FROM wide a, wide b WHERE a.r || b.r = 'x'
"""


def spilled_bytes(directory: Path) -> int:
    """Return the size of all files below *directory*; those that go meanwhile do not count."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(folder) / name).stat().st_size
    return total


@pytest.mark.exhaustive
def test_a_killed_worker_costs_its_statement_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    scratch = tmp_path / ".runtime" / "tmp"

    # All the time that it takes to find the worker.
    with serving(tmp_path, 600.0) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.sql, SPILLING)
        left = wait_for(lambda: [own for own in scratch.iterdir() if spilled_bytes(own)], "a worker to spill")
        (victim,) = busy_engine_workers(server.process.pid)
        os.kill(victim, signal.SIGKILL)
        failed = answer.result()

        assert (failed.status_code, failed.json()["code"]) == (500, "engine_worker_died")
        assert failed.headers["X-Query-Id"]
        assert failed.headers["X-Request-Id"] == failed.json()["request_id"]
        assert server.rows("SELECT count(*) AS n FROM orders") == [{"n": 1000}]
        # Not all files: in the directory of a worker that lives, DuckDB keeps an empty one once it has spilled.
        wait_for(lambda: not any(own.exists() for own in left), "what it spilled to go")
        wait_for(lambda: len(list(scratch.iterdir())) == WORKERS, "a directory for each worker")
        assert spilled_bytes(scratch) == 0
