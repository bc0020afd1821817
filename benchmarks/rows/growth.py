"""The cost along the number of keys, datasets, rows, connections and processors."""

from benchmarks.bench import Curve, Effort, Environment
from benchmarks.load import Statement
from benchmarks.processes import pss_bytes
from benchmarks.rows.statements import AGGREGATE, ITEMS, POINT, SELECT_1, sending
from benchmarks.subjects import CORES, Subject, querykeep, roapi
from benchmarks.tables import Copies

MB = 1e6
_CONNECTIONS = 16
#: A longer queue than the default: the curve shows the cost of connections, not refusals.
_PATIENT = {"query": {"max_queued": 10_000, "queue_timeout": "1m"}}
_BOTH = ("Querykeep", "ROAPI")


def _subject(environment: Environment, name: str, *, keys: int = 1, patient: bool = False) -> Subject:
    return roapi(environment.peers) if name == "ROAPI" else querykeep(keys=keys, runtime=_PATIENT if patient else None)


def along_keys(environment: Environment, name: str, keys: int, effort: Effort) -> dict[str, float]:
    """Start with that many keys, and present the last of them."""
    with _subject(environment, name, keys=keys).running(environment.scratch, environment.tables, ()) as running:
        found = sending(SELECT_1, _CONNECTIONS, running, effort.seconds)
        return found | {"start s": running.ready_s, "PSS MB": pss_bytes(running.pid) / MB}


def along_datasets(environment: Environment, name: str, datasets: int, effort: Effort) -> dict[str, float]:
    """
    Start with the given number of datasets from one small file, and query the last one.

    The first queries wait until each engine worker has opened all datasets: a second per thousand.
    """
    names = tuple(f"copy_{number}" for number in range(1, datasets + 1))
    statement = Statement(f"SELECT a + {{}} FROM {names[-1]}")
    copies = Copies(environment.tables.directory)
    with _subject(environment, name, patient=True).running(environment.scratch, copies, names) as running:
        found = sending(statement, _CONNECTIONS, running, effort.seconds)
        return found | {"start s": running.ready_s, "PSS MB": pss_bytes(running.pid) / MB}


def along_rows(environment: Environment, name: str, rows: int, effort: Effort) -> dict[str, float]:
    """Query a table with the given number of rows: point look-ups and aggregates, which may take a second each."""
    table = f"items_{rows}"
    point = Statement(POINT.sql.replace(ITEMS, table), lowest=0, count=rows)
    aggregate = Statement(AGGREGATE.sql.replace(ITEMS, table), AGGREGATE.lowest, AGGREGATE.count)
    with _subject(environment, name, patient=True).running(
        environment.scratch, environment.tables, (table,)
    ) as running:
        return {
            "point look-ups/s": sending(point, 4, running, effort.seconds * 2)["requests/s"],
            "aggregates/s": sending(aggregate, 2, running, effort.seconds * 2)["requests/s"],
            "start s": running.ready_s,
        }


def along_connections(environment: Environment, name: str, connections: int, effort: Effort) -> dict[str, float]:
    """Send over that many connections."""
    subject = _subject(environment, name, patient=True)
    with subject.running(environment.scratch, environment.tables, ("small",)) as running:
        return sending(SELECT_1, connections, running, effort.seconds)


def along_processors(environment: Environment, name: str, processors: int, effort: Effort) -> dict[str, float]:
    """Restrict the server to that many processors; the client may use all."""
    prefix = ["taskset", "--cpu-list", f"0-{processors - 1}"]
    subject = _subject(environment, name, patient=True)
    with subject.running(environment.scratch, environment.tables, (ITEMS,), prefix) as running:
        small = sending(SELECT_1, _CONNECTIONS, running, effort.seconds)
        aggregates = sending(AGGREGATE, 4, running, effort.seconds)
        return {
            "requests/s": small["requests/s"],
            "p99 ms": small["p99 ms"],
            "aggregates/s": aggregates["requests/s"],
        }


CURVES = (
    Curve(
        name="keys",
        title="Accepted keys",
        along="keys",
        points=(1, 10, 100, 1_000, 10_000),
        subjects=("Querykeep",),
        shown=("requests/s", "CPU s per 1,000"),
        measure=along_keys,
    ),
    Curve(
        name="datasets",
        title="Datasets",
        along="datasets",
        points=(1, 10, 100, 1_000),
        subjects=_BOTH,
        shown=("requests/s", "start s"),
        measure=along_datasets,
        rounds=1,
    ),
    Curve(
        name="rows",
        title="Rows of a table",
        along="rows",
        points=(100_000, 1_000_000, 10_000_000),
        subjects=_BOTH,
        shown=("point look-ups/s", "aggregates/s"),
        measure=along_rows,
    ),
    Curve(
        name="connections",
        title="Connections",
        along="connections",
        points=(1, 4, 16, 64, 256, 1_000),
        subjects=_BOTH,
        shown=("requests/s", "p99 ms"),
        measure=along_connections,
    ),
    Curve(
        name="processors",
        title="Processors",
        along="processors",
        points=tuple(range(1, min(CORES, 8) + 1)),
        subjects=_BOTH,
        shown=("requests/s", "aggregates/s"),
        measure=along_processors,
    ),
)
