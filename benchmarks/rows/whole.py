"""The runtime as a whole: startup, memory, stop, its client, and the cost of authentication and row filters."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from benchmarks import load, processes
from benchmarks.bench import Effort, Environment, Standalone
from benchmarks.rows.statements import AGGREGATE, ITEMS, POINT, SELECT_1, sending
from benchmarks.samples import Target
from benchmarks.subjects import KEY, Plan, querykeep, roapi, serve

MB = 1e6
EXAMPLE = processes.REPOSITORY / "examples/runtime.yaml"
#: Seconds of idleness before memory is read. The example has the default of 4 engine workers.
_IDLE_S = 2.0
#: Seconds that the processes which load data may stay for the next load.
_LOADER, _LOADERS_S = "datasources.refresh.loader_process", 60.0
_CONNECTIONS = 16
_CLIENT_RUNS = 5
OFF, MANY = "Querykeep, authentication off", "Querykeep, 10,000 named keys"
FILTERED, BY_HAND = "Querykeep", "Querykeep, filter in the statement"
#: Statements with a place for a condition.
_READ_BY_KEY = {
    "point": replace(POINT, sql=f"{POINT.sql} %s"),
    "aggregate": replace(AGGREGATE, sql=AGGREGATE.sql.replace(" GROUP BY", " %s GROUP BY")),
}
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (nothing is written there)


def example(environment: Environment, number: int, _effort: Effort) -> dict[str, dict[str, float]]:
    """Start and stop the example twice: without state, so that it loads its data, and with state, until it is idle."""
    directory = environment.scratch / f"example-{number}"
    directory.mkdir()
    plan = _example_plan(directory)
    found: dict[str, float] = {}
    for name in ("first start s", "start s"):
        shared = _shared_memory()
        with processes.started(plan.command, plan.environment, directory / "log", plan.is_ready) as (process, ready_s):
            found[name] = ready_s
            if plan.http is not None:
                load.ask(plan.http, "SELECT count(*) FROM flights")
            if name == "start s":
                found["PSS MB just started"] = processes.pss_bytes(process.pid) / MB
                _wait_until_idle(process.pid)
                found["idle PSS MB"] = processes.pss_bytes(process.pid) / MB
            members = {member: processes.start_time(member) for member in processes.family(process.pid)}
            told = time.monotonic()
        found["stop s"] = time.monotonic() - told
        left = [f"process {member}" for member, start in members.items() if start == processes.start_time(member) != ""]
        left += [f"file {path}" for path in _leftovers(directory / ".runtime")]
        found["left behind"] = len(left)
        found["exit code"] = process.returncode
        # Includes shared memory that other programs create meanwhile.
        found["left in /dev/shm"] = len(_shared_memory() - shared)
    return {"Querykeep": found}


def _example_plan(directory: Path) -> Plan:
    """Return the plan for the example with its own key, ports and state directory."""
    settings = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    http = processes.free_port()
    del settings["secrets"]
    settings["runtime"] |= {
        "auth": {"api-key": {"enabled": True, "keys": [KEY]}},
        "http": {"bind": f"127.0.0.1:{http}"},
        "flight": {"bind": f"127.0.0.1:{processes.free_port()}"},
    }
    for dataset in settings["datasets"]:
        connector, _, path = dataset["from"].partition(":")
        dataset["from"] = f"{connector}:{EXAMPLE.parent / path}"
    config = directory / "runtime.yaml"
    config.touch(0o600)
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    return serve(config, http)


def client(environment: Environment, _number: int, _effort: Effort) -> dict[str, dict[str, float]]:
    """Run commands of the client several times, each in a new process: the best time, and that of Python itself."""
    with querykeep().running(environment.scratch, environment.tables, ()) as running:
        program, endpoint = [sys.executable, "-m"], running.http.url.removesuffix("/v1/sql")
        ask = ["runtimeclient", "sql", "--http-endpoint", endpoint, "SELECT 1"]
        return {
            "Querykeep": {"sql s": _best_s([*program, *ask]), "help s": _best_s([*program, "runtimeclient", "--help"])},
            "Python": {"sql s": _best_s([sys.executable, "-c", ""])},
        }


def _best_s(command: Sequence[str]) -> float:
    def once() -> float:
        began = time.monotonic()
        environment = {**os.environ, "RUNTIME_API_KEY": KEY}
        subprocess.run(command, cwd=processes.REPOSITORY, env=environment, check=True, capture_output=True)
        return time.monotonic() - began

    return min(once() for _ in range(_CLIENT_RUNS))


def _wait_until_idle(pid: int) -> None:
    until = time.monotonic() + _LOADERS_S
    while time.monotonic() < until and any(_LOADER in processes.command(member) for member in processes.family(pid)):
        time.sleep(_IDLE_S)
    time.sleep(_IDLE_S)


def _leftovers(state_dir: Path) -> Iterator[str]:
    """Yield files that a stop should have removed: sockets, spilled data, unpublished snapshots."""
    published = (state_dir / "manifest.json").read_text()
    for path in sorted(state_dir.rglob("*")):
        name = path.relative_to(state_dir)
        is_superseded = name.parts[0] == "snapshots" and path.is_file() and path.name not in published
        if path.is_socket() or (len(name.parts) > 1 and name.parts[0] != "snapshots") or is_superseded:
            yield str(name)


def _shared_memory() -> set[str]:
    return {path.name for path in _SHARED_MEMORY.glob("*")}


def authentication(environment: Environment, _number: int, effort: Effort) -> dict[str, dict[str, float]]:
    """
    Compare the CPU time of the authentication class, called alone, with that of a whole request.

    Requests without authentication are measured too, but the difference between whole requests is below the noise.
    """
    one, many = _authentication_us("1"), _authentication_us("10000", "named")
    found: dict[str, dict[str, float]] = {}
    for subject in (querykeep(), querykeep(OFF, keys=0), querykeep(MANY, keys=10_000, named=True)):
        with subject.running(environment.scratch, environment.tables, ()) as running:
            found[subject.name] = sending(SELECT_1, _CONNECTIONS, running, effort.seconds)
            found[subject.name]["start s"] = running.ready_s
    request_us = found["Querykeep"]["CPU s per 1,000"] * 1000
    found["Querykeep"] |= {
        "authentication us": one,
        "share of the CPU time %": one / request_us * 100,
        "extra share with 10,000 keys %": (many - one) / request_us * 100,
    }
    return found


def _authentication_us(*arguments: str) -> float:
    command = [sys.executable, "-m", "benchmarks.floors.authentication", *arguments]
    done = subprocess.run(command, cwd=processes.REPOSITORY, check=True, capture_output=True, text=True)
    return float(done.stdout)


def idle(environment: Environment, _number: int, _effort: Effort) -> dict[str, dict[str, float]]:
    """Measure the idle memory of this runtime and of ROAPI with one small table."""
    found = {}
    for subject in (querykeep(), roapi(environment.peers)):
        with subject.running(environment.scratch, environment.tables, ("small",)) as running:
            _wait_until_idle(running.pid)
            found[subject.name] = {"start s": running.ready_s, "idle PSS MB": processes.pss_bytes(running.pid) / MB}
    return found


def row_filters(environment: Environment, _number: int, effort: Effort) -> dict[str, dict[str, float]]:
    """
    Compare a key that has a row filter with a key that writes the same filter into each statement.

    The statements return the same rows. 1,000 keys have different filters.
    """
    condition = "NOT returned"
    filters = [*(f"id % 1000 = {number}" for number in range(999)), condition]
    subjects = {
        querykeep(BY_HAND, named=True): f"AND {condition}",
        querykeep(FILTERED, keys=len(filters), named=True, row_filters=filters.__getitem__): "",
    }
    found: dict[str, dict[str, float]] = {}
    for subject, by_hand in subjects.items():
        with subject.running(environment.scratch, environment.tables, (ITEMS,)) as running:
            metrics = {"start s": running.ready_s}
            for name, statement in _READ_BY_KEY.items():
                sent = sending(replace(statement, sql=statement.sql % by_hand), _CONNECTIONS, running, effort.seconds)
                metrics |= {f"{name} p50 ms": sent["p50 ms"], f"{name} CPU s per 1,000": sent["CPU s per 1,000"]}
            found[subject.name] = metrics | {"PSS MB": processes.pss_bytes(running.pid) / MB}
    return found


ROWS = (
    Standalone(
        name="example",
        title="the example, 4 workers",
        measure=example,
        targets=[
            Target(metric="first start s", at_most=3.0),
            Target(metric="start s", at_most=1.2),
            Target(metric="idle PSS MB", at_most=300.0),
        ],
    ),
    Standalone(
        name="client",
        title='`querykeep sql "SELECT 1"` and `--help`',
        measure=client,
        targets=[Target(metric="sql s", at_most=0.25), Target(metric="help s", at_most=0.15)],
    ),
    Standalone(name="idle", title="one small table: start to ready, idle memory", measure=idle),
    Standalone(
        name="authentication",
        title="authentication",
        measure=authentication,
        targets=[
            Target(metric="share of the CPU time %", at_most=3.0),
            Target(metric="extra share with 10,000 keys %", at_most=1.0),
            Target(of=MANY, metric="start s", at_most=5.0),
        ],
    ),
    Standalone(
        name="row-filter",
        title="one of 1,000 keys with row filters",
        measure=row_filters,
        targets=[
            Target(of=FILTERED, metric="start s", at_most=5.0),
            Target(of=FILTERED, metric="point CPU s per 1,000", against=BY_HAND, at_most=1.1),
            Target(of=FILTERED, metric="aggregate CPU s per 1,000", against=BY_HAND, at_most=1.1),
        ],
    ),
)
