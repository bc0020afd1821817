"""Statements and signals that end an engine worker, while everybody else goes on."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import httpx
import pytest

from benchmarks.processes import pss_bytes
from queryengine.pool.worker import SPARE_BYTES
from tests.system.harness import K1, K2, NO_ROOTS, Server, wait_for
from tests.system.processes import MIB, busy_engine_workers, engine_workers, family, is_alive

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


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """All the time that a test needs to find a statement's worker and end it."""
    with serving(tmp_path_factory.mktemp("patient"), 600.0) as running:
        yield running


class Prober:
    """Asks `SELECT 1` with the second key again and again, and keeps how long each answer took."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seconds: list[float] = []
        self.wrong: list[str] = []

    def _run(self) -> None:
        with httpx.Client(trust_env=False, verify=NO_ROOTS, timeout=60, headers={"X-API-Key": K2}) as client:
            while not self._stop.wait(0.05):
                began = time.monotonic()
                answer = client.post(f"{self._server.url}/v1/sql", content="SELECT 1 AS a")
                self.seconds.append(time.monotonic() - began)
                if answer.text != '[{"a":1}]':
                    self.wrong.append(f"{answer.status_code} {answer.text}")


@contextmanager
def probing(server: Server) -> Iterator[Prober]:
    prober = Prober(server)
    prober._thread.start()
    try:
        yield prober
    finally:
        prober._stop.set()
        prober._thread.join()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ENDLESS)
def test_a_statement_that_no_interrupt_stops_ends_in_time_and_disturbs_nobody(limited: Server, name: str) -> None:
    with probing(limited) as prober:
        answer = limited.sql(ENDLESS[name])
        wait_for(lambda: prober.seconds, "a first look at the others")
    assert answer.status_code == 504
    problem = answer.json()
    assert problem["code"] == "query_timeout"
    assert answer.headers["X-Request-Id"] == problem["request_id"]
    assert answer.headers["X-Query-Id"]
    assert answer.elapsed.total_seconds() < TIMEOUT_S + OVERDUE_S
    assert not prober.wrong
    # Whoever waits for the statement waits for as long as it runs; a busy machine is slow now and then.
    assert median(prober.seconds) < TIMEOUT_S


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", HUNGRY)
def test_a_statement_that_eats_memory_gets_a_typed_error_and_gives_it_back(limited: Server, name: str) -> None:
    base = pss_bytes(limited.process.pid)
    answer = limited.sql(HUNGRY[name])
    assert answer.json()["code"] in {"query_timeout", "resource_limit", "engine_worker_died", "sql_error"}, answer.text
    assert limited.rows("SELECT 41 + 1 AS a") == [{"a": 42}]
    wait_for(lambda: pss_bytes(limited.process.pid) < base + 96 * MIB, "the memory to be given back")


@pytest.mark.exhaustive
def test_all_workers_hostile_at_once_stay_within_their_memory(limited: Server) -> None:
    base = pss_bytes(limited.process.pid)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, pss_bytes(limited.process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            statements = [(statement, key) for statement in HUNGRY.values() for key in (K1, K2)]
            answers = list(pool.map(lambda pair: limited.sql(*pair), statements))
    finally:
        done.set()
        watcher.join()
    codes = {answer.json()["code"] for answer in answers}
    assert codes <= {"query_timeout", "resource_limit", "engine_worker_died", "sql_error"}
    assert peak <= base + WORKERS * (MEMORY_LIMIT_MIB * MIB + SPARE_BYTES)
    wait_for(lambda: limited.rows("SELECT 1 AS a", K2) == [{"a": 1}], "the runtime to go on")


SLOW = "SELECT sum(hash(i)) FROM range(100000000000) t(i)"


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_worker_that_dies_costs_its_own_statement_only(patient: Server, how: signal.Signals) -> None:
    others = lasting(patient) - set(engine_workers(patient.process.pid))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(patient.sql, SLOW)
        victim = wait_for(lambda: busy_engine_workers(patient.process.pid), "a busy worker")[0]
        os.kill(victim, how)
        failed = answer.result()
    assert failed.status_code == 500, failed.text
    assert failed.json()["code"] == "engine_worker_died"
    assert failed.headers["X-Query-Id"]
    assert failed.headers["X-Request-Id"] == failed.json()["request_id"]
    assert patient.rows("SELECT count(*) AS n FROM orders") == [{"n": 1000}]
    wait_for(lambda: len(engine_workers(patient.process.pid)) == WORKERS, "a successor")
    assert others <= set(family(patient.process.pid)), "another process was restarted"


@pytest.mark.exhaustive
def test_a_worker_that_is_stopped_in_a_statement_times_out_and_is_replaced(limited: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(limited.sql, SLOW)
        victim = wait_for(lambda: busy_engine_workers(limited.process.pid), "a busy worker")[0]
        os.kill(victim, signal.SIGSTOP)
        stopped = answer.result()
    assert stopped.status_code == 504
    assert stopped.json()["code"] == "query_timeout"
    wait_for(lambda: not is_alive(victim), "the stopped worker to be killed")
    wait_for(lambda: len(engine_workers(limited.process.pid)) == WORKERS, "a successor")
    assert limited.rows("SELECT 1 AS a") == [{"a": 1}]


@pytest.mark.exhaustive
def test_an_idle_worker_that_is_stopped_is_replaced(patient: Server) -> None:
    victim = engine_workers(patient.process.pid)[0]
    os.kill(victim, signal.SIGSTOP)
    wait_for(lambda: not is_alive(victim), "the stopped worker to be killed")
    wait_for(lambda: len(engine_workers(patient.process.pid)) == WORKERS, "a successor")


def lasting(server: Server) -> set[int]:
    """Return the processes of *server* without those that load datasets, which end when there is nothing to load."""
    return {pid for pid, command in family(server.process.pid).items() if "loader_process" not in command}


@pytest.mark.exhaustive
def test_twenty_deaths_in_a_row_are_recovered_from(patient: Server) -> None:
    others = lasting(patient) - set(engine_workers(patient.process.pid))
    killed = 0
    while killed < 20:
        workers = wait_for(lambda: engine_workers(patient.process.pid), "a worker to kill")
        os.kill(workers[0], signal.SIGKILL)
        wait_for(lambda victim=workers[0]: not is_alive(victim), "its end")  # type: ignore[misc]
        killed += 1
    wait_for(lambda: len(engine_workers(patient.process.pid)) == WORKERS, "all workers")
    assert patient.rows("SELECT count(*) AS n FROM orders") == [{"n": 1000}]
    assert others <= set(family(patient.process.pid))


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


def test_nothing_is_left_in_the_temporary_directory_by_a_killed_worker(patient: Server) -> None:
    scratch = patient.directory / ".runtime" / "tmp"
    wait_for(lambda: not spilled_bytes(scratch), "earlier statements to end")

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(patient.sql, SPILLING)
        left = wait_for(lambda: [own for own in scratch.iterdir() if spilled_bytes(own)], "a worker to spill")
        (victim,) = busy_engine_workers(patient.process.pid)
        os.kill(victim, signal.SIGKILL)
        failed = answer.result()

    assert failed.json()["code"] == "engine_worker_died"
    # Not all files: in the directory of a worker that lives, DuckDB keeps an empty one once it has spilled.
    wait_for(lambda: not any(own.exists() for own in left), "what it spilled to go")
    wait_for(lambda: len(list(scratch.iterdir())) == WORKERS, "a directory for each worker")
    assert spilled_bytes(scratch) == 0


@pytest.mark.exhaustive
def test_one_key_that_floods_delays_nobody_else(tmp_path: Path) -> None:
    changes = {"runtime": {"query": {"queue_timeout": "1s", "max_queued": 16}}}
    statement = "SELECT sum(hash(i)) FROM range(100000000) t(i)"
    with Server(tmp_path, changes=changes) as server:
        expected = server.sql(statement)
        assert expected.status_code == 200
        stop = threading.Event()
        answers: list[httpx.Response] = []

        def flood() -> None:
            while not stop.is_set():
                answers.append(server.sql(statement))

        with ThreadPoolExecutor(24) as pool, probing(server) as prober:
            for _ in range(24):
                pool.submit(flood)
            wait_for(lambda: len(prober.seconds) >= 60 and len(answers) >= 40, "the flood")
            stop.set()
    assert not prober.wrong
    assert median(prober.seconds) < TIMEOUT_S
    statuses = {answer.status_code for answer in answers}
    assert statuses == {200, 503}
    assert {answer.text for answer in answers if answer.status_code == 200} == {expected.text}
    assert all(answer.headers["Retry-After"] for answer in answers if answer.status_code == 503)
