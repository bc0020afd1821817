"""
The whole runtime under mixed load for a long time: nothing may grow, and nobody gets an answer that is not theirs.

`make soak` runs it for ten minutes; `SOAK_S=7200 make soak` for two hours.
"""

import itertools
import os
import random
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx
import pytest

from benchmarks.processes import pss_bytes
from tests.system.harness import K1, K2, Server, raw_request, write_orders
from tests.system.processes import MIB, descriptors, family

SOAK_S = float(os.environ.get("SOAK_S", "600"))
SAMPLE_EVERY_S = 2.0
REFRESH_EVERY_S = 15.0

#: Statements that work, with the answer, or None where any 200 will do.
GOOD: list[tuple[str, str | None]] = [
    ("SELECT 1 AS a", '[{"a":1}]'),
    ("SELECT count(*) AS n, sum(id) % 1000 >= 0 AS ok FROM orders", '[{"n":1000,"ok":true}]'),
    ("SELECT * FROM orders ORDER BY id LIMIT 100", None),
    ("SELECT name, amount FROM big_orders ORDER BY amount DESC LIMIT 10", None),
    ("SELECT i, i * 2 AS j FROM range(200000) t(i)", None),
    (
        "SELECT table_name FROM information_schema.tables ORDER BY 1",
        '[{"table_name":"big_orders"},{"table_name":"orders"}]',
    ),
]
#: Statements that are refused, with the status.
BAD = [
    ("SELEC 1", 400),
    ("SELECT * FROM nowhere", 400),
    ("DROP TABLE orders", 403),
    ("SELECT * FROM read_csv('/etc/passwd')", 403),
    ("SELECT 1; SELECT 2", 403),
    ("", 400),
]
HOSTILE = [
    "SELECT levenshtein(repeat('a',200000), repeat('b',200000))",
    "SELECT length(repeat('a', 4000000000))",
    "SELECT length(string_agg(repeat('a',1000000), '')) FROM range(100000)",
    "SELECT count(*) FROM range(1000000000000)",
    "SELECT i FROM range(100000000) t(i) ORDER BY hash(i)",
]
HOSTILE_CODES = {"query_timeout", "resource_limit", "engine_worker_died", "sql_error"}


@dataclass(frozen=True, slots=True)
class Sample:
    """What the processes of a runtime hold at one moment."""

    at_s: float
    pss_bytes: int
    descriptors: int
    processes: int
    scratch_files: int


class Load:
    """Threads that ask, each in its own way, until the end; `faults` are answers that should not be."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(work, random.Random(number)))
            for number, work in enumerate(
                [self._good, self._good, self._good, self._bad, self._hostile, self._leaving, self._refresh]
            )
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, work: Callable[[httpx.Client, random.Random], None], chance: random.Random) -> None:
        with httpx.Client(base_url=self.server.url, timeout=60, trust_env=False) as client:
            while not self._stop.is_set():
                try:
                    work(client, chance)
                except httpx.TransportError as error:
                    self.faults.append(f"{work.__name__}: {error!r}")

    def _judge(self, kind: str, answer: httpx.Response, *, ok: bool) -> None:
        self.counts[f"{kind} {answer.status_code}"] += 1
        if not ok:
            self.faults.append(f"{kind}: {answer.status_code} {answer.text[:300]}")

    def _good(self, client: httpx.Client, chance: random.Random) -> None:
        statement, expected = chance.choice(GOOD)
        answer = client.post("/v1/sql", content=statement, headers={"X-API-Key": K2})
        self._judge("good", answer, ok=answer.status_code == 200 and expected in {None, answer.text})

    def _bad(self, client: httpx.Client, chance: random.Random) -> None:
        statement, status = chance.choice(BAD)
        answer = client.post("/v1/sql", content=statement, headers={"X-API-Key": K1})
        self._judge("bad", answer, ok=answer.status_code == status)
        self._stop.wait(0.02)

    def _hostile(self, client: httpx.Client, chance: random.Random) -> None:
        answer = client.post("/v1/sql", content=chance.choice(HOSTILE), headers={"X-API-Key": K1})
        # A long answer may have begun: then it is cut, which is a transport error of its own.
        self._judge("hostile", answer, ok=answer.status_code >= 500 and answer.json()["code"] in HOSTILE_CODES)
        self._stop.wait(1.0)

    def _leaving(self, _client: httpx.Client, chance: random.Random) -> None:
        """Send a statement, and leave before or in the middle of the answer."""
        body = chance.choice(
            [b"SELECT sum(hash(i)) FROM range(100000000000) t(i)", b"SELECT i FROM range(50000000) t(i)"]
        )
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as connection:
            connection.sendall(raw_request("POST", "/v1/sql", [("X-API-Key", K1)], body))
            if b"FROM range(5" in body:
                connection.recv(65536)
            else:
                self._stop.wait(chance.uniform(0.05, 0.5))
        self.counts["left"] += 1
        self._stop.wait(0.3)

    def _refresh(self, client: httpx.Client, _chance: random.Random) -> None:
        write_orders(self.server.directory / "orders.parquet", offset=len(self.counts) * 1000)
        answer = client.post("/v1/datasets/orders/acceleration/refresh", headers={"X-API-Key": K1})
        self._judge("refresh", answer, ok=answer.status_code == 201)
        self._stop.wait(REFRESH_EVERY_S)


def _sample(server: Server, began: float) -> Sample:
    pid = server.process.pid
    scratch = Path(server.directory) / ".runtime" / "tmp"
    return Sample(
        at_s=time.monotonic() - began,
        pss_bytes=pss_bytes(pid),
        descriptors=descriptors(pid),
        processes=len(family(pid)),
        scratch_files=sum(1 for _ in scratch.rglob("*")),
    )


def _median(samples: list[Sample], field: str) -> float:
    return float(statistics.median(getattr(sample, field) for sample in samples))


@pytest.mark.soak
def test_nothing_grows_under_mixed_load(tmp_path: Path) -> None:
    query = {"timeout": "3s", "memory_limit": "256MiB", "temp_directory_limit": "256MiB", "workers": 4}
    samples: list[Sample] = []
    with Server(tmp_path, changes={"runtime": {"query": query}}) as server:
        server.rows("SELECT 1")
        began = time.monotonic()
        with Load(server) as load:
            for number in itertools.count(1):
                time.sleep(SAMPLE_EVERY_S)
                samples.append(_sample(server, began))
                if number % 30 == 0:
                    print(f"\n{samples[-1]}\n{dict(sorted(load.counts.items()))}", flush=True)
                if samples[-1].at_s >= SOAK_S or load.faults:
                    break
        answer = server.rows("SELECT 1 AS a")
    print(f"\n{dict(sorted(load.counts.items()))}")
    assert not load.faults, load.faults[:5]
    assert answer == [{"a": 1}]
    # The first fifth warms up; then the first and the last third must look alike.
    steady = samples[len(samples) // 5 :]
    first, last = steady[: len(steady) // 3], steady[-len(steady) // 3 :]
    for field in ("pss_bytes", "descriptors", "processes", "scratch_files"):
        print(f"{field}: {_median(first, field):.0f} -> {_median(last, field):.0f}")
    assert _median(last, "pss_bytes") < _median(first, "pss_bytes") * 1.1 + 32 * MIB
    assert _median(last, "descriptors") <= _median(first, "descriptors") + 10
    assert _median(last, "processes") <= _median(first, "processes") + 1
    assert _median(last, "scratch_files") <= _median(first, "scratch_files") + 4
