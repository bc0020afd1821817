"""Arrow Flight SQL through ADBC, and DuckDB's own protocol: large tables, and small statements."""

import json
import statistics
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import Row, Stage
from benchmarks.load import AnswerError
from benchmarks.processes import REPOSITORY
from benchmarks.samples import Target
from benchmarks.subjects import FlightEndpoint, Running, memory_flight, quack, querykeep, roapi, sail

BIG, BIG_ROWS = "big_5000000", 5_000_000
ITEMS, ITEMS_ROWS = "items_1000000", 1_000_000
READS = 3
#: The client also sends for a quarter of the time as a warm-up.
_WITH_WARM_UP = 1.25


def stage(peers: Path) -> Stage:
    """Return the rows and their subjects."""
    subjects = [querykeep(), roapi(peers), sail(peers), quack(peers), memory_flight()]
    names = [subject.name for subject in subjects]
    servers_of_sql = ("Querykeep", "ROAPI", "Quack")
    return Stage(
        tables=(BIG, ITEMS),
        subjects=subjects,
        rows=[
            Row(
                name="flight-rows",
                title="Flight SQL: 5,000,000 rows x 5 columns",
                subjects=names,
                measure=partial(reading, BIG, BIG_ROWS),
                targets=[
                    Target(metric="million rows/s", against="ROAPI", at_least=1.3),
                    Target(metric="million rows/s", against="pyarrow.flight", at_least=0.8),
                ],
            ),
            Row(
                name="flight-1m",
                title="Flight SQL: 1,000,000 rows x 8 columns",
                subjects=servers_of_sql,
                measure=partial(reading, ITEMS, ITEMS_ROWS),
                targets=[
                    Target(metric="s", against="ROAPI", at_most=0.9),
                    Target(metric="s", against="Quack", at_most=1),
                ],
            ),
            Row(
                name="flight-select-1",
                title="Flight SQL: `SELECT <number>`",
                subjects=names,
                measure=partial(asking, "SELECT {}"),
                targets=[
                    Target(metric="p50 ms", against="ROAPI", at_most=1.2),
                    Target(metric="p50 ms", against="Quack", at_most=1),
                    Target(metric="CPU s per 1,000", at_most=2.0),
                ],
            ),
            Row(
                name="flight-point",
                title="Flight SQL: one of 1,000,000 rows by id",
                subjects=servers_of_sql,
                measure=partial(asking, f"SELECT * FROM {ITEMS} WHERE id = {{}}"),
            ),
        ],
    )


def reading(table: str, rows: int, running: Running, _seconds: float) -> dict[str, float]:
    """
    Read the whole table several times: the best and the first time.

    Raises:
        AnswerError: The number of rows is wrong, or the client fails.
    """
    name = running.flight.table.format(table)
    found = _client(running.flight, {"read": f"SELECT * FROM {name}", "times": READS})
    if found["rows"] != rows:
        raise AnswerError(f"{found['rows']} rows instead of {rows}")
    taken = found["seconds"]
    return {"s": min(taken), "million rows/s": rows / min(taken) / 1e6, "when first read": rows / taken[0] / 1e6}


def asking(sql: str, running: Running, seconds: float) -> dict[str, float]:
    """
    Send small statements in sequence on one connection, each with a different number.

    Raises:
        AnswerError: The client fails.
    """
    before_s = running.cpu_s()
    taken = sorted(_client(running.flight, {"ask": sql, "seconds": seconds})["seconds"])
    cpu_s = running.cpu_s() - before_s
    return {
        "p50 ms": statistics.median(taken) * 1e3,
        "p99 ms": taken[len(taken) * 99 // 100] * 1e3,
        "CPU s per 1,000": cpu_s / (len(taken) * _WITH_WARM_UP) * 1000,
    }


def _client(endpoint: FlightEndpoint, task: Mapping[str, Any]) -> dict[str, Any]:
    table = endpoint.table.format(BIG)
    asked = {
        "uri": endpoint.uri,
        "authorization": endpoint.headers.get("authorization", ""),
        "wait_for": f"SELECT count(id) FROM {table}",
        **task,
    }
    done = subprocess.run(
        endpoint.client,
        cwd=REPOSITORY,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AnswerError(f"the client failed: {done.stderr.strip()[-400:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
