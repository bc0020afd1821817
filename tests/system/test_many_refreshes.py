"""Checks R20 and R21: what a large refresh costs those who ask meanwhile, and what many refreshes leave."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

from benchmarks.processes import pss_bytes
from tests.system.harness import K1, K2, PATIENCE_S, Server
from tests.system.processes import MIB, descriptors, family

ROWS = 10_000_000
SUM = ROWS * (ROWS - 1) // 2
CHECKSUM = "SELECT count(*) AS n, sum(id)::BIGINT AS s FROM facts"
WARM_UP_S = 5.0
IDLE_S = 15.0
REFRESHING_S = 40.0
REFRESHES = 200

pytestmark = pytest.mark.soak


def write_facts(path: Path, rows: int) -> None:
    """Write rows of a number, another one, a text and a time."""
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.execute(
            f"COPY (SELECT i AS id, hash(i) % 1000 AS part, md5(i::VARCHAR) AS text, "
            f"TIMESTAMP '2024-01-01' + to_seconds(i) AS at FROM range({rows}) t(i)) TO '{path}' (FORMAT parquet)"
        )


@contextmanager
def facts_server(directory: Path, rows: int) -> Iterator[Server]:
    write_facts(directory / "facts.parquet", rows)
    datasets = [{"from": "file:facts.parquet", "name": "facts", "acceleration": {"enabled": True}}]
    changes = {"datasets": datasets, "views": [], "runtime": {"flight": {"enabled": False}}}
    with Server(directory, changes=changes) as server:
        yield server


@dataclass(frozen=True, slots=True)
class Times:
    """How long answers took, in seconds."""

    ping: list[float]
    checksum: list[float]

    def __str__(self) -> str:
        return ", ".join(
            f"{name} median {statistics.median(taken) * 1000:.0f} ms, p99 {p99(taken) * 1000:.0f} ms of {len(taken)}"
            for name, taken in (("SELECT 1", self.ping), ("checksum", self.checksum))
        )


def p99(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=100)[98]


def measure(server: Server, until: Callable[[], bool]) -> Times:
    """Ask both statements again and again, each over a connection of its own, and check what they answer."""
    times = Times([], [])
    ended = threading.Event()
    wrong: list[str] = []

    def ask(sql: str, expected: Any, key: str, pause_s: float, taken: list[float]) -> None:
        with httpx.Client(
            base_url=server.url, trust_env=False, timeout=PATIENCE_S, headers={"X-API-Key": key}
        ) as client:
            while not ended.is_set():
                began = time.perf_counter()
                answer = client.post("/v1/sql", content=sql)
                taken.append(time.perf_counter() - began)
                if answer.status_code != 200 or answer.json() != expected:
                    wrong.append(answer.text)
                ended.wait(pause_s)

    clients = [
        threading.Thread(target=ask, args=("SELECT 1 AS a", [{"a": 1}], K1, 0.01, times.ping)),
        threading.Thread(target=ask, args=(CHECKSUM, [{"n": ROWS, "s": SUM}], K2, 0.05, times.checksum)),
    ]
    for client in clients:
        client.start()
    try:
        while not until():
            time.sleep(0.1)
    finally:
        ended.set()
        for client in clients:
            client.join()
    assert wrong == []
    return times


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def test_r20_a_refresh_of_ten_million_rows_is_hardly_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with facts_server(tmp_path, ROWS) as server:
        measure(server, after(WARM_UP_S))
        idle = measure(server, after(IDLE_S))
        is_over = after(REFRESHING_S)

        def refresh_again() -> bool:
            if not any(run["finished_at"] is None for run in server.refreshes("facts")):
                if is_over():
                    return True
                assert server.ask_refresh("facts").status_code == 201
            return False

        busy = measure(server, refresh_again)
        done = server.refreshes("facts")

    with capsys.disabled():
        loads = [run["duration_ms"] / 1000 for run in done]
        print(
            f"\nidle: {idle}\nrefreshing: {busy}\n"
            f"{len(loads)} loads of {ROWS} rows: {min(loads):.1f} s to {max(loads):.1f} s"
        )
    assert {run["status"] for run in done} == {"succeeded"}
    assert p99(busy.ping) < 0.2
    assert statistics.median(busy.checksum) < 2 * statistics.median(idle.checksum)


@dataclass(frozen=True, slots=True)
class Held:
    """What a runtime holds between two refreshes."""

    pss_bytes: int
    descriptors: int
    processes: int
    state_bytes: int
    state_files: int

    @classmethod
    def by(cls, server: Server) -> "Held":
        pid = server.process.pid
        files = [path for path in (server.directory / ".runtime").rglob("*") if path.is_file()]
        return cls(
            pss_bytes(pid), descriptors(pid), len(family(pid)), sum(path.stat().st_size for path in files), len(files)
        )


def test_r21_two_hundred_refreshes_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with facts_server(tmp_path, 100_000) as server:
        held: list[Held] = []
        for number in range(REFRESHES + 1):
            if number % 50 == 0 and number:
                # The list of refreshes is full after a hundred, and workers follow within a moment.
                time.sleep(1.0)
                held.append(Held.by(server))
                with capsys.disabled():
                    print(f"\nafter {number}: {held[-1]}", end="")
            if number < REFRESHES:
                assert server.refresh("facts")["status"] == "succeeded"

    early, late = held[1], held[-1]
    assert late.processes == early.processes
    assert abs(late.descriptors - early.descriptors) <= 10
    assert late.pss_bytes < 1.1 * early.pss_bytes + 5 * MIB
    assert late.state_files == early.state_files
    assert late.state_bytes < 1.1 * early.state_bytes
