"""Each process of a runtime is stopped in turn: that is noticed within 15 seconds, and another one takes its place."""

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from system.heartbeat import HUNG_S
from tests.clients.runtime import FlightServer, endpoint_of
from tests.flightapi.endpoint import Refused, bearer
from tests.system.callers import asking
from tests.system.harness import K1, K2, KEYED, wait_for
from tests.system.processes import busy_engine_workers, engine_workers, family, is_alive, is_stopped, part, shown
from tests.system.test_reload import accepts, reload, runtime, set_keys

#: Seconds until a hung process must be replaced.
NOTICED_S = 15.0

SILENT = "A part of the runtime does not respond part="
COUNT = "SELECT count(*) AS n, sum(id)::BIGINT AS s FROM orders"
RIGHT = [{"n": 1000, "s": 499_500}]
ENDLESS = "SELECT count(*) FROM range(100000000000) a, range(1000) b"

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    with runtime(tmp_path_factory.mktemp("hung"), query={"workers": 2, "timeout": "60s"}) as running:
        yield running


@contextmanager
def readiness(server: FlightServer) -> Iterator[list[int]]:
    """Ask for it all the time; the list holds the statuses, 0 for no answer."""
    statuses: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.05):
            try:
                statuses.append(server.get("/v1/ready", timeout=5.0).status_code)
            except httpx.TransportError:
                statuses.append(0)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield statuses
    finally:
        stop.set()
        asking.join()


def hangs(server: FlightServer, pid: int, line: str) -> float:
    """Stop a process, wait until it is killed and *line* is logged once, and return the seconds until its end."""
    lines = server.output().count(line)
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: not is_alive(pid), f"the end of {pid}")
    after_s = time.monotonic() - began
    wait_for(lambda: server.output().count(line) > lines, "the line")  # A worker is killed before its line is written.
    assert server.output().count(line) == lines + 1
    return after_s


def is_right(server: FlightServer) -> bool:
    """Return whether statements are answered over both protocols; all answers are right."""
    with suppress(httpx.TransportError), endpoint_of(server) as flight:
        if server.answers("/v1/ready"):
            assert server.rows(COUNT) == RIGHT
            reached = flight.call("ListActions", b"", metadata=bearer(K1))
            if isinstance(reached, Refused) and reached.status == "UNAVAILABLE":  # between its lock and its first call
                return False
            assert flight.sql(COUNT, bearer(K1)).to_pylist() == RIGHT
            return True
    return False


def recovers(server: FlightServer) -> None:
    wait_for(lambda: is_right(server), "right answers")
    wait_for(lambda: server.get("/v1/datasets", headers=KEYED).status_code == 200, "the states of the datasets")
    wait_for(lambda: len(engine_workers(server.process.pid)) == 2, "all workers")


@pytest.mark.parametrize("name", ["refresh", "engine", "web", "flight"])
def test_a_stopped_part_is_replaced(server: FlightServer, name: str) -> None:
    recovers(server)
    victim, *_ = part(server.process.pid, name)
    others = {pid for other in ("refresh", "engine", "web", "flight") for pid in part(server.process.pid, other)[:1]}

    with asking(server) as seen, readiness(server) as statuses:
        after_s = hangs(server, victim, SILENT + name)
        while_hung = list(statuses)
        recovers(server)
        assert server.refresh()["status"] == "succeeded"

    print(f"{name}: killed after {after_s:.1f} s; {len(seen.failures)} failures, {dict(seen.answers)}")
    assert after_s <= NOTICED_S
    if name in {"engine", "flight"}:
        assert 503 in statuses
    else:  # A busy machine may delay what another part reports, but the runtime does not stay unready.
        assert 200 in while_hung
    assert others - {victim} <= family(server.process.pid).keys()
    if name == "refresh":
        assert seen.failures == []


def test_a_stopped_web_worker_is_replaced_while_the_others_answer(server: FlightServer) -> None:
    recovers(server)
    _, victim, *others = part(server.process.pid, "web")
    ended = threading.Event()

    def ask() -> list[str]:
        outcomes = []
        while not ended.wait(0.02):
            try:
                outcomes.append(server.sql(COUNT).text)
            except httpx.TransportError as error:
                outcomes.append(repr(error))
        return outcomes

    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask)
        after_s = hangs(server, victim, SILENT + "web")
        recovers(server)
        ended.set()
        outcomes = asked.result()

    print(f"web worker: killed after {after_s:.1f} s; {len(outcomes)} answers on new connections")
    assert after_s <= NOTICED_S
    assert set(others) <= set(part(server.process.pid, "web"))
    # A connection that the worker had accepted breaks; nobody else has to wait.
    assert sum(outcome != '[{"n":1000,"s":499500}]' for outcome in outcomes) <= 1
    assert len(outcomes) > 50


def test_stopped_engine_workers_are_replaced_busy_and_idle(server: FlightServer) -> None:
    recovers(server)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(server.sql, ENDLESS)
        busy, *_ = wait_for(lambda: busy_engine_workers(server.process.pid), "the statement")
        (idle,) = set(engine_workers(server.process.pid)) - {busy}
        ends = [
            pool.submit(hangs, server, pid, f"engine worker was stuck and is killed pid={pid}") for pid in (busy, idle)
        ]
        after_s = [end.result() for end in ends]
        assert (asked.result().status_code, asked.result().json()["code"]) == (500, "engine_worker_died")
    recovers(server)

    print(f"engine workers, busy and idle: killed after {after_s} s")
    assert max(after_s) <= NOTICED_S


def test_a_suspended_runtime_goes_on(server: FlightServer) -> None:
    recovers(server)
    members = list(family(server.process.pid))
    lines = server.output().count("does not respond")

    for pid in members:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: all(map(is_stopped, members)), "all to stop")
    until = time.monotonic() + HUNG_S + 3.0
    wait_for(lambda: time.monotonic() > until, "more seconds than a part may hang")
    for pid in members:
        os.kill(pid, signal.SIGCONT)
    recovers(server)
    until = time.monotonic() + HUNG_S + 2.0
    wait_for(lambda: time.monotonic() > until, "the time in which a hung part is killed")

    assert server.output().count("does not respond") == lines
    assert set(members) - set(family(server.process.pid)) <= loaders(members, server)
    recovers(server)


def loaders(members: list[int], server: FlightServer) -> set[int]:
    """An idle loader ends by itself."""
    parts = {pid for name in ("refresh", "engine", "web", "flight") for pid in part(server.process.pid, name)}
    return {pid for pid in members if pid not in parts and pid != server.process.pid}


@pytest.mark.parametrize("name", ["engine", "refresh and a web worker", "second engine"])
def test_a_part_that_hangs_in_a_reload_leaves_one_whole_runtime(tmp_path: Path, name: str) -> None:
    with runtime(tmp_path) as server, ThreadPoolExecutor() as pool:
        first, *_ = part(server.process.pid, "engine")
        set_keys(server, K2)
        victims = [first]
        if name == "refresh and a web worker":
            victims = [part(server.process.pid, "refresh")[0], part(server.process.pid, "web")[1]]
        if name != "second engine":
            for victim in victims:
                os.kill(victim, signal.SIGSTOP)
        asked = pool.submit(reload, server)
        if name == "second engine":
            find: Callable[[], list[int]] = lambda: [  # noqa: E731
                pid
                for pid, text in family(server.process.pid).items()
                if "runengine" in text and pid != first and pid not in engine_workers(server.process.pid)
            ]
            victims = wait_for(find, "the second engine")
            os.kill(victims[0], signal.SIGSTOP)
        wait_for(lambda: not any(map(is_alive, victims)), f"the end of {name}")
        done = asked.result()
        print(f"{name}: {done.returncode} {done.stderr}")
        if name == "second engine":
            assert "the new engine ended (signal SIGKILL)" in done.stderr
        else:
            assert (done.returncode, done.stderr) == (0, "")
        wait_for(lambda: server.answers("/v1/ready"), "readiness")
        wait_for(lambda: len(engine_workers(server.process.pid)) == 2, "one engine")
        assert accepts(server, K2) == (name != "second engine")
        assert accepts(server, K1) == (name == "second engine")
        assert reload(server).returncode == 0
        assert accepts(server, K2)


def test_systemd_hears_of_the_start_and_the_stop_and_that_the_supervisor_works(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        systemd.settimeout(60)
        server = runtime(tmp_path)
        server.environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with server:
            told = [systemd.recvmsg(100, 100) for _ in range(5)]
            for pid in family(server.process.pid):
                assert b"NOTIFY_SOCKET" not in shown(pid, "environ")
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: systemd.recv(100) == b"STOPPING=1", "the news of the stop")
    assert [data for data, *_ in told] == [b"READY=1", *[b"READY=1\nWATCHDOG=1"] * 4]
    senders = {struct.unpack("3i", ancillary[0][2])[0] for _, ancillary, *_ in told}
    assert senders == {server.process.pid}
