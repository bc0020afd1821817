"""`manage.py serve` as a whole of processes: how they start, what they know, and how they end (checks P02 to P06)."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pexpect
import pytest

from supervisor.parts import CANNOT_START, PARTS, PartName
from supervisor.serve import STOP_ORDER
from tests.queryengine.publishing import ENDLESS
from tests.system.harness import (
    K1,
    K2,
    KEYED,
    PATIENCE_S,
    PYTHON,
    REPOSITORY,
    Server,
    clean_environ,
    command,
    taken_port,
    wait_for,
)
from tests.system.processes import (
    busy_engine_workers,
    engine_workers,
    family,
    in_memory,
    is_alive,
    is_stopped,
    shown,
)

#: More rows than all buffers hold on the way to a client that reads none of them.
MANY_ROWS = "SELECT range AS i, repeat('x', 50) AS x FROM range(600000)"

K3 = "k3-Pw6mY2sK8vJ4nB0xT7qL5cR9dH3fZ1gA"


def part_of(server: Server, name: PartName) -> int:
    """Return the process id of a part, its arbiter if it has one."""
    pid = server.process.pid

    def found() -> int | None:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return next((int(child) for child in children if f"run{name}" in family(int(child)).get(int(child), "")), None)

    return wait_for(found, f"the part {name}")


def is_right(server: Server) -> bool:
    """Say whether a statement is answered, and rightly; whatever else comes must be an honest refusal."""
    try:
        answer = server.sql("SELECT count(*) AS n FROM orders")
    except httpx.TransportError:
        return False
    assert answer.status_code in {200, 500, 503}, answer.text
    return answer.status_code == 200 and answer.json() == [{"n": 1000}]


@pytest.fixture(scope="module")
def supervised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One runtime whose parts may be killed: each test leaves it serving. The YAML in its environment would stop it."""
    directory = tmp_path_factory.mktemp("supervised")
    (directory / "other.yaml").write_text("runtime: {auth: }")
    options = ("--config", str(directory / "runtime.yaml"), "--ready-message", "now ask something")
    with Server(directory, environ={"RUNTIME_CONFIG": str(directory / "other.yaml")}, arguments=options) as server:
        yield server
        assert server.stop() == 0


def lasting(server: Server) -> set[int]:
    """Return its processes without the loader, which ends by itself after a while without work."""
    return {pid for pid, text in family(server.process.pid).items() if "loader_process" not in text}


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Keep processes from running meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_serve_takes_its_options_and_says_when_it_is_ready(supervised: Server) -> None:
    assert supervised.rows("SELECT 1 AS a") == [{"a": 1}]
    assert supervised.sql("SELECT 1", None).status_code == 401
    wait_for(lambda: "now ask something" in supervised.output(), "the message")
    assert "Ready     after" in supervised.output()


def test_p15_no_key_is_in_any_environment_or_memory(tmp_path: Path) -> None:
    """Keys of the YAML, of the environment and of a `.env`; the supervisor is looked at like its parts."""
    keys = [K1, "${ env:second_key }", "${ env:third_key }"]
    (tmp_path / ".env").write_text(f"THIRD_KEY={K3}\n")
    changes = {"runtime": {"auth": {"api-key": {"enabled": True, "keys": keys}}}}
    with subprocess.Popen([PYTHON, "-c", "input()", K1, K2, K3], stdin=subprocess.PIPE) as knowing:
        assert in_memory(knowing.pid, K1, K2, K3) == {K1, K2, K3}, "the search works"
        knowing.communicate(b"\n")

    with Server(tmp_path, changes=changes, environ={"SECOND_KEY": K2}) as server:
        members = family(server.process.pid)
        assert len(members) >= 1 + len(PARTS) + 2
        for pid, name in members.items():
            environ = shown(pid, "environ")
            assert K2.encode() not in environ
            assert b"RUNTIME_CONFIG" not in environ
            assert in_memory(pid, K1, K2, K3) == set(), name

        for key in (K1, K2, K3):
            assert server.rows("SELECT 1 AS a", key) == [{"a": 1}]
        # What a caller sends passes through web, and stays in its memory until something else is written there.
        web = family(part_of(server, "web"))
        for pid, name in members.items():
            assert pid in web or in_memory(pid, K1, K2, K3) == set(), name


def test_a_process_holds_only_the_libraries_that_it_uses(supervised: Server) -> None:
    """Each would take 10 to 40 MB, in each of them; numpy and pandas are installed here, and nobody asks for them."""
    supervisor = supervised.process.pid
    web, flight = part_of(supervised, "web"), part_of(supervised, "flight")
    assert supervised.rows("SELECT 1 AS a") == [{"a": 1}]
    maps = {pid: shown(pid, "maps").decode() for pid in family(supervisor)}

    assert all("_duckdb" in maps[pid] for pid in engine_workers(supervisor))
    assert not [pid for pid in (supervisor, *family(web), flight) if "_duckdb" in maps[pid]]
    assert not [pid for pid in (supervisor, *family(web)) if "libarrow" in maps[pid]]
    assert not [pid for pid, libraries in maps.items() if re.search("/(numpy|pandas)/", libraries)]


def test_parts_hear_no_ctrl_c_of_a_terminal_leave_no_core_and_loads_give_way_to_callers(supervised: Server) -> None:
    parts = {name: part_of(supervised, name) for name in PARTS}
    sessions = [os.getsid(pid) for pid in (supervised.process.pid, *parts.values())]
    cores = {resource.prlimit(pid, resource.RLIMIT_CORE) for pid in lasting(supervised)}
    loading = {int(path.name) for path in Path(f"/proc/{parts['refresh']}/task").iterdir()}

    assert len(set(sessions)) == 1 + len(PARTS)
    assert cores == {(0, 0)}
    niceness = []
    for thread in loading:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            niceness.append(os.getpriority(os.PRIO_PROCESS, thread))
    assert min(niceness) > os.getpriority(os.PRIO_PROCESS, parts["web"])


def test_signals_that_mean_nothing_end_no_process(supervised: Server) -> None:
    before = lasting(supervised)

    for how in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD):
        supervised.process.send_signal(how)
    for how in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGPIPE):
        for pid in before:
            if (pid, how) != (supervised.process.pid, signal.SIGHUP):  # That reloads.
                os.kill(pid, how)
        assert is_right(supervised)

    assert before <= set(family(supervised.process.pid))


@pytest.mark.exhaustive
def test_a_state_directory_that_is_swept_away_is_made_again(supervised: Server) -> None:
    state_dir, engine = supervised.directory / ".runtime", part_of(supervised, "engine")

    def is_whole() -> bool:
        listed = supervised.get("/v1/datasets", headers=KEYED)
        ready = supervised.get("/v1/ready").status_code == 200
        return ready and listed.status_code == 200 and listed.json()[0]["status"] == "Ready" and is_right(supervised)

    wait_for(is_whole, "the runtime")
    (state_dir / "broker.sock").unlink()
    wait_for(lambda: not is_alive(engine), "the end of an engine that nobody reaches")
    wait_for(is_whole, "the runtime with another engine")
    for name in ("control.sock", "flight.lock"):
        (state_dir / name).unlink()
        wait_for((state_dir / name).exists, f"another {name}")
        wait_for(is_whole, f"the runtime with another {name}")
    state_dir.rename(state_dir.with_name("moved"))
    wait_for(lambda: all((state_dir / name).exists() for name in ("control.sock", "engine.sock")), "another directory")
    wait_for(is_whole, "the runtime in another directory")
    assert state_dir.stat().st_mode & 0o777 == 0o700


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_dies_is_started_again_and_nothing_else_is(supervised: Server, name: PartName) -> None:
    before = {part: part_of(supervised, part) for part in PARTS}

    os.kill(before[name], signal.SIGSEGV)

    def is_there_again() -> bool:
        with suppress(StopIteration):
            return part_of(supervised, name) != before[name]
        return False

    wait_for(lambda: not is_alive(before[name]), "its end")
    wait_for(is_there_again, "another one")  # Nothing waits for `watch`.
    wait_for(lambda: is_right(supervised), "a right answer")
    wait_for(lambda: supervised.get("/v1/datasets", headers=KEYED).status_code == 200, "the datasets")
    wait_for(supervised.answers, "readiness")
    after = {part: part_of(supervised, part) for part in PARTS}
    assert {part for part in PARTS if before[part] != after[part]} == {name}
    assert f'part={name} reason="signal SIGSEGV"' in supervised.output()


@pytest.mark.exhaustive
def test_without_the_refresher_statements_go_on_and_datasets_are_unavailable(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        # Each web worker finds out for itself that the data is there; one that had not before would not now.
        wait_for(lambda: "Ready " in server.output(), "every web worker to be ready")

        with stopped(part_of(server, "refresh")):
            assert is_right(server)
            answer = server.get("/v1/datasets", headers=KEYED)
            assert (answer.status_code, answer.json()["code"]) == (503, "datasets_unavailable")
            assert server.answers()

        wait_for(lambda: server.get("/v1/datasets", headers=KEYED).status_code == 200, "the datasets")


@pytest.mark.exhaustive
def test_a_refresh_sql_is_judged_by_an_engine_worker_or_not_at_all(supervised: Server) -> None:
    refresh = supervised.ask_refresh
    assert refresh(refresh_sql="DELETE FROM orders").json()["code"] == "statement_not_allowed"
    assert refresh(refresh_sql="SELECT FROM WHERE").json()["code"] == "sql_syntax_error"
    assert refresh(refresh_sql="SELECT * FROM orders").status_code == 201

    with stopped(part_of(supervised, "engine"), *engine_workers(supervised.process.pid)):
        wait_for(lambda: not supervised.answers(), "the engine's silence to be noticed")

        refused = refresh(refresh_sql="SELECT * FROM orders")
        assert (refused.status_code, refused.json()["code"]) == (503, "engine_unavailable")
        assert refresh().status_code == 201

    wait_for(lambda: is_right(supervised), "a right answer")
    wait_for(lambda: refresh(refresh_sql="SELECT * FROM orders").status_code == 201, "a judgement")


def test_p02_a_stop_refuses_what_is_new_finishes_what_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    changes = {"runtime": {"shutdown_timeout": "5m", "query": {"timeout": "5m"}}}
    with Server(tmp_path, changes=changes) as server, server.stream(MANY_ROWS) as under_way:
        assert under_way.status_code == 200
        assert busy_engine_workers(server.process.pid)
        members = family(server.process.pid)

        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not server.answers(), "readiness to end")
        refused = server.sql("SELECT 1")

        assert (refused.status_code, refused.json()["code"]) == (503, "engine_unavailable")
        assert busy_engine_workers(server.process.pid)
        assert len(json.loads(under_way.read())) == 600_000
        assert server.process.wait(60) == 0

    assert [member for member in members if is_alive(member)] == []
    left = {str(path.relative_to(tmp_path / ".runtime")) for path in (tmp_path / ".runtime").rglob("*")}
    assert {re.sub(r"orders-\w+", "orders-1", name) for name in left} <= {
        *("key-salt", "engine.lock", "flight.lock", "lock", "serve.lock", "manifest.json", "refreshes.json"),
        "reload.json",
        *("refresh_tmp", "snapshots", "snapshots/orders-1.duckdb", "tmp"),
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("redirection", [">/dev/full", "> >(true)"], ids=["full disk", "closed pipe"])
def test_an_output_that_takes_nothing_ends_nothing(tmp_path: Path, redirection: str) -> None:
    with Server(tmp_path, redirection=redirection) as server:
        assert is_right(server)
        assert server.stop() == 0

    assert "cannot write to standard output" in server.output()
    assert "Traceback" not in server.output()


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_there_are_parts_is_a_stop(tmp_path: Path, how: signal.Signals) -> None:
    with taken_port() as port:
        server = Server(tmp_path, port=port)
        server.write()
        server.launch()
        wait_for((tmp_path / ".runtime" / "serve.lock").exists, "it to wait for the port")
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            server.process.send_signal(number)

        assert server.stop(how) == 0

    assert server.output() == ""


@pytest.mark.exhaustive
def test_p06_all_processes_end_with_the_supervisor_and_a_restart_works(tmp_path: Path) -> None:
    with Server(tmp_path) as server, ThreadPoolExecutor() as pool:
        slow = pool.submit(server.sql, "SELECT count(*) FROM range(1000000000000)")
        wait_for(lambda: busy_engine_workers(server.process.pid), "the statement to run")
        members = family(server.process.pid)

        server.process.kill()
        server.process.wait(60)
        server.launch()

        wait_for(lambda: not [member for member in members if is_alive(member)], "the end of all")
        server.wait_until_up()
        wait_for(lambda: is_right(server), "a right answer")
        try:
            status = slow.result().status_code
        except httpx.TransportError:
            status = 500  # what web says when the engine has ended a moment before it
        assert status == 500


def start_part(server: Server, name: PartName) -> subprocess.Popen[bytes]:
    """Start one part by hand."""
    environ = {**os.environ, **server.environ, "RUNTIME_CONFIG": str(server.file), "CANARY": K2}
    with server.log.open("ab") as log:
        return subprocess.Popen(
            [PYTHON, "manage.py", f"run{name}"], cwd=REPOSITORY, env=environ, stdout=log, stderr=log
        )


@pytest.mark.exhaustive
def test_each_part_starts_alone(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.write()
    started: dict[PartName, subprocess.Popen[bytes]] = {}
    try:
        started["engine"] = start_part(server, "engine")
        wait_for(lambda: "Waiting for runrefresh" in server.output(), "the engine to wait for verified data")
        started["web"] = start_part(server, "web")
        started["flight"] = start_part(server, "flight")
        started["refresh"] = start_part(server, "refresh")
        wait_for(server.answers, "readiness")

        assert is_right(server)
        assert server.sql("SELECT 1", "wrong").status_code == 401
        for process in started.values():
            assert K2.encode() not in shown(process.pid, "environ")
    finally:
        for name in STOP_ORDER:
            if name in started:
                started[name].terminate()
                code = started[name].wait(60)
    assert code == 0
    assert [process.returncode for process in started.values()] == [0, 0, 0, 0]


@pytest.mark.exhaustive
def test_each_part_alone_refuses_a_faulty_yaml(tmp_path: Path) -> None:
    server = Server(tmp_path, text="runtime: {http: {bnd: x}}")
    server.write()

    started = [start_part(server, name) for name in PARTS]

    assert [process.wait(PATIENCE_S) for process in started] == [CANNOT_START] * len(PARTS)
    assert server.output().count("runtime.yaml:1: runtime.http.bnd") == len(PARTS)
    assert "Traceback" not in server.output()


@pytest.mark.exhaustive
def test_each_part_alone_names_who_has_what_it_needs(supervised: Server) -> None:
    said: dict[PartName, str] = {
        "web": "process {serve} has the port",
        "flight": "process {flight} has the port",
        "refresh": "in use by process {refresh}",
        "engine": "The engine of this state directory is process {engine}",
    }
    parts = {part: part_of(supervised, part) for part in PARTS} | {"serve": supervised.process.pid}

    started = [start_part(supervised, name) for name in said]

    assert [process.wait(PATIENCE_S) for process in started] == [CANNOT_START] * len(said)
    assert [text for text in said.values() if text.format(**parts) not in supervised.output()] == []
    assert is_right(supervised)


@pytest.mark.exhaustive
def test_ctrl_z_stops_the_whole_job_and_fg_goes_on(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.write()
    shell: Any = pexpect.spawn(  # type: ignore[no-untyped-call]
        "bash --norc --noprofile", timeout=PATIENCE_S, encoding="utf-8", cwd=REPOSITORY,
        env={**os.environ, "RUNTIME_CONFIG": str(server.file), "PS1": "prompt> "},
    )  # fmt: skip
    try:
        shell.expect("prompt> ")
        shell.sendline(f"{PYTHON} manage.py serve")
        job = wait_for(lambda: next(iter(set(family(shell.pid)) - {shell.pid}), None), "the job")
        # Until then, Ctrl-Z is for the shell, which ignores it.
        wait_for(lambda: os.tcgetpgrp(shell.child_fd) == job, "the job to have the terminal")
        # While it checks, while its parts start, and when it serves.
        for moment in (None, "HTTP ", "Ready "):
            if moment is not None:
                shell.expect(moment)
            shell.sendcontrol("z")
            shell.expect("Stopped")
            wait_for(lambda: all(map(is_stopped, family(job))), "all processes to stop")
            until = time.monotonic() + 1.0
            wait_for(lambda: time.monotonic() > until, "every wait of the supervisor to be over")  # noqa: B023
            shell.sendline("fg")
        wait_for(lambda: is_right(server), "a right answer")
        shell.sendcontrol("c")
        shell.expect("prompt> ")
        shell.sendline("echo code=$?")
        shell.expect("code=0")
    finally:
        shell.close(force=True)


@pytest.mark.exhaustive
def test_of_two_that_start_at_once_one_serves(tmp_path: Path) -> None:
    server = Server(tmp_path, wait_ready=False)
    server.write()
    twins = [Server(tmp_path, port=server.port) for _ in range(2)]
    for number, twin in enumerate(twins):
        twin.log = tmp_path / f"{number}.log"
        twin.launch()
    try:
        wait_for(server.answers, "one of them")
        loser = wait_for(lambda: next((twin for twin in twins if twin.process.poll() is not None), None), "the other")
        winner = next(twin for twin in twins if twin is not loser)

        assert loser.process.returncode == 1
        assert f"in use by process {winner.process.pid}" in loser.output()
        assert "HTTP" not in loser.output()
        assert is_right(winner)
    finally:
        for twin in twins:
            twin.stop()


class Activated(Server):
    """A runtime to which the socket *listener* is passed, as a socket unit of systemd does."""

    listener: socket.socket

    def launch(self) -> None:
        descriptor = self.listener.fileno()
        shell = f'export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@" 3<&{descriptor}'
        environ = clean_environ(RUNTIME_CONFIG=str(self.file))
        self.run(["bash", "-c", shell, "bash", *command(self.mode)], environ, [descriptor])


@pytest.mark.exhaustive
def test_connections_wait_in_an_inherited_socket_while_the_runtime_restarts(tmp_path: Path) -> None:
    outcomes: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.02):
            try:
                outcomes.append(str(server.sql("SELECT count(*) AS n FROM orders").json()))
            except httpx.TransportError as error:
                outcomes.append(repr(error))

    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        server = Activated(tmp_path, port=listener.getsockname()[1])
        server.listener = listener
        with server, server.stream(MANY_ROWS) as under_way, ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                pool.submit(ask)
            wait_for(lambda: len(outcomes) > 20, "answers")
            former = server.process
            former.send_signal(signal.SIGTERM)
            assert len(json.loads(under_way.read())) == 600_000
            assert former.wait(PATIENCE_S) == 0
            server.changes = {"runtime": {"shutdown_timeout": "3s"}}
            server.write()
            server.launch()
            restarted = len(outcomes)
            wait_for(lambda: len(outcomes) > restarted + 20, "answers of the next runtime")
            stop.set()
            endless = pool.submit(server.sql, ENDLESS)
            # One of the others may still be under way.
            wait_for(lambda: any(one["sql"] == ENDLESS for one in server.active()), "the statement")
            assert server.stop() == 0
            assert endless.result().status_code == 503
    assert set(outcomes) == {"[{'n': 1000}]"}
