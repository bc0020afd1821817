"""
Statements on a cluster of two workers: through the runtime, and by pyspark's client, which speaks to it directly.

Each statement goes to all subjects in turn before the next statement starts. Each subject has its own session, and
therefore its own workers.
"""

import http.client
import json
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
from adbc_driver_flightsql import DatabaseOptions

from benchmarks.bench import Effort, Environment, Standalone, rotated
from benchmarks.load import AnswerError, Endpoint
from benchmarks.processes import REPOSITORY
from benchmarks.rows.flight import BIG, READS
from benchmarks.samples import Target
from benchmarks.subjects import FlightEndpoint, program_of, querykeep
from benchmarks.tables import TPCH, tpch_queries
from tests.cluster.kubernetes import SailCluster

OURS, FLIGHT, PYSPARK, PLAIN = "Querykeep", "Querykeep, Flight SQL", "pyspark", "pyspark without gzip"

#: Runs a statement, and returns the seconds until the whole result is an Arrow table, and its rows.
Client = Callable[[str], tuple[float, int]]


def tpch(environment: Environment, number: int, _effort: Effort) -> Mapping[str, dict[str, float]]:
    """Run the queries of TPC-H, each once."""
    with _clients(environment, TPCH, (OURS, FLIGHT, PYSPARK)) as clients:
        for table in TPCH:
            _take_turns(clients, f"SELECT count(*) AS n FROM {table}", number)
        taken = [_take_turns(clients, sql, number + place) for place, sql in enumerate(tpch_queries().values())]
    return {
        name: {"s": sum(one[name] for one in taken), "slowest query s": max(one[name] for one in taken)}
        for name in clients
    }


def rows(environment: Environment, number: int, _effort: Effort) -> Mapping[str, dict[str, float]]:
    """Read a whole table several times: the best time."""
    with _clients(environment, (BIG,), (OURS, FLIGHT, PYSPARK, PLAIN)) as clients:
        taken = [_take_turns(clients, f"SELECT * FROM {BIG}", number + place) for place in range(READS)]
    return {name: {"s": min(one[name] for one in taken)} for name in clients}


def _take_turns(clients: Mapping[str, Client], sql: str, number: int) -> dict[str, float]:
    """
    Return the seconds of each client.

    Raises:
        AnswerError: They have different numbers of rows.
    """
    taken: dict[str, float] = {}
    counts: dict[int, list[str]] = defaultdict(list)
    for name in rotated(list(clients), number):
        taken[name], count = clients[name](sql)
        counts[count].append(name)
    if len(counts) > 1:
        raise AnswerError(f"different numbers of rows: {dict(counts)} of {sql[:80]}")
    return taken


@contextmanager
def _clients(environment: Environment, tables: Sequence[str], names: Sequence[str]) -> Iterator[dict[str, Client]]:
    """Start the cluster, the runtime and the clients *names*."""
    files = {name: str(environment.tables.parquet(name)) for name in tables}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=environment.scratch)))
        python = program_of(environment.peers, "python")
        sail = stack.enter_context(SailCluster(scratch, python=python))
        url = f"sc://127.0.0.1:{sail.port}"
        subject = querykeep(runtime={"engine": {"from": url}})
        running = stack.enter_context(subject.running(scratch, environment.tables, tuple(tables)))
        made: dict[str, Callable[[], Client]] = {
            OURS: lambda: _http(running.http),
            FLIGHT: lambda: _flight(running.flight, stack),
            PYSPARK: lambda: _pyspark(python, {"url": url, "tables": files, "gzip": True}, stack),
            PLAIN: lambda: _pyspark(python, {"url": url, "tables": files, "gzip": False}, stack),
        }
        yield {name: made[name]() for name in names}


def _http(endpoint: Endpoint) -> Client:
    parts = urlsplit(endpoint.url)
    headers = {**endpoint.headers, "Accept": "application/vnd.apache.arrow.stream"}

    def run(sql: str) -> tuple[float, int]:
        began = time.perf_counter()
        with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)) as connection:
            connection.request("POST", parts.path, sql.encode(), headers)
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise AnswerError(f"{answer.status}: {answer.read(300).decode(errors='replace')}")
            count = pa.ipc.open_stream(answer).read_all().num_rows  # As the others, it reads while the rows come.
        return time.perf_counter() - began, count

    return run


def _flight(endpoint: FlightEndpoint, stack: ExitStack) -> Client:
    settings = {DatabaseOptions.AUTHORIZATION_HEADER.value: endpoint.headers["authorization"]}
    connection = stack.enter_context(adbc.connect(endpoint.uri, db_kwargs=settings, autocommit=True))
    cursor = stack.enter_context(connection.cursor())

    def run(sql: str) -> tuple[float, int]:
        began = time.perf_counter()
        cursor.execute(sql)
        count = cursor.fetch_arrow_table().num_rows
        return time.perf_counter() - began, count

    return run


def _pyspark(python: Path, task: Mapping[str, object], stack: ExitStack) -> Client:
    command: list[str | Path] = [python, "-W", "ignore", REPOSITORY / "benchmarks/floors/pyspark_client.py"]
    process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)

    def ask(question: object) -> tuple[float, int]:
        assert process.stdin is not None  # noqa: S101 (they are pipes)
        assert process.stdout is not None  # noqa: S101 (as above)
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise AnswerError("pyspark's client has ended")
        found = json.loads(line)
        return found["seconds"], found["rows"]

    ask(task)
    return ask


ROWS = (
    Standalone(
        name="cluster-tpch",
        title="TPC-H on a cluster, 22 queries",
        measure=tpch,
        targets=[Target(metric="s", against=PYSPARK, at_most=1.15)],
    ),
    Standalone(
        name="cluster-rows",
        title="5,000,000 rows x 5 columns from a cluster",
        measure=rows,
        targets=[
            Target(metric="s", against=PLAIN, at_most=1.0),
            Target(metric="s", of=FLIGHT, against=PLAIN, at_most=1.0),
            Target(metric="s", against=PYSPARK, at_most=1.0),
        ],
    ),
)
