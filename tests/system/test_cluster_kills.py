"""
Something dies, or a caller loses patience, in the middle of a statement on a cluster.

A few of each are a part of `make test-all`; `make soak` does twenty, and prints what it saw.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster.clusters import ENDLESS, UNSTOPPABLE
from tests.cluster.kubernetes import SailCluster
from tests.queryengine.heartbeats import state_of
from tests.system.harness import K1, KEYED, Server, wait_for
from tests.system.processes import engine_workers, kill_family
from tests.system.test_cluster import server_on

#: How often each of them dies or is stopped in `make soak`.
MANY = int(os.environ.get("CLUSTER_KILLS", "20"))


#: Sends rows all the time, without end.
ROWS = "SELECT a.id, repeat('x', 100) AS t FROM range(0, 10) a, range(0, 100000000000) b"

#: Statements that run for a while, each with its last value: one has an answer, one never has, one sends rows all the
#: time, without end, and one cannot be stopped by the cluster.
STATEMENTS = (
    ("SELECT sum((a.id * b.id) % 7) AS n FROM range(0, 140) a, range(0, 7000000) b", "2520000000"),
    (ENDLESS, None),
    (ROWS, None),
    (UNSTOPPABLE, None),
)

#: What dies, with the ends of its statement that callers may see, and the seconds until the next one is answered if
#: nothing else keeps the machine busy. Sail waits for a worker for its heartbeat time-out, which is 30 s here.
VICTIMS = {
    "worker of the cluster": ({"right", "cut", "query_error", "engine_unavailable"}, 90),
    "engine worker": ({"cut", "engine_worker_died"}, 10),
    "runtime": ({"cut", "engine_worker_died", "engine_unavailable"}, 30),
    "cluster": ({"cut", "query_error", "engine_unavailable"}, 30),
}

WORKERS = 2
#: Seconds until nothing runs on the cluster any more, after a death and after an end that the runtime sees. What the
#: cluster computes until then is compared with what its workers can in that time: this machine has other work too.
IDLE_AFTER_DEATH_S, IDLE_S = 30.0, 10.0
_PATIENCE = 6


@dataclass
class Seen:
    """What twenty of a kind looked like: ends of statements, seconds until the next answer, and until idle."""

    ends: Counter[str] = field(default_factory=Counter)
    answered_s: list[float] = field(default_factory=list)
    idle_s: list[float] = field(default_factory=list)
    idle_cpu_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        ends = ", ".join(f"{end} {count}" for end, count in self.ends.most_common())
        taken = {"next answer after": self.answered_s, "idle after": self.idle_s, "CPU until then": self.idle_cpu_s}
        spans = [f"{name} {median(one):.1f} s (median), {max(one):.1f} s (most)" for name, one in taken.items() if one]
        return f"{ends}; {'; '.join(spans)}"

    def wait_until_idle(self, cluster: SailCluster, began: float, cpu_s: float, within_s: float) -> None:
        """Wait until the cluster, which had used *cpu_s* when it *began* to be told, computes no more."""
        wait_for(cluster.is_idle, "the cluster", within_s * _PATIENCE)
        self.idle_s.append(time.monotonic() - began)
        self.idle_cpu_s.append(max(0.0, cluster.cpu_s() - cpu_s))
        assert self.idle_cpu_s[-1] <= within_s * WORKERS


def end_of(server: Server, sql: str, last_value: str | None, patience_s: float = 120.0) -> str:
    """Return how a statement ends for its caller: "right", "wrong", "cut", or the code of the error."""
    headers = {"X-API-Key": K1, "Accept": "text/csv"}
    tail, until = b"", time.monotonic() + patience_s
    try:
        with httpx.stream(
            "POST", f"{server.url}/v1/sql", content=sql, headers=headers, timeout=patience_s, trust_env=False
        ) as answer:
            if answer.status_code != 200:
                answer.read()
                return str(answer.json()["code"])
            for chunk in answer.iter_raw():
                tail = (tail + chunk)[-100:]
                if time.monotonic() > until:
                    return "cut"
    except httpx.TransportError:
        return "cut"
    return "right" if tail.decode().split()[-1] == last_value else "wrong"


@dataclass
class Trial:
    """A runtime on a cluster."""

    cluster: SailCluster
    server: Server

    def begin(
        self, pool: ThreadPoolExecutor, sql: str, last_value: str | None, patience_s: float = 120.0
    ) -> Future[str]:
        """
        Begin a statement, whose end is given, and wait until the cluster computes it.

        A cluster that has lost a worker may fail statements for a while, and on a busy machine the caller or the limit
        may have ended the statement by then.
        """
        asked, before = pool.submit(end_of, self.server, sql, last_value, patience_s), self.cluster.cpu_s()

        def is_computed() -> bool:
            nonlocal asked, before, patience_s
            if asked.done():
                assert asked.result() in {"query_error", "engine_unavailable", "cut", "query_timeout"}
                patience_s = min(2 * patience_s, 120.0)
                asked, before = pool.submit(end_of, self.server, sql, last_value, patience_s), self.cluster.cpu_s()
            return self.cluster.cpu_s() > before + 0.5

        wait_for(is_computed, "the statement to run", 120.0)
        return asked

    def is_answering(self) -> bool:
        return end_of(self.server, "SELECT count(*) AS n FROM numbers", "1000") == "right"

    def kill(self, victim: str) -> None:
        """Kill it without a warning, and start anew what nobody else starts."""
        if victim == "worker of the cluster":
            self.cluster.kill_a_worker()
        elif victim == "cluster":
            self.cluster.kill()
            self.cluster.pods.kill()
            self.cluster.start()
        elif victim == "runtime":
            kill_family(self.server.process.pid)
            self.server.process.wait()
            self.server.launch()
        else:
            workers = engine_workers(self.server.process.pid)
            os.kill(next(pid for pid in workers if state_of(pid).phase == "busy"), signal.SIGKILL)


@contextmanager
def trial(directory: Path, **engine: object) -> Iterator[Trial]:
    pq.write_table(pa.table({"id": range(1000)}), directory / "numbers.parquet")
    with SailCluster(directory) as cluster, server_on(cluster, directory, directory, ("numbers",), **engine) as server:
        found = Trial(cluster, server)
        wait_for(found.is_answering, "the first answer")
        yield found


def run_kills(directory: Path, victims: Sequence[str]) -> Seen:
    """Kill one of *victims* after the other, each in a statement, and look at everything that callers may notice."""
    seen = Seen()
    with trial(directory) as running, ThreadPoolExecutor(1) as pool:
        for victim, statement in zip(victims, cycle(STATEMENTS), strict=False):
            allowed, patience_s = VICTIMS[victim]
            asked = running.begin(pool, *statement)
            began, cpu_s = time.monotonic(), running.cluster.cpu_s()
            running.kill(victim)
            wait_for(running.is_answering, "the next answer", patience_s * _PATIENCE)
            seen.answered_s.append(time.monotonic() - began)
            end = asked.result()
            seen.ends[end] += 1
            assert end in allowed
            seen.wait_until_idle(running.cluster, began, cpu_s, IDLE_AFTER_DEATH_S)
    return seen


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param(tuple(VICTIMS), marks=pytest.mark.exhaustive, id="each"),
        *(pytest.param((victim,) * MANY, marks=pytest.mark.soak, id=victim) for victim in VICTIMS),
    ],
)
def test_a_death_leaves_no_wrong_answer_and_nothing_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], victims: Sequence[str]
) -> None:
    seen = run_kills(tmp_path, victims)

    with capsys.disabled():
        print(f"\n{len(victims)} deaths of {', '.join(dict.fromkeys(victims))}: {seen}")


#: Statements without end that a cluster can stop: in one operator, with an exchange between workers, in a sort, in a
#: window, and in the middle of an answer.
STOPPABLE = (
    ENDLESS,
    "SELECT k, count(*) AS n FROM (SELECT id % 5000011 AS k FROM range(0, 400000000000)) t GROUP BY k",
    "SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY id % 1009) AS r FROM range(0, 400000000000)) t",
    ROWS,
)

#: What stops a statement, with the limit of statements, and the end that its caller sees before the first row.
STOPS = {"time-out": ("3s", "query_timeout"), "cancel": ("2m", "query_cancelled"), "client gone": ("2m", "cut")}


def run_stops(directory: Path, stop: str, statements: Sequence[str]) -> Seen:
    """Stop one of *statements* after the other, and wait until the cluster computes no more."""
    limit, end = STOPS[stop]
    seen = Seen()
    with trial(directory, statement_timeout=limit) as running, ThreadPoolExecutor(1) as pool:
        for sql in statements:
            asked = running.begin(pool, sql, None, patience_s=3.0 if stop == "client gone" else 120.0)
            if stop == "cancel":
                (statement,) = running.server.active()
                running.server.request("POST", f"/v1/sql/{statement['id']}/cancel", headers=KEYED).raise_for_status()
            seen.ends[asked.result()] += 1
            seen.wait_until_idle(running.cluster, time.monotonic(), running.cluster.cpu_s(), IDLE_S)
            began = time.monotonic()
            assert running.is_answering()
            seen.answered_s.append(time.monotonic() - began)
    assert set(seen.ends) <= {end, "cut"}
    return seen


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(
    "statements",
    [
        pytest.param((ENDLESS, ROWS, UNSTOPPABLE), marks=pytest.mark.exhaustive, id="each"),
        pytest.param(tuple(islice(cycle(STOPPABLE), MANY)), marks=pytest.mark.soak, id="stoppable"),
        pytest.param((UNSTOPPABLE,) * MANY, marks=pytest.mark.soak, id="unstoppable"),
    ],
)
def test_the_cluster_is_idle_soon_after_a_statement_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stop: str, statements: Sequence[str]
) -> None:
    """A cluster that cannot stop a statement begins a new session."""
    seen = run_stops(tmp_path, stop, statements)

    with capsys.disabled():
        print(f"\n{len(statements)} times {stop}: {seen}")
