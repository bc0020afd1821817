"""The arbiter: workers that end, stop or are killed, and the end of the engine."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from queryengine.engine import Query
from queryengine.errors import (
    EngineUnavailableError,
    EngineWorkerDiedError,
    QueryCancelledError,
)
from queryengine.pool.arbiter import (
    BOOT_S,
    OVERDUE_S,
    SPAWN_INTERVAL_S,
    SPAWNS_AT_ONCE,
    STUCK_S,
    Respawns,
    _is_stuck,
    can_answer,
    kill_if,
)
from queryengine.pool.client import EngineClient
from queryengine.pool.worker import Phase, WorkerState, read_state, write_state
from system.heartbeat import Pulse
from telemetry.collector import Collector
from telemetry.events import WorkerLostEvent
from telemetry.sender import WATCH_SOCKET
from tests.forking import fork
from tests.queryengine.asking import begin, error_of
from tests.queryengine.engine_process import EXIT_CODE_FILE, EngineProcess
from tests.queryengine.heartbeats import state_of
from tests.queryengine.pool.conftest import RIGHT, Start, ask
from tests.queryengine.publishing import ENDLESS, wait_until
from tests.telemetry.test_sender import Recorder


def test_statements_run_in_workers_whatever_unused_signals_come(process: EngineProcess, client: EngineClient) -> None:
    before = process.workers()
    for pid in before:
        links = [str(descriptor.readlink()) for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
        inherited = [link for link in links if link.startswith("socket:")]
        assert len(inherited) == 1, "with the broker's, a client that the arbiter drops would not notice"
    for name in ("engine.sock", "broker.sock"):
        assert stat.S_IMODE((process.state_dir / name).stat().st_mode) == 0o600
    assert client.admit("SELECT id FROM flights;", frozenset({"flights"})).relations == {"flights"}
    status = client.status()
    assert (status.workers_alive, status.workers_killed) == (2, 0)

    for number in (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH):
        process.send(number)
    wait_until(lambda: "SIGHUP has no effect" in process.log.read_text())

    assert ask(client) == RIGHT
    assert process.workers() == before


def test_the_end_of_a_worker_fails_only_its_own_statement(process: EngineProcess, client: EngineClient) -> None:
    other = begin(partial(ask, client, ENDLESS, query_id="other", fingerprint="b"))
    hit = begin(partial(ask, client, ENDLESS, query_id="hit", fingerprint="a"))
    survivor = process.worker_of("other")

    os.kill(process.worker_of("hit"), signal.SIGKILL)

    assert error_of(hit) is EngineWorkerDiedError
    assert ask(client, fingerprint="a") == RIGHT
    assert not other.done()
    assert survivor in process.workers()
    wait_until(lambda: client.status().workers_killed == 1)
    process.wait_until_whole(client)
    assert client.cancel("other", "b")
    assert error_of(other) is QueryCancelledError


def test_each_lost_worker_is_told_with_its_cause(start: Start, tmp_path: Path) -> None:
    recorder = Recorder()
    process, client = start()
    collector = Collector(process.state_dir / WATCH_SOCKET, [recorder], lambda _: None)
    collector.start()

    def lost() -> list[tuple[str, int]]:
        return [(event.cause, event.exit) for event in recorder.events if isinstance(event, WorkerLostEvent)]

    expected = []
    for number, cause in ((signal.SIGALRM, "time"), (signal.SIGKILL, "signal"), (signal.SIGSEGV, "signal")):
        os.kill(min(process.workers()), number)
        expected.append((cause, -number))
        wait_until(lambda: len(lost()) == len(expected))
        process.wait_until_whole(client)
    asking = begin(partial(ask, client, ENDLESS, query_id="mine", fingerprint="k"))
    worker = process.worker_of("mine")
    os.kill(worker, signal.SIGSTOP)  # so that it does not end by itself
    assert client.cancel("mine", "k")
    assert error_of(asking) is QueryCancelledError
    wait_until(lambda: len(lost()) == 4)
    (process.state_dir / EXIT_CODE_FILE).write_text("7")
    os.kill(min(process.workers()), signal.SIGKILL)
    wait_until(lambda: ("exit", 7) in lost())
    (process.state_dir / EXIT_CODE_FILE).unlink()

    assert lost()[:4] == [*expected, ("request", -signal.SIGKILL)]
    assert ("mine", "request") in {
        (event.query_id, event.cause) for event in recorder.events if isinstance(event, WorkerLostEvent)
    }
    process.wait_until_whole(client)
    for pid in process.workers():
        links = [str(descriptor.readlink()) for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
        assert len([link for link in links if link.startswith("socket:")]) == 1, "not that to the collector"
    collector.stop()


#: Another process with a client.
OTHER = """
import sys
from pathlib import Path
from queryengine.engine import Query
from queryengine.pool.client import EngineClient
from tests.queryengine.engine_process import config_of
EngineClient(config_of(Path(sys.argv[1]))).run(Query(sql=sys.argv[2], query_id="lost", fingerprint="k"))
"""


@pytest.mark.exhaustive
def test_a_stopped_worker_is_killed_whether_it_is_idle_or_runs_a_statement_or_its_client_is_gone(start: Start) -> None:
    process, client = start(timeout_s=600.0, workers=4)
    asking = begin(partial(ask, client, ENDLESS, query_id="mine"))
    other = subprocess.Popen([sys.executable, "-c", OTHER, str(process.state_dir), ENDLESS])
    running = {process.worker_of("mine"), process.worker_of("lost")}
    stopped = {*running, min(process.workers() - running)}

    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    other.kill()
    other.wait()

    assert ask(client, query_id="q") == RIGHT
    assert error_of(asking) is EngineWorkerDiedError
    wait_until(lambda: not stopped & process.workers())
    process.wait_until_whole(client)
    assert client.status().workers_killed == 3
    assert ask(client) == RIGHT


@pytest.mark.exhaustive
@pytest.mark.parametrize("code", [0, 3, 4])
def test_no_exit_code_of_a_worker_ends_the_engine_or_exceeds_the_rate_of_new_ones(
    process: EngineProcess, client: EngineClient, code: int
) -> None:
    started = time.monotonic()
    (process.state_dir / EXIT_CODE_FILE).write_text(str(code))
    for pid in process.workers():
        os.kill(pid, signal.SIGKILL)

    wait_until(lambda: client.status().workers_killed >= (2 if code == 0 else 12))
    burst = SPAWNS_AT_ONCE * 2
    assert client.status().workers_killed <= 2 + burst + (time.monotonic() - started) / SPAWN_INTERVAL_S
    assert not client.is_alive()
    (process.state_dir / EXIT_CODE_FILE).unlink()

    process.wait_until_whole(client)
    assert ask(client) == RIGHT
    assert (client.status().workers_killed > 2) == (code != 0)


@pytest.mark.exhaustive
def test_workers_that_end_normally_are_replaced_at_once(process: EngineProcess, client: EngineClient) -> None:
    seen = set(process.workers())
    leaves = 6 * SPAWNS_AT_ONCE
    for _ in range(leaves):
        pid = min(process.workers())
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda pid=pid: pid not in process.workers())  # type: ignore[misc]
        process.wait_until_whole(client)
        seen |= process.workers()

    assert ask(client) == RIGHT
    assert len(seen) == 2 + leaves
    assert client.status().workers_killed == 0


@pytest.mark.exhaustive
def test_failed_system_calls_are_retried(process: EngineProcess, client: EngineClient) -> None:
    process.limit_files(1)

    for pid in process.workers():
        os.kill(pid, signal.SIGKILL)
    late = EngineClient(process.config)
    for message in ("an engine worker could not be started", "a client of the broker could not connect"):
        wait_until(lambda message=message: message in process.log.read_text())  # type: ignore[misc]
    process.limit_files(1000)

    process.wait_until_whole(client)
    assert ask(client) == ask(late) == RIGHT
    late.close()
    scratch = [path for path in (process.state_dir / "tmp").rglob("*") if path.is_dir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in scratch} == {0o700}, "an unprivileged user can enter them"


def test_respawns_are_a_burst_and_then_a_rate() -> None:
    respawns = Respawns(4)

    assert [respawns.take(0.0) for _ in range(5)] == [True] * 4 + [False]
    assert [respawns.take(SPAWN_INTERVAL_S * 1.1) for _ in range(2)] == [True, False]
    assert [respawns.take(1000.0) for _ in range(5)] == [True] * 4 + [False]
    respawns.give_back()
    assert [respawns.take(1000.0) for _ in range(2)] == [True, False]
    for _ in range(9):
        respawns.give_back()
    assert [respawns.take(1000.0) for _ in range(5)] == [True] * 4 + [False]


def test_time_without_a_check_does_not_count_against_a_worker() -> None:
    pulse = Pulse(0.0)
    for beat in (1.0, 1.0, 1.0):
        pulse.look(beat, pulse.age_s + 0.5)
    assert pulse.quiet_s == 1.0

    pulse.look(1.0, 1000.0)
    assert pulse.quiet_s == 2.0
    pulse.look(2.0, 1000.5)
    assert pulse.quiet_s == 0.0


def test_a_worker_without_an_engine_cannot_answer_while_it_refuses_a_statement() -> None:
    unfit: set[int] = set()
    phases: list[tuple[Phase, bool]] = [
        *(("busy", True), ("idle", True), ("busy", True)),
        *(("unfit", False), ("busy", False), ("busy", False)),
        *(("idle", True), ("busy", True)),
    ]

    assert [can_answer(WorkerState(phase=phase), 1, unfit) for phase, _ in phases] == [can for _, can in phases]
    assert can_answer(WorkerState(phase="busy"), 2, {1})


def test_stuck_workers() -> None:
    quiet, young, old = Pulse(0.0), Pulse(0.0), Pulse(0.0)
    quiet.quiet_s = STUCK_S
    old.age_s = BOOT_S
    busy, idle = WorkerState(phase="busy", deadline=10.0, query_id="q"), WorkerState(phase="idle")

    assert not _is_stuck(busy, quiet, young, 10.0 + OVERDUE_S / 2)
    assert _is_stuck(busy, young, young, 10.0 + OVERDUE_S)
    assert _is_stuck(idle, quiet, young, 0.0)
    assert not _is_stuck(idle, old, young, 0.0)
    assert _is_stuck(WorkerState(), old, young, 0.0)
    assert not _is_stuck(WorkerState(), quiet, young, 0.0)
    stopped = quiet
    assert all(_is_stuck(state, young, stopped, 0.0) for state in (busy, idle, WorkerState()))


@contextmanager
def worker_of_its_own(heartbeat: int, *states: WorkerState) -> Iterator[int]:
    """A child process that writes *states* in turn, over and over."""
    pid = fork()
    if not pid:
        while True:
            for state in states:
                write_state(heartbeat, state)
    try:
        wait_until(lambda: read_state(heartbeat).phase != "booting")
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def test_a_worker_is_killed_only_in_the_state_that_was_checked(heartbeat: int) -> None:
    hit, other = WorkerState(phase="busy", query_id="hit" * 20), WorkerState(phase="busy", query_id="other")
    for _ in range(20):
        with worker_of_its_own(heartbeat, hit, other) as pid:
            if kill_if(pid, heartbeat, lambda state: state.runs("hit" * 20)):
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
                assert read_state(heartbeat).runs("hit" * 20)
            else:
                before = read_state(heartbeat)
                wait_until(lambda before=before: read_state(heartbeat) != before)  # type: ignore[misc]


def test_a_stopped_worker_is_killed_and_a_dead_one_is_not(heartbeat: int) -> None:
    with worker_of_its_own(heartbeat, WorkerState(phase="idle")) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)

        assert kill_if(pid, heartbeat, lambda state: state.phase == "idle")

        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert not kill_if(pid, heartbeat, lambda state: state.phase == "idle")


@pytest.mark.exhaustive
def test_sigterm_lets_statements_finish_and_refuses_new_ones(process: EngineProcess, client: EngineClient) -> None:
    running = client.run(Query(sql="SELECT range FROM range(10000000)", encoding="csv"))  # more than any buffer holds
    lines = len(next(running).splitlines()) - 1

    process.send(signal.SIGTERM)
    wait_until(lambda: not client.is_alive())

    with pytest.raises(EngineUnavailableError):
        ask(client)
    lines += sum(chunk.count(b"\n") for chunk in running)
    assert lines == 10_000_000
    assert process.ended() == 0
    assert not (process.state_dir / "engine.sock").exists()
    assert not (process.state_dir / "broker.sock").exists()


@pytest.mark.exhaustive
def test_sigterm_ends_long_statements_within_the_shutdown_timeout(start: Start) -> None:
    process, client = start(shutdown_timeout_s=2.0)
    asking = [begin(partial(ask, client, ENDLESS, query_id=key, fingerprint=key)) for key in "012"]
    wait_until(lambda: [len(client.active(key)) for key in "012"] == [1, 1, 1])
    wait_until(lambda: sum(state_of(pid).phase == "busy" for pid in process.workers()) == 2)

    process.send(signal.SIGTERM)
    process.send(signal.SIGTERM)

    for one in asking:
        assert error_of(one) is EngineUnavailableError
    assert process.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_sigint_and_sigquit_end_at_once(process: EngineProcess, client: EngineClient, number: signal.Signals) -> None:
    asking = begin(partial(ask, client, ENDLESS, query_id="q"))
    pid = process.worker_of("q")

    process.send(number)

    assert process.ended() == 0
    assert error_of(asking) is EngineWorkerDiedError
    assert not Path(f"/proc/{pid}").exists()
    assert not (process.state_dir / "broker.sock").exists()
