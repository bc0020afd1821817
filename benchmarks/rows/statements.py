"""Statements over HTTP: many small ones, and large results."""

from functools import partial
from pathlib import Path

from benchmarks.bench import Row, Stage
from benchmarks.load import AnswerError, Statement
from benchmarks.processes import peak_pss
from benchmarks.samples import Target
from benchmarks.subjects import DuckDBInProcess, Running, bare_view, bare_wsgi, datasette, querykeep, roapi

MB = 1e6
ROWS = 1_000_000
ITEMS, FEW_ITEMS = "items_1000000", "items_100000"
CACHED = "Querykeep with its cache"
SCOPED = "Querykeep with a scoped key"
OVER_MCP = "Querykeep over MCP"
CACHE = {"results_cache": {"enabled": True, "max_bytes": "64MiB"}}

SELECT_1 = Statement("SELECT {}")
POINT = Statement(f"SELECT * FROM {ITEMS} WHERE id = {{}}", lowest=0, count=ROWS)
AGGREGATE = Statement(
    f"SELECT returned, count(*) AS n, sum(price) AS total, max(sold_at) AS latest FROM {ITEMS} "
    "WHERE ratio > {}.25 GROUP BY returned",
    lowest=1,
    count=140_000,
)
REPEATED = Statement(AGGREGATE.sql.replace("{}", "70000"))


def stage(peers: Path) -> Stage:
    """Return the rows and their subjects."""
    return Stage(
        tables=(ITEMS, FEW_ITEMS),
        subjects=[
            querykeep(),
            roapi(peers),
            querykeep(CACHED, runtime=CACHE),
            querykeep(SCOPED, named=True),
            querykeep(OVER_MCP, runtime={"mcp": {"enabled": True}}),
            datasette(peers),
            bare_view(),
            bare_wsgi(),
            DuckDBInProcess(),
        ],
        rows=ROWS_OVER_HTTP,
    )


def sending(statement: Statement, connections: int, running: Running, seconds: float) -> dict[str, float]:
    """
    Send a statement repeatedly, after a warm-up.

    Raises:
        AnswerError: More than 1 % of the answers are errors.
    """
    running.warm_up(statement)
    cpu_s = running.cpu_s()
    found = running.send(statement, connections, seconds)
    cpu_s = running.cpu_s() - cpu_s
    if found.errors * 100 > found.requests:
        raise AnswerError(f"{found.errors} of {found.requests} answers were errors")
    return {
        "requests/s": found.per_s,
        "p50 ms": found.p50_ms,
        "p99 ms": found.p99_ms,
        "CPU s per 1,000": cpu_s / found.requests * 1000,
    }


def reading(rows: int, times: int, running: Running, _seconds: float) -> dict[str, float]:
    """Read a table as JSON several times: the best time, and the size."""
    reads = [running.ask(f"SELECT * FROM items_{rows}") for _ in range(times)]
    for read in reads:
        if read.objects != rows:
            raise AnswerError(f"{read.objects} objects instead of {rows}")
    return {"s": min(read.seconds for read in reads), "MB": reads[0].size_bytes / 1e6}


def reading_million(running: Running, seconds: float) -> dict[str, float]:
    """Read a million rows as JSON, once for the time and once for the memory."""
    found = reading(ROWS, 1, running, seconds)
    with peak_pss(running.pid) as peak:
        running.ask(f"SELECT * FROM {ITEMS}")
        return found | {"peak PSS MB": peak() / MB}


PEERS = ("Querykeep", "ROAPI", "Datasette")
ENGINE = "DuckDB in process"
FLOORS = ("bare DRF view", "bare WSGI", ENGINE)

ROWS_OVER_HTTP = (
    Row(
        name="select-1-c1",
        title="`SELECT <number>`, 1 connection",
        subjects=[*PEERS, *FLOORS],
        measure=partial(sending, SELECT_1, 1),
    ),
    Row(
        name="select-1-c16",
        title="`SELECT <number>`, 16 connections",
        subjects=[*PEERS, *FLOORS],
        measure=partial(sending, SELECT_1, 16),
        targets=[
            Target(metric="requests/s", against="ROAPI", at_least=1.0),
            Target(metric="p99 ms", against="ROAPI", at_most=1.0),
            Target(metric="CPU s per 1,000", at_most=1.0),
        ],
    ),
    Row(
        name="select-1-c64",
        title="`SELECT <number>`, 64 connections",
        subjects=[*PEERS, *FLOORS],
        measure=partial(sending, SELECT_1, 64),
    ),
    Row(
        name="point",
        title="one of 1,000,000 rows by id, 16 connections",
        subjects=[*PEERS, SCOPED, OVER_MCP, ENGINE],
        measure=partial(sending, POINT, 16),
        targets=[
            Target(metric="requests/s", against="ROAPI", at_least=1.5),
            Target(of=SCOPED, metric="CPU s per 1,000", against="Querykeep", at_most=1.03),
        ],
    ),
    Row(
        name="aggregate",
        title="aggregate of 1,000,000 rows with a filter, 16 connections",
        subjects=("Querykeep", "ROAPI", ENGINE),
        measure=partial(sending, AGGREGATE, 16),
        targets=[Target(metric="requests/s", against="ROAPI", at_least=1.3)],
    ),
    Row(
        name="repeated",
        title="repeated aggregate, 16 connections",
        subjects=(CACHED, "Querykeep", "ROAPI"),
        measure=partial(sending, REPEATED, 16),
        targets=[
            Target(of=CACHED, metric="requests/s", against="ROAPI", at_least=2.5),
            Target(of=CACHED, metric="requests/s", against="Querykeep", at_least=1.3),
        ],
    ),
    Row(
        name="json-100k",
        title="100,000 rows x 8 columns as JSON",
        subjects=PEERS,
        measure=partial(reading, 100_000, 3),
        targets=[Target(metric="s", against="ROAPI", at_most=round(1 / 3, 3))],
    ),
    Row(
        name="json-1m",
        title="1,000,000 rows x 8 columns as JSON",
        subjects=("Querykeep", "ROAPI"),
        measure=reading_million,
        targets=[
            Target(metric="s", against="ROAPI", at_most=0.4),
            Target(metric="peak PSS MB", against="ROAPI", at_most=1.3),
        ],
    ),
)
