"""A running runtime reads its YAML again: nobody is refused, and keys change at one moment."""

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from flightapi.protocol import messages
from supervisor.reload import Report
from system.lock import SUPERVISOR_LOCK_NAME, StateLock
from system.state_directory import prepare_state_dir
from tests.clients.runtime import FlightServer, endpoint_of
from tests.flightapi.endpoint import Refused, bearer, descriptor, executing, row_of
from tests.system.callers import CALLERS, asking
from tests.system.harness import (
    K1,
    K2,
    KEYED,
    NO_ROOTS,
    PATIENCE_S,
    PYTHON,
    REPOSITORY,
    clean_environ,
    wait_for,
    write_orders,
)
from tests.system.processes import MIB, descriptors, engine_workers, family, is_alive, send

#: How often the runtime is reloaded and killed; `make soak` has more.
RELOADS = int(os.environ.get("RELOADS", "3"))
KILLS = int(os.environ.get("KILLS", "6"))


def key_number(number: int) -> str:
    return f"key-{number:04}-Zq8vT3mN6bX9cL2pR5sW7yD0fG4h"


def reload(server: FlightServer) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [PYTHON, "manage.py", "reload", "--config", str(server.file)],
        cwd=REPOSITORY, env=clean_environ(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def change(server: FlightServer, act: Callable[[Any], object]) -> None:
    """Write the YAML as *act* changes it."""
    config = yaml.safe_load(server.file.read_text())
    act(config)
    temporary = server.file.with_suffix(".new")
    temporary.write_text(yaml.safe_dump(config, sort_keys=False))
    temporary.chmod(0o600)
    temporary.replace(server.file)


def set_keys(server: FlightServer, *keys: str) -> None:
    change(server, lambda config: config["runtime"]["auth"]["api-key"].update(keys=list(keys)))


def accepts(server: FlightServer, key: str) -> bool:
    answer = server.sql("SELECT 1 AS a", key)
    assert answer.status_code in {200, 401}, answer.text
    return answer.status_code == 200


def statement(sql: str) -> bytes:
    return descriptor(messages.CommandStatementQuery(query=sql))


def runtime(directory: Path, **changes: Any) -> FlightServer:
    changes.setdefault("query", {"workers": 2, "timeout": "5m"})
    return FlightServer(
        directory, changes={"runtime": {"auth": {"api-key": {"enabled": True, "keys": [K1]}}, **changes}}
    )


def test_a_key_changes_while_a_stream_a_connection_and_a_handle_go_on(tmp_path: Path) -> None:
    rows = 3_000_000
    with (
        runtime(tmp_path) as server,
        endpoint_of(server) as flight,
        httpx.Client(base_url=server.url, verify=NO_ROOTS, timeout=PATIENCE_S) as kept,
        httpx.Client(base_url=server.url, verify=NO_ROOTS, timeout=PATIENCE_S) as reading,
    ):
        assert accepts(server, K1)
        handle = flight.prepare("SELECT sum(id) AS s FROM orders WHERE id < ?", bearer(K1)).prepared_statement_handle
        flight.bind(handle, row_of(a=10))
        sql = f"SELECT range AS n FROM range({rows})"
        with reading.stream("POST", "/v1/sql", content=sql, headers=KEYED) as answer:
            parts = answer.iter_bytes()
            read = [next(parts)]
            assert kept.get("/v1/status", headers=KEYED).status_code == 200
            set_keys(server, K1, K2)
            added = reload(server)
            assert (added.returncode, added.stderr) == (0, "")
            assert added.stdout.splitlines()[-1].endswith("done: the new configuration is in effect")
            assert kept.get("/v1/status", headers={"X-API-Key": K2}).status_code == 200
            running = kept.get("/v1/sql/active", headers=KEYED).json()
            assert [statement["sql"] for statement in running] == [sql]
            assert flight.table(flight.info(executing(handle))).to_pylist() == [{"s": 45}]
            assert b"".join([*read, *parts]).count(b"n") == rows
        change(server, lambda config: config["runtime"]["auth"]["api-key"].update(enabled="maybe", nonsense=1))
        faulty = reload(server)
        assert faulty.returncode == 1
        assert [line.partition("runtime.auth")[2].partition(":")[0] for line in faulty.stderr.splitlines()] == [
            ".api-key.enabled",
            ".api-key",
            "",
        ]
        change(server, lambda config: config["runtime"]["auth"].update({"api-key": {"enabled": True, "keys": [K2]}}))
        assert reload(server).returncode == 0
        assert kept.get("/v1/status", headers=KEYED).status_code == 401
        assert accepts(server, K2)


@pytest.mark.exhaustive
def test_nobody_notices_reloads_but_the_keys_that_change(tmp_path: Path) -> None:
    with (
        runtime(tmp_path) as server,
        endpoint_of(server) as flight,
        httpx.Client(base_url=server.url, verify=NO_ROOTS) as kept,
        asking(server) as seen,
    ):
        times: list[float] = []
        size: list[tuple[int, ...]] = []
        for number in range(1, RELOADS + 1):
            set_keys(server, K1, key_number(number))
            began = time.monotonic()
            done = reload(server)
            times.append(time.monotonic() - began)
            assert done.returncode == 0, done.stderr
            for ask in (accepts, lambda _, key: kept.get("/v1/status", headers={"X-API-Key": key}).status_code == 200):
                assert ask(server, key_number(number))
                assert not ask(server, key_number(number - 1))
            assert flight.sql("SELECT 1 AS a", bearer(key_number(number))).num_rows == 1
            refused = flight.call("GetFlightInfo", statement("SELECT 1"), metadata=bearer(key_number(number - 1)))
            assert isinstance(refused, Refused)
            assert refused.status == "UNAUTHENTICATED"
            size.append(used(server))
    print(f"{RELOADS} reloads, {min(times):.1f} to {max(times):.1f} s; {dict(seen.answers)}")
    print(f"processes, descriptors, files and MiB: first {size[:3]}, last {size[-3:]}")
    assert seen.failures == []
    assert len(seen.answers) == len({caller for caller, _ in CALLERS})


@pytest.mark.exhaustive
def test_what_needs_a_restart_is_refused_by_name(tmp_path: Path) -> None:
    with runtime(tmp_path) as server:
        before = server.file.read_text()

        def elsewhere(config: Any) -> None:
            config["runtime"]["http"]["bind"] = "127.0.0.1:9"
            config["runtime"]["flight"] = {"enabled": False}
            config["runtime"]["shutdown_timeout"] = "5s"

        change(server, elsewhere)
        refused = reload(server)
        assert refused.returncode == 1
        assert refused.stderr.count("needs a restart") == 3
        server.file.write_text(before)
        change(server, lambda config: config["runtime"].update(state_dir="elsewhere"))
        missing = reload(server)
        assert missing.returncode == 1
        assert "No `serve` uses" in missing.stderr
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "runtime.state_dir has changed" in server.output(), "the refusal of SIGHUP")
        assert not (tmp_path / "elsewhere").exists()
        assert accepts(server, K1)


@pytest.mark.exhaustive
def test_a_reload_during_the_start_is_not_lost_and_an_old_report_is_not_taken_for_its_own(tmp_path: Path) -> None:
    server = runtime(tmp_path)
    server.write()
    prepare_state_dir(tmp_path / ".runtime")
    Report(state="done", began=1e12).write(tmp_path / ".runtime")
    with ThreadPoolExecutor() as other:
        with socket.create_server(("127.0.0.1", server.flight_port)):
            server.launch()
            wait_for(StateLock(tmp_path / ".runtime", SUPERVISOR_LOCK_NAME).holder_pid, "the lock")
            asked = other.submit(reload, server)
            time.sleep(1.5)
            assert not asked.done()
        assert asked.result().returncode == 0
    server.__exit__(None, None, None)


@pytest.mark.exhaustive
def test_datasets_change_while_they_are_asked_for(tmp_path: Path) -> None:
    write_orders(tmp_path / "more.parquet", rows=10, offset=1000)
    more = {"from": "file:more.parquet", "name": "more", "acceleration": {"enabled": True}}
    with runtime(tmp_path) as server, asking(server) as seen:
        change(server, lambda config: config["datasets"].append(more))
        assert reload(server).returncode == 0
        assert server.rows("SELECT count(*) AS n FROM more JOIN orders ON more.id = orders.id + 1000") == [{"n": 10}]
        change(server, lambda config: config["datasets"][1].update({"from": "file:absent.parquet"}))
        failed = reload(server)
        assert failed.returncode == 1
        assert "dataset more cannot be loaded: 'absent.parquet' does not exist" in failed.stderr
        assert server.rows("SELECT count(*) AS n FROM more") == [{"n": 10}]
        change(server, lambda config: config["datasets"].pop())
        change(server, lambda config: config["runtime"].update(query={"workers": 3, "timeout": "7s"}))
        assert reload(server).returncode == 0
        assert server.sql("SELECT * FROM more").status_code == 400
        wait_for(lambda: len(engine_workers(server.process.pid)) == 3, "the end of the first engine")
        names = [
            state["name"] for state in httpx.get(f"{server.url}/v1/datasets", headers=KEYED, verify=NO_ROOTS).json()
        ]
        assert names == ["orders"]
        wait_for(
            lambda: len(list((tmp_path / ".runtime/snapshots").glob("*.duckdb"))) == 1, "the end of the other file"
        )
    assert seen.failures == []


@pytest.mark.exhaustive
def test_whatever_dies_in_a_reload_leaves_one_whole_runtime(tmp_path: Path) -> None:
    chance = random.Random(15)
    outcomes: Counter[str] = Counter()
    with ExitStack() as stack:
        server = stack.enter_context(runtime(tmp_path))
        for number in range(1, KILLS + 1):
            whom = ("engine", "web", "refresh", "flight", "serve", "reload")[number % 6]
            set_keys(server, K1, key_number(number))
            server.process.send_signal(signal.SIGHUP)
            time.sleep(chance.uniform(0.0, 2.5))
            members = family(server.process.pid)
            targets = [pid for pid, name in members.items() if f"run{whom}" in name] or [
                pid for pid in members if whom == "reload" and pid != server.process.pid
            ]
            victim = server.process.pid if whom == "serve" else chance.choice(targets)
            send(signal.SIGKILL, victim)
            if whom == "serve":
                server.process.wait(PATIENCE_S)
                wait_for(partial(are_gone, members), "the end of its parts")
                server.launch()
                server.wait_until_up()
                assert accepts(server, key_number(number))
                outcomes["started again"] += 1
                continue
            report = wait_for(lambda: finished(server), f"the end of the reload in which {whom} died")
            outcomes[report["state"]] += 1
            wait_for(lambda: server.answers("/v1/ready"), "a whole runtime")
            wait_for(lambda: len(engine_workers(server.process.pid)) == 2, "one engine")
            wait_for(partial(knows, server, key_number(number), is_known=report["state"] == "done"), "the right keys")
            assert reload(server).returncode == 0
            assert accepts(server, key_number(number))
            assert not accepts(server, key_number(number - 1))
            assert server.rows("SELECT count(*) AS n, sum(id) AS s FROM orders") == [{"n": 1000, "s": 499_500}]
        wait_for(lambda: len(list((tmp_path / ".runtime").glob("e[0-9]*"))) <= 1, "the end of the former engine")
    assert not list((tmp_path / ".runtime").glob("e[0-9]*"))
    print(outcomes)


def finished(server: FlightServer) -> dict[str, Any] | None:
    """Return the report of the reload that was asked for last, once it has ended."""
    with suppress(OSError, ValueError):
        report: dict[str, Any] = json.loads((server.directory / ".runtime/reload.json").read_text())
        return report if report["state"] != "running" else None
    return None


def knows(server: FlightServer, key: str, *, is_known: bool) -> bool:
    """Return whether the key is accepted, or refused, as it should be; False while a part restarts."""
    with suppress(httpx.TransportError):
        return server.sql("SELECT 1 AS a", key).status_code == (200 if is_known else 401)
    return False


def are_gone(pids: Iterable[int]) -> bool:
    return not any(map(is_alive, pids))


def used(server: FlightServer) -> tuple[int, ...]:
    """Return the number of processes, of descriptors and of files of a runtime, and its memory in MiB."""
    wait_for(lambda: len(engine_workers(server.process.pid)) == 2, "one engine")
    files = sum(1 for _ in (server.directory / ".runtime").rglob("*"))
    members = family(server.process.pid)
    memory = sum(proportional_bytes(pid) for pid in members)
    return len(members), descriptors(server.process.pid), files, memory // MIB


def proportional_bytes(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("Pss:")[2].split()[0]) * 1024
    return 0
