"""The subjects: this runtime, its peers and the floors, with the same tables, each started as documented."""

import hashlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb

from benchmarks import load, processes
from benchmarks.load import Endpoint, Load, Read, Statement
from benchmarks.processes import REPOSITORY, free_port
from benchmarks.tables import Tables

KEY = "benchmark-key-of-no-worth-0123456789"
CORES = len(os.sched_getaffinity(0))

_WARM_UP_THREADS, _WARM_UP_STATEMENTS = 8, 24

#: Hides numpy and pandas, which requirements/base.txt does not install: pyarrow loads both in every process if they are
#: present, and the benchmarks' virtual environment may have them.
_AS_INSTALLED = {"PYTHONPATH": str(REPOSITORY / "tests/data/not_installed")}


class MissingError(Exception):
    """A program that is needed is not installed."""


@dataclass(frozen=True, slots=True)
class FlightEndpoint:
    """A Flight SQL endpoint, the headers that authenticate the caller, how SQL names a table, and the client."""

    uri: str
    headers: Mapping[str, str] = field(default_factory=dict)
    table: str = "{}"
    client: Sequence[str | Path] = (sys.executable, "-m", "benchmarks.flight_client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to start a server, its endpoints, and how to check that it is ready."""

    command: Sequence[str | Path]
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    http: Endpoint | None = None
    flight: FlightEndpoint | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready after `ready_s` seconds."""

    plan: Plan
    pid: int
    ready_s: float

    @property
    def http(self) -> Endpoint:
        """The HTTP endpoint."""
        assert self.plan.http is not None  # noqa: S101 (rows only name subjects that have one)
        return self.plan.http

    @property
    def flight(self) -> FlightEndpoint:
        """The Flight SQL endpoint."""
        assert self.plan.flight is not None  # noqa: S101 (as above)
        return self.plan.flight

    def send(self, statement: Statement, connections: int, seconds: float) -> Load:
        """Send a statement repeatedly: see `load.send`."""
        return load.send(self.http, statement, connections, seconds)

    def warm_up(self, statement: Statement) -> None:
        """Send a statement several times concurrently, so that each process of the server runs it."""
        with ThreadPoolExecutor(_WARM_UP_THREADS) as pool:
            texts = (statement.sql.replace("{}", str(statement.lowest + n)) for n in range(_WARM_UP_STATEMENTS))
            list(pool.map(self.ask, texts))

    def ask(self, sql: str) -> Read:
        """Read one answer: see `load.ask`."""
        return load.ask(self.http, sql)

    def cpu_s(self) -> float:
        """CPU time of all its processes so far."""
        return processes.cpu_s(self.pid)


@dataclass(frozen=True, slots=True)
class Subject:
    """A name for the report, and a function that plans the start in a scratch directory with the tables' files."""

    name: str
    plan: Callable[[Path, Tables, tuple[str, ...]], Plan]

    @contextmanager
    def running(
        self, scratch: Path, tables: Tables, names: tuple[str, ...], prefix: Sequence[str] = ()
    ) -> Iterator[Running]:
        """
        Run the subject for the duration of the block, with *prefix* before its command, in a new directory.

        Raises:
            MissingError: It is not installed.
            NotReadyError: It does not start.
        """
        with tempfile.TemporaryDirectory(dir=scratch) as name:
            plan = self.plan(Path(name), tables, names)
            command, log = [*prefix, *plan.command], Path(name) / "log"
            with processes.started(command, plan.environment, log, plan.is_ready) as (process, ready_s):
                yield Running(plan, process.pid, ready_s)


def querykeep(
    name: str = "Querykeep",
    *,
    keys: int = 1,
    named: bool = False,
    row_filters: Callable[[int], str] | None = None,
    runtime: Mapping[str, Any] | None = None,
) -> Subject:
    """
    Return this runtime under `manage.py serve` with default settings, keys and logging.

    Args:
        name: Its name in the report.
        keys: Number of accepted keys; requests present the last one. 0 turns authentication off.
        named: Whether the keys are in `named_keys`, as digests and with all datasets.
        row_filters: The row filter of each named key by its number, which starts at 0.
        runtime: Settings of the section `runtime` that differ from the defaults.
            With `mcp`, statements over HTTP are calls of its tool `query`.
    """
    auth = partial(key_settings, keys, named=named, row_filters=row_filters)
    return Subject(name, partial(_querykeep, auth=auth, runtime=runtime or {}))


def key_settings(
    count: int,
    datasets: Sequence[str] = (),
    *,
    named: bool = False,
    row_filters: Callable[[int], str] | None = None,
) -> dict[str, Any]:
    """Return `runtime.auth.api-key` with that many keys, the last of which is KEY. 0 turns authentication off."""
    keys = [*(f"another-key-of-no-worth-{number:012}" for number in range(count - 1)), KEY][:count]
    if not named:
        return {"enabled": bool(keys), **({"keys": keys} if keys else {})}

    def scope(number: int) -> dict[str, Any]:
        if not datasets:
            return {}
        if row_filters is None:
            return {"datasets": list(datasets)}
        return {"datasets": [{"name": name, "row_filter": row_filters(number)} for name in datasets]}

    digests = enumerate(hashlib.sha256(key.encode()).hexdigest() for key in keys)
    named_keys = [{"name": f"key-{n}", "sha256": digest, **scope(n)} for n, digest in digests]
    return {"enabled": True, "named_keys": named_keys}


def serve(config: Path, http: int) -> Plan:
    """Return the plan for `manage.py serve` with a configuration that binds HTTP to that port."""
    ready = Endpoint(f"http://127.0.0.1:{http}/v1/ready", method="GET")
    return Plan(
        command=[sys.executable, REPOSITORY / "manage.py", "serve", "--config", config],
        environment=_AS_INSTALLED,
        is_ready=lambda: _answers(ready, ""),
        http=Endpoint(f"http://127.0.0.1:{http}/v1/sql", {"X-API-Key": KEY}),
    )


def _querykeep(
    scratch: Path, tables: Tables, names: tuple[str, ...], auth: Callable[..., Any], runtime: Mapping[str, Any]
) -> Plan:
    http, flight = free_port(), free_port()
    keys = auth(datasets=names)
    settings = {
        "auth": {"api-key": keys},
        "http": {"bind": f"127.0.0.1:{http}"},
        "flight": {"bind": f"127.0.0.1:{flight}"},
        **runtime,
    }
    loaded = {} if "engine" in runtime else {"acceleration": {"enabled": True}}  # A cluster reads in place.
    datasets = [{"from": f"file:{tables.parquet(name)}", "name": name, **loaded} for name in names]
    config = scratch / "runtime.yaml"
    config.touch(0o600)
    config.write_text(json.dumps({"runtime": settings, **({"datasets": datasets} if datasets else {})}))  # JSON is YAML
    plan = serve(config, http)
    speaks = FlightEndpoint(f"grpc://127.0.0.1:{flight}", {"authorization": f"Bearer {KEY}"} if keys["enabled"] else {})
    endpoint = plan.http
    if endpoint is not None and "mcp" in runtime:
        endpoint = replace(endpoint, url=endpoint.url.replace("/v1/sql", "/v1/mcp"), is_mcp=True)
    return Plan(
        command=plan.command, environment=plan.environment, is_ready=plan.is_ready, http=endpoint, flight=speaks
    )


def roapi(peers: Path) -> Subject:
    """Return ROAPI (Rust, DataFusion) with in-memory tables. It does not support keys over HTTP."""

    def plan(scratch: Path, tables: Tables, names: tuple[str, ...]) -> Plan:
        http, flight = free_port(), free_port()
        settings = {
            "addr": {
                "http": f"127.0.0.1:{http}",
                "postgres": f"127.0.0.1:{free_port()}",
                "flight_sql": f"127.0.0.1:{flight}",
            },
            "tables": [
                {
                    "name": name,
                    "uri": str(tables.parquet(name)),
                    "option": {"format": "parquet", "use_memory_table": True},
                }
                for name in names
            ],
            "flight_sql_config": {"auth_token": KEY},
        }
        config = scratch / "roapi.yml"
        config.write_text(json.dumps(settings))
        endpoint = Endpoint(f"http://127.0.0.1:{http}/api/sql")
        return Plan(
            command=[program_of(peers, "roapi"), "-c", config],
            is_ready=lambda: _answers(endpoint),
            http=endpoint,
            flight=FlightEndpoint(f"grpc://127.0.0.1:{flight}", {"authorization": f"Bearer {KEY}"}),
        )

    return Subject("ROAPI", plan)


def datasette(peers: Path) -> Subject:
    """Return Datasette (Python, SQLite with an index on the id) without limits on time and rows."""

    def plan(_scratch: Path, tables: Tables, names: tuple[str, ...]) -> Plan:
        port, database = free_port(), tables.sqlite(names)
        limits = {"sql_time_limit_ms": 600_000, "max_returned_rows": 10_000_000}
        settings = [part for name, value in limits.items() for part in ("--setting", name, str(value))]
        path = f"http://127.0.0.1:{port}/{quote(database.stem)}.json?_shape=array&sql="
        endpoint = Endpoint(path, method="GET")
        command: list[str | Path] = [
            program_of(peers, "datasette"),
            "serve",
            "--immutable",
            database,
            "--port",
            str(port),
            *settings,
        ]
        return Plan(command=command, is_ready=lambda: _answers(endpoint), http=endpoint)

    return Subject("Datasette", plan)


def sail(peers: Path) -> Subject:
    """Return Sail's Flight SQL server (Rust, DataFusion): Parquet files, the dialect of Spark, no keys."""

    def plan(_scratch: Path, tables: Tables, names: tuple[str, ...]) -> Plan:
        port = free_port()
        for name in names:
            tables.parquet(name)
        speaks = FlightEndpoint(f"grpc://127.0.0.1:{port}", table=f"parquet.`{tables.directory}/{{}}.parquet`")
        command: list[str | Path] = [program_of(peers, "sail"), "flight", "server", "--port", str(port)]
        return Plan(command=command, is_ready=lambda: _listens(port), flight=speaks)

    return Subject("Sail", plan)


def quack(peers: Path) -> Subject:
    """Return DuckDB's own server with in-memory tables, and its client: one token, no Flight SQL."""

    def plan(_scratch: Path, tables: Tables, names: tuple[str, ...]) -> Plan:
        port = free_port()
        program = [program_of(peers, "python"), REPOSITORY / "benchmarks/floors/quack.py"]
        speaks = FlightEndpoint(f"quack:127.0.0.1:{port}", {"authorization": KEY}, client=[*program, "ask"])
        files = [f"{name}={tables.parquet(name)}" for name in names]
        return Plan(command=[*program, "serve", str(port), *files], is_ready=lambda: _listens(port), flight=speaks)

    return Subject("Quack", plan)


def bare_view() -> Subject:
    """Return a Django REST framework view that returns a constant, on the gunicorn worker that ours is based on."""
    return Subject("bare DRF view", partial(_gunicorn, application="benchmarks.floors.bare_view:application"))


def bare_wsgi() -> Subject:
    """Return a WSGI function that returns a constant, on the gunicorn worker that ours is based on."""
    return Subject("bare WSGI", partial(_gunicorn, application="benchmarks.floors.bare_wsgi:application"))


def memory_flight() -> Subject:
    """Return pyarrow's Flight server with the table in memory: no engine, no keys."""

    def plan(_scratch: Path, tables: Tables, names: tuple[str, ...]) -> Plan:
        port = free_port()
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "benchmarks.floors.memory_flight",
            str(port),
            tables.parquet(names[0]),
        ]
        speaks = FlightEndpoint(f"grpc://127.0.0.1:{port}")
        return Plan(command=command, environment=_AS_INSTALLED, is_ready=lambda: _listens(port), flight=speaks)

    return Subject("pyarrow.flight", plan)


def datafusion(peers: Path) -> Subject:
    """Return DataFusion (Rust) with in-memory tables, behind the HTTP server of Python's standard library."""

    def plan(_scratch: Path, tables: Tables, names: tuple[str, ...]) -> Plan:
        port = free_port()
        files = [f"{name}={tables.parquet(name)}" for name in names]
        program = REPOSITORY / "benchmarks/floors/datafusion_server.py"
        endpoint = Endpoint(f"http://127.0.0.1:{port}/")
        command: list[str | Path] = [program_of(peers, "python"), program, str(port), *files]
        return Plan(command=command, is_ready=lambda: _answers(endpoint), http=endpoint)

    return Subject("DataFusion", plan)


class DuckDBInProcess(Subject):
    """The engine of this runtime inside the benchmark process, with in-memory tables and no network."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("DuckDB in process", _no_plan)

    @contextmanager
    def running(
        self, scratch: Path, tables: Tables, names: tuple[str, ...], prefix: Sequence[str] = ()
    ) -> "Iterator[InProcess]":
        """Load the tables for the duration of the block."""
        began = time.monotonic()
        with duckdb.connect() as engine:
            for name in names:
                engine.execute(f"CREATE TABLE {name} AS FROM '{tables.parquet(name)}'")
            yield InProcess(_NO_SERVER, os.getpid(), time.monotonic() - began, engine)


@dataclass(frozen=True, slots=True)
class InProcess(Running):
    """An engine called directly, by one thread per connection, but at most one per core."""

    engine: duckdb.DuckDBPyConnection

    def send(self, statement: Statement, connections: int, seconds: float) -> Load:
        """Run a statement repeatedly, and fetch its rows as Python values."""
        end = time.perf_counter() + seconds

        def run(offset: int) -> list[float]:
            taken: list[float] = []
            cursor = self.engine.cursor()
            while (began := time.perf_counter()) < end:
                number = statement.lowest + (offset + len(taken) * load.STRIDE) % statement.count
                cursor.execute(statement.sql.replace("{}", str(number))).fetchall()
                taken.append(time.perf_counter() - began)
            return taken

        threads = min(connections, CORES)
        with ThreadPoolExecutor(threads) as pool:
            taken = sorted(one for found in pool.map(run, range(threads)) for one in found)
        p50, p99 = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
        return Load(len(taken), seconds, 0, p50 * 1e3, p99 * 1e3)

    def ask(self, sql: str) -> Read:
        """Run a statement and fetch its rows as Arrow."""
        began = time.perf_counter()
        table = self.engine.cursor().sql(sql).to_arrow_table()
        return Read(time.perf_counter() - began, table.nbytes, table.num_rows)

    def cpu_s(self) -> float:
        """CPU time of this process so far."""
        return time.process_time()


def _no_plan(_scratch: Path, _tables: Tables, _names: tuple[str, ...]) -> Plan:
    raise AssertionError("there is no server")


_NO_SERVER = Plan(command=[], is_ready=bool)


def _gunicorn(_scratch: Path, _tables: Tables, _names: tuple[str, ...], application: str) -> Plan:
    port = free_port()
    endpoint = Endpoint(f"http://127.0.0.1:{port}/v1/sql")
    gunicorn = [sys.executable, "-m", "gunicorn", "--config", os.devnull, "--worker-class", "gevent"]
    command = [*gunicorn, "--workers", str(CORES), "--bind", f"127.0.0.1:{port}", application]
    return Plan(command=command, environment=_AS_INSTALLED, is_ready=lambda: _answers(endpoint), http=endpoint)


def program_of(peers: Path, name: str) -> Path:
    """
    Return a program of the virtual environment *peers*.

    Raises:
        MissingError: It is not installed.
    """
    path = peers / "bin" / name
    if not path.exists():
        raise MissingError(f"{name} is not installed: run make bench, or name its virtual environment with --peers")
    return path


def _answers(endpoint: Endpoint, sql: str = "SELECT 1") -> bool:
    try:
        load.ask(endpoint, sql)
    except (OSError, load.AnswerError):
        return False
    return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
