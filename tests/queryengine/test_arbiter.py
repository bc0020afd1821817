from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from queryengine.engine import Query
from queryengine.errors import (
    EngineUnavailableError,
    EngineWorkerDiedError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
)
from queryengine.pool.arbiter import (
    BOOT_S,
    OVERDUE_S,
    SPAWN_INTERVAL_S,
    SPAWNS_AT_ONCE,
    STUCK_S,
    Respawns,
    _is_stuck,
    kill_if,
)
from queryengine.pool.client import EngineClient
from queryengine.pool.client_result import ClientResult
from queryengine.pool.worker_state import WorkerState, read_state, write_state
from system.heartbeat import Pulse
from tests.queryengine.engine_process import EXIT_CODE_FILE, LONG_S, EngineProcess
from tests.queryengine.publishing import ENDLESS, ENDLESS_AFTER_ROWS, Publisher, wait_until

#: 10 million rows: more than any buffer takes.
LONG = "SELECT range FROM range(10000000)"


@pytest.fixture
def make_engine() -> Iterator[Callable[..., EngineProcess]]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as engines:
        state_dir = Path(directory)
        Publisher(state_dir).publish(flights="SELECT range AS id FROM range(1000)")

        def make(**settings: Any) -> EngineProcess:
            engine = EngineProcess(state_dir, **settings)
            engines.callback(engine.close)
            return engine

        yield make
        print((state_dir / "engine.log").read_text())  # noqa: T201 - shown when a test fails


@pytest.fixture
def make_client() -> Iterator[Callable[[EngineProcess], EngineClient]]:
    with ExitStack() as clients:

        def make(engine: EngineProcess) -> EngineClient:
            client = engine.client()
            clients.callback(client.close)
            return client

        yield make


@pytest.fixture
def engine(make_engine: Callable[..., EngineProcess]) -> EngineProcess:
    return make_engine()


@pytest.fixture
def client(engine: EngineProcess, make_client: Callable[[EngineProcess], EngineClient]) -> EngineClient:
    return make_client(engine)


def ask(client: EngineClient, sql: str = "SELECT count(*) AS n FROM flights", **query: Any) -> bytes:
    result = client.run(Query(sql=sql, **query))
    try:
        return b"".join(result)
    finally:
        result.close()


RIGHT = b'[{"n":1000}]'


class Asking:
    """A statement that a thread waits for."""

    def __init__(self, client: EngineClient, sql: str, **query: Any) -> None:
        self.answer: bytes | None = None
        self.error: QueryError | None = None
        self._thread = threading.Thread(target=self._ask, args=[client, sql], kwargs=query, daemon=True)
        self._thread.start()

    def _ask(self, client: EngineClient, sql: str, **query: Any) -> None:
        try:
            self.answer = ask(client, sql, **query)
        except QueryError as error:
            self.error = error

    def ended(self) -> bool:
        self._thread.join(LONG_S)
        return not self._thread.is_alive()

    @property
    def goes_on(self) -> bool:
        return self._thread.is_alive()


# Serving.


def test_statements_run_in_workers(engine: EngineProcess, client: EngineClient) -> None:
    assert ask(client) == RIGHT
    assert client.admit("SELECT id FROM flights;", frozenset({"flights"})).relations == {"flights"}
    with pytest.raises(QueryError, match="nothing_here"):
        ask(client, "SELECT nothing_here")

    status = client.status()
    assert (status.workers_alive, status.workers_killed) == (2, 0)
    for name in ("engine.sock", "broker.sock"):
        assert stat.S_IMODE((engine.state_dir / name).stat().st_mode) == 0o600


def test_a_worker_holds_nothing_of_the_broker(engine: EngineProcess, client: EngineClient) -> None:
    """Else a client that the arbiter drops would not notice."""
    for pid in engine.workers():
        links = [str(descriptor.readlink()) for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
        assert len([link for link in links if link.startswith("socket:")]) == 1


def test_signals_that_mean_nothing_here_change_nothing(engine: EngineProcess, client: EngineClient) -> None:
    before = engine.workers()

    for number in (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH):
        engine.send(number)
    wait_until(lambda: "SIGHUP does nothing" in engine.log.read_text(), within_s=LONG_S)

    assert ask(client) == RIGHT
    assert engine.workers() == before


# Workers that end.


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_the_end_of_a_worker_costs_its_own_statement_only(
    engine: EngineProcess, client: EngineClient, number: signal.Signals
) -> None:
    other = Asking(client, ENDLESS, query_id="other", fingerprint="b")
    hit = Asking(client, ENDLESS, query_id="hit", fingerprint="a")
    survivor = engine.worker_of("other")

    os.kill(engine.worker_of("hit"), number)

    assert hit.ended()
    assert isinstance(hit.error, EngineWorkerDiedError)
    assert ask(client, fingerprint="a") == RIGHT
    assert other.goes_on
    assert survivor in engine.workers()
    wait_until(lambda: client.status().workers_killed == 1, within_s=LONG_S)
    engine.wait_until_whole(client)
    assert client.cancel("other", "b")
    assert other.ended()


def test_a_worker_that_is_stopped_under_a_statement_is_killed(
    make_engine: Callable[..., EngineProcess], make_client: Callable[[EngineProcess], EngineClient]
) -> None:
    engine = make_engine(timeout_s=15.0)
    client = make_client(engine)
    asking = Asking(client, ENDLESS, query_id="stopped")
    pid = engine.worker_of("stopped")

    os.kill(pid, signal.SIGSTOP)

    assert ask(client) == RIGHT
    assert asking.ended()
    assert isinstance(asking.error, QueryTimeoutError)
    wait_until(lambda: pid not in engine.workers(), within_s=LONG_S)
    wait_until(lambda: client.status().workers_killed == 1, within_s=LONG_S)
    engine.wait_until_whole(client)


def test_a_worker_that_is_stopped_under_a_statement_of_nobody_is_killed(
    make_engine: Callable[..., EngineProcess],
    make_client: Callable[[EngineProcess], EngineClient],
    make_runner: Callable[[EngineProcess], Runner],
) -> None:
    engine = make_engine(timeout_s=15.0)
    runner = make_runner(engine)
    runner.run(ENDLESS, "stopped", "k")
    pid = engine.worker_of("stopped")
    os.kill(pid, signal.SIGSTOP)

    runner.kill()

    client = make_client(engine)
    wait_until(lambda: pid not in engine.workers(), within_s=LONG_S)
    assert ask(client) == RIGHT


def test_an_idle_worker_that_is_stopped_is_killed(engine: EngineProcess, client: EngineClient) -> None:
    stopped = min(engine.workers())

    os.kill(stopped, signal.SIGSTOP)

    assert ask(client, query_id="q") == RIGHT
    wait_until(lambda: client.status().workers_alive == 1, within_s=LONG_S)
    wait_until(lambda: stopped not in engine.workers(), within_s=LONG_S)
    engine.wait_until_whole(client)
    assert client.status().workers_killed == 1


def test_many_kills_give_few_new_workers_and_then_all_is_well(engine: EngineProcess, client: EngineClient) -> None:
    first = engine.workers()
    seen = set(first)
    started = time.monotonic()
    kills = 0
    while kills < 20:
        for pid in engine.workers():
            seen.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills += 1
        time.sleep(0.02)
    seen |= engine.workers()
    passed_s = time.monotonic() - started

    burst = SPAWNS_AT_ONCE * len(first)
    assert len(seen) <= len(first) + burst + passed_s / SPAWN_INTERVAL_S
    engine.wait_until_whole(client)
    assert ask(client) == RIGHT


@pytest.mark.parametrize("code", [0, 3, 4])
def test_no_exit_code_of_a_worker_ends_the_engine(engine: EngineProcess, client: EngineClient, code: int) -> None:
    (engine.state_dir / EXIT_CODE_FILE).write_text(str(code))
    for pid in engine.workers():
        os.kill(pid, signal.SIGKILL)

    wait_until(lambda: client.status().workers_killed >= (2 if code == 0 else 5), within_s=LONG_S)
    assert not client.is_alive()
    (engine.state_dir / EXIT_CODE_FILE).unlink()

    engine.wait_until_whole(client)
    assert ask(client) == RIGHT
    assert (client.status().workers_killed > 2) == (code != 0)


def test_workers_that_leave_in_peace_are_replaced_at_once(engine: EngineProcess, client: EngineClient) -> None:
    seen = set(engine.workers())
    leaves = 6 * SPAWNS_AT_ONCE
    for _ in range(leaves):
        pid = min(engine.workers())
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda pid=pid: pid not in engine.workers(), within_s=LONG_S)  # type: ignore[misc]
        engine.wait_until_whole(client)
        seen |= engine.workers()

    assert ask(client) == RIGHT
    assert len(seen) == 2 + leaves
    assert client.status().workers_killed == 0


def test_what_the_system_refuses_is_done_later(
    engine: EngineProcess, client: EngineClient, make_runner: Callable[[EngineProcess], Runner]
) -> None:
    engine.limit_files(1)

    for pid in engine.workers():
        os.kill(pid, signal.SIGKILL)
    late = make_runner(engine)
    late.run("SELECT 1 AS n", "late", "k")
    for message in ("an engine worker could not be started", "a client of the broker could not connect"):
        wait_until(lambda message=message: message in engine.log.read_text(), within_s=LONG_S)  # type: ignore[misc]
    engine.limit_files(1000)

    engine.wait_until_whole(client)
    assert ask(client) == RIGHT
    assert late.answer()[0] == "late"
    scratch = [path for path in (engine.state_dir / "tmp").rglob("*") if path.is_dir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in scratch} == {0o700}, "an ordinary user could not enter them"


def test_respawns_are_many_at_once_and_then_few() -> None:
    respawns = Respawns(4, now=0.0)

    assert [respawns.take(0.0) for _ in range(5)] == [True] * 4 + [False]
    assert [respawns.take(SPAWN_INTERVAL_S * 1.1) for _ in range(2)] == [True, False]
    assert [respawns.take(1000.0) for _ in range(5)] == [True] * 4 + [False]
    respawns.give_back()
    assert [respawns.take(1000.0) for _ in range(2)] == [True, False]
    for _ in range(9):
        respawns.give_back()
    assert [respawns.take(1000.0) for _ in range(5)] == [True] * 4 + [False]


def test_time_in_which_nobody_looked_is_not_held_against_a_worker() -> None:
    pulse = Pulse(0.0)
    for beat in (1.0, 1.0, 1.0):
        pulse.look(beat, pulse.age_s + 0.5)
    assert pulse.quiet_s == 1.0

    pulse.look(1.0, 1000.0)
    assert pulse.quiet_s == 2.0
    pulse.look(2.0, 1000.5)
    assert pulse.quiet_s == 0.0


def test_what_counts_as_stuck() -> None:
    quiet, young, old = Pulse(0.0), Pulse(0.0), Pulse(0.0)
    quiet.quiet_s = STUCK_S
    old.age_s = BOOT_S
    busy = WorkerState(phase="busy", deadline=10.0, query_id="q")

    assert not _is_stuck(busy, quiet, 10.0 + OVERDUE_S / 2)
    assert _is_stuck(busy, young, 10.0 + OVERDUE_S)
    assert _is_stuck(WorkerState(phase="idle"), quiet, 0.0)
    assert not _is_stuck(WorkerState(phase="idle"), old, 0.0)
    assert _is_stuck(WorkerState(), old, 0.0)
    assert not _is_stuck(WorkerState(), quiet, 0.0)


@contextmanager
def worker_of_its_own(heartbeat: int, *states: WorkerState) -> Iterator[int]:
    """A child process that goes from one of *states* to the next, over and over."""
    pid = os.fork()
    if not pid:
        while True:
            for state in states:
                write_state(heartbeat, state)
    try:
        wait_until(lambda: read_state(heartbeat).phase != "booting", within_s=LONG_S)
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


@pytest.fixture
def heartbeat() -> Iterator[int]:
    opened = os.memfd_create("heartbeat")
    yield opened
    os.close(opened)


def test_a_worker_is_killed_in_the_state_it_was_judged_by(heartbeat: int) -> None:
    hit, other = WorkerState(phase="busy", query_id="hit" * 20), WorkerState(phase="busy", query_id="other")
    killed = spared = 0
    for _ in range(20):
        with worker_of_its_own(heartbeat, hit, other) as pid:
            if not kill_if(pid, heartbeat, lambda state: state.runs("hit" * 20)):
                spared += 1
                before = read_state(heartbeat)
                wait_until(lambda before=before: read_state(heartbeat) != before, within_s=LONG_S)  # type: ignore[misc]
                continue
            killed += 1
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
            assert read_state(heartbeat).runs("hit" * 20)

    assert killed + spared == 20


def test_a_worker_that_is_stopped_already_is_killed_and_one_that_is_gone_is_not(heartbeat: int) -> None:
    with worker_of_its_own(heartbeat, WorkerState(phase="idle")) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)

        assert kill_if(pid, heartbeat, lambda state: state.phase == "idle")

        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert not kill_if(pid, heartbeat, lambda state: state.phase == "idle")


# Several client processes.

_RUNNER = """
import json, os, sys, threading
from pathlib import Path
from queryengine.pool.client import EngineClient
from queryengine.engine import Query
from tests.queryengine.engine_process import config_of

client = EngineClient(config_of(Path(sys.argv[1]), **json.loads(sys.argv[2])))
def run(sql, query_id, key):
    try:
        answer = b"".join(client.run(Query(sql=sql, query_id=query_id, fingerprint=key))).decode()
    except Exception as error:
        answer = type(error).__name__
    os.write(1, (json.dumps([query_id, answer]) + "\\n").encode())  # whole lines, from any thread
for line in sys.stdin:
    threading.Thread(target=run, args=json.loads(line), daemon=True).start()
"""


class Runner:
    """A client process."""

    def __init__(self, engine: EngineProcess) -> None:
        arguments = [str(engine.state_dir), json.dumps(engine._settings)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUNNER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, sql: str, query_id: str, key: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([sql, query_id, key]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> list[str]:
        """Wait for the next answer; id and text, or the error's name."""
        assert self._process.stdout is not None
        answer: list[str] = json.loads(self._process.stdout.readline())
        return answer

    def kill(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@pytest.fixture
def make_runner() -> Iterator[Callable[[EngineProcess], Runner]]:
    with ExitStack() as runners:

        def make(engine: EngineProcess) -> Runner:
            runner = Runner(engine)
            runners.callback(runner.kill)
            return runner

        yield make


@pytest.fixture
def runner(engine: EngineProcess, make_runner: Callable[[EngineProcess], Runner]) -> Runner:
    return make_runner(engine)


def test_a_statement_is_listed_and_cancelled_from_another_process(
    engine: EngineProcess, client: EngineClient, runner: Runner
) -> None:
    runner.run(ENDLESS, "far", "k")
    wait_until(lambda: [one.state for one in client.active("k")] == ["running"], within_s=LONG_S)

    assert client.active("k")[0].query_id == "far"
    assert client.cancel("far", "k")

    assert runner.answer() == ["far", "QueryCancelledError"]
    wait_until(lambda: client.active("k") == (), within_s=LONG_S)
    assert ask(client) == RIGHT


def test_a_killed_client_process_frees_its_slots(engine: EngineProcess, client: EngineClient, runner: Runner) -> None:
    for number, key in enumerate("abab"):
        runner.run(ENDLESS, f"lost{number}", key)
    wait_until(lambda: len(client.active("a")) + len(client.active("b")) == 4, within_s=LONG_S)
    waiting = [Asking(client, "SELECT 1 AS n", fingerprint=key) for key in "ab"]

    runner.kill()

    for asking in waiting:
        assert asking.ended()
        assert asking.answer == b'[{"n":1}]'
    assert client.active("a") == client.active("b") == ()


def test_processes_share_one_queue_fairly(
    make_engine: Callable[..., EngineProcess],
    make_client: Callable[[EngineProcess], EngineClient],
    make_runner: Callable[[EngineProcess], Runner],
) -> None:
    engine = make_engine(max_queued=6)
    client = make_client(engine)
    flood = make_runner(engine)
    for number in range(20):
        flood.run(ENDLESS, f"flood{number}", "flood")
    refused = [flood.answer()[1] for _ in range(13)]
    assert set(refused) == {"EngineBusyError"}
    assert [one.state for one in client.active("flood")] == ["running"] + ["queued"] * 6

    for _ in range(10):
        assert ask(client, fingerprint="other") == RIGHT

    holder = Asking(client, ENDLESS, query_id="holder", fingerprint="third")
    engine.worker_of("holder")
    waiting = Asking(client, "SELECT 1 AS n", fingerprint="other")
    assert flood.answer()[1] == "EngineBusyError", "the newest of the flood makes room"
    assert client.cancel("holder", "third")
    assert holder.ended()
    assert waiting.ended()
    assert waiting.answer == b'[{"n":1}]'


# The end.


def test_sigterm_lets_statements_finish_and_refuses_new_ones(engine: EngineProcess, client: EngineClient) -> None:
    running = client.run(Query(sql=LONG, encoding="csv"))
    lines = len(next(running).splitlines()) - 1

    engine.send(signal.SIGTERM)
    wait_until(lambda: not client.is_alive(), within_s=LONG_S)

    with pytest.raises(EngineUnavailableError):
        ask(client)
    lines += sum(chunk.count(b"\n") for chunk in running)
    assert lines == 10_000_000
    assert engine.ended() == 0
    assert not (engine.state_dir / "engine.sock").exists()
    assert not (engine.state_dir / "broker.sock").exists()


def test_sigterm_ends_in_time_what_does_not_finish(
    make_engine: Callable[..., EngineProcess],
    make_client: Callable[[EngineProcess], EngineClient],
    make_runner: Callable[[EngineProcess], Runner],
) -> None:
    engine = make_engine(shutdown_timeout_s=2.0)
    client = make_client(engine)
    asking = [Asking(client, ENDLESS, query_id=f"q{number}", fingerprint=str(number)) for number in range(2)]
    for number in range(2):
        engine.worker_of(f"q{number}")
    abandoned = make_runner(engine)
    abandoned.run(ENDLESS, "queued", "2")
    wait_until(lambda: len(client.active("2")) == 1, within_s=LONG_S)

    engine.send(signal.SIGTERM)
    engine.send(signal.SIGTERM)

    for one in asking:
        assert one.ended()
        assert isinstance(one.error, EngineUnavailableError)
    assert abandoned.answer() == ["queued", "EngineUnavailableError"]
    assert engine.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_sigint_and_sigquit_end_at_once(engine: EngineProcess, client: EngineClient, number: signal.Signals) -> None:
    asking = Asking(client, ENDLESS, query_id="q")
    pid = engine.worker_of("q")

    engine.send(number)

    assert engine.ended() == 0
    assert asking.ended()
    assert isinstance(asking.error, EngineWorkerDiedError)
    assert not Path(f"/proc/{pid}").exists()
    assert not (engine.state_dir / "broker.sock").exists()


def test_a_client_lives_through_the_death_of_the_engine(engine: EngineProcess, client: EngineClient) -> None:
    asking = Asking(client, ENDLESS, query_id="q")
    workers = engine.workers()
    engine.worker_of("q")

    engine.send(signal.SIGKILL)

    assert engine.ended() == -signal.SIGKILL
    assert asking.ended()
    assert isinstance(asking.error, EngineWorkerDiedError)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), within_s=LONG_S)
    assert not client.is_alive()
    engine.start()
    engine.wait_until_whole(client)
    assert ask(client) == RIGHT
    result: ClientResult = client.run(Query(sql=ENDLESS_AFTER_ROWS))
    result.cancel()
    with pytest.raises(QueryCancelledError):
        next(result)


# gevent.

_GEVENT = """
from gevent import monkey
monkey.patch_all()
import json, sys, time, gevent
from pathlib import Path
from queryengine.cancellation import CancelSource
from queryengine.pool.client import EngineClient
from queryengine.engine import Query
from queryengine.errors import QueryCancelledError
from tests.queryengine.publishing import ENDLESS
from tests.queryengine.engine_process import config_of

client = EngineClient(config_of(Path(sys.argv[1]), **json.loads(sys.argv[2])))
while client.status().workers_alive < 2:
    gevent.sleep(0.01)
ticks, running = 0, True
def tick():
    global ticks
    while running:
        gevent.sleep(0.005)
        ticks += 1
def ask(number):
    if number % 10 == 0:
        cancel = CancelSource()
        gevent.spawn_later(0.2, cancel.cancel)
        try:
            client.run(Query(sql=ENDLESS, fingerprint=str(number)), cancel)
        except QueryCancelledError:
            return -1
    sql = f"SELECT {number} AS n, max(hash(i)) AS h FROM range(3000000) t(i)"
    result = client.run(Query(sql=sql, fingerprint=str(number % 7)))
    try:
        return json.loads(b"".join(result))[0]["n"]
    finally:
        result.close()
def killed():
    client.run(Query(sql=ENDLESS, fingerprint="x"))
ticker = gevent.spawn(tick)
began = time.monotonic()
jobs = [gevent.spawn(ask, number) for number in range(50)]
gevent.joinall(jobs)
victim = gevent.spawn(killed)
while len(client.active("x")) == 0:
    gevent.sleep(0.01)
victim.kill()
while len(client.active("x")) > 0:
    gevent.sleep(0.01)
passed_s = time.monotonic() - began
running = False
ticker.join()
client.close()
print(json.dumps({"answers": [job.value for job in jobs], "ticks": ticks, "passed_s": passed_s}))
"""


def test_under_gevent_nothing_blocks_the_other_greenlets(engine: EngineProcess, client: EngineClient) -> None:
    arguments = [str(engine.state_dir), json.dumps(engine._settings)]

    run = subprocess.run(
        [sys.executable, "-c", _GEVENT, *arguments], stdout=subprocess.PIPE, check=True, timeout=LONG_S, text=True
    )

    outcome = json.loads(run.stdout)
    assert outcome["answers"] == [-1 if number % 10 == 0 else number for number in range(50)]
    # All of it takes seconds; a statement that blocked the others would do so for its whole length.
    assert outcome["ticks"] >= outcome["passed_s"] / 0.1
    assert ask(client) == RIGHT


_GEVENT_STOPPED = """
from gevent import monkey
monkey.patch_all()
import collections, json, os, signal, sys, time, gevent
from pathlib import Path
from queryengine.pool.client import EngineClient
from queryengine.engine import Query
from queryengine.errors import QueryError
from tests.queryengine.engine_process import config_of

arbiter = int(sys.argv[3])
client = EngineClient(config_of(Path(sys.argv[1]), **json.loads(sys.argv[2])))
while client.status().workers_alive < 2:
    gevent.sleep(0.01)
def ask(number):
    try:
        return b"".join(client.run(Query(sql="SELECT 1 AS n" + " " * 900, fingerprint=str(number % 7), timeout_s=1.0)))
    except QueryError as error:
        return type(error).__name__
os.kill(arbiter, signal.SIGSTOP)
try:
    jobs = [gevent.spawn(ask, number) for number in range(500)]
    gevent.joinall(jobs)
    backed_up = len(client._pool.link._connection._unsent)
finally:
    os.kill(arbiter, signal.SIGCONT)
while not client.is_alive():
    gevent.sleep(0.01)
answer = b"".join(client.run(Query(sql="SELECT 1 AS n"))).decode()
client.close()
print(json.dumps({"outcomes": sorted({job.value for job in jobs}), "backed_up": backed_up, "answer": answer}))
"""


def test_under_gevent_an_arbiter_that_is_stopped_holds_nobody_up(engine: EngineProcess, client: EngineClient) -> None:
    arguments = [str(engine.state_dir), json.dumps(engine._settings), str(engine.pid)]

    run = subprocess.run(
        [sys.executable, "-c", _GEVENT_STOPPED, *arguments],
        stdout=subprocess.PIPE,
        check=True,
        timeout=LONG_S,
        text=True,
    )

    outcome = json.loads(run.stdout)
    assert set(outcome["outcomes"]) <= {"QueryTimeoutError", "EngineUnavailableError"}
    assert outcome["backed_up"] > 0
    assert outcome["answer"] == '[{"n":1}]'
    assert ask(client) == RIGHT
