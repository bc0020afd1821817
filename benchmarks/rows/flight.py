"""Arrow Flight SQL by ADBC: a large table, and small statements."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
from adbc_driver_flightsql import DatabaseOptions

from benchmarks.bench import Row, Stage
from benchmarks.load import AnswerError
from benchmarks.processes import NotReadyError
from benchmarks.samples import Target
from benchmarks.subjects import FlightEndpoint, Running, latchkey, memory_flight, roapi, sail

ROWS = 5_000_000
BIG = f"big_{ROWS}"
READS = 3
#: How long a server may take from its first answer to having its table.
_PATIENCE_S = 60.0


def stage(peers: Path) -> Stage:
    """Return the rows and whom they compare."""
    subjects = [latchkey(), roapi(peers), sail(peers), memory_flight()]
    names = [subject.name for subject in subjects]
    return Stage(
        tables=(BIG,),
        subjects=subjects,
        rows=[
            Row(
                name="flight-rows",
                title="Flight SQL: 5,000,000 rows x 5 columns by ADBC",
                subjects=names,
                measure=reading,
                targets=[
                    Target(metric="million rows/s", against="ROAPI", at_least=1.3),
                    Target(metric="million rows/s", against="pyarrow.flight", at_least=0.8),
                ],
            ),
            Row(
                name="flight-select-1",
                title="Flight SQL: `SELECT <number>`, one after the other",
                subjects=names,
                measure=asking,
                targets=[Target(metric="p50 ms", against="ROAPI", at_most=1.5)],
            ),
        ],
    )


def reading(running: Running, _seconds: float) -> dict[str, float]:
    """Read the whole table some times: the best of them, and the first."""
    taken = []
    with _cursor(running.flight) as cursor:
        _await_table(cursor, running.flight)
        for _ in range(READS):
            began = time.perf_counter()
            cursor.execute(f"SELECT * FROM {running.flight.table.format(BIG)}")
            table = cursor.fetch_arrow_table()
            taken.append(time.perf_counter() - began)
            if table.num_rows != ROWS:
                raise AnswerError(f"{table.num_rows} rows instead of {ROWS}")
            del table
    return {"million rows/s": ROWS / min(taken) / 1e6, "when first read": ROWS / taken[0] / 1e6}


def asking(running: Running, seconds: float) -> dict[str, float]:
    """Send small statements one after the other on one connection, each with another number."""
    taken = []
    with _cursor(running.flight) as cursor:
        warm, end = time.perf_counter() + seconds / 4, time.perf_counter() + seconds * 5 / 4
        number = time.time_ns() // 1_000_000
        while (began := time.perf_counter()) < end:
            number += 1
            cursor.execute(f"SELECT {number}")
            cursor.fetchall()
            if began > warm:
                taken.append(time.perf_counter() - began)
    taken.sort()
    return {"p50 ms": statistics.median(taken) * 1e3, "p99 ms": taken[len(taken) * 99 // 100] * 1e3}


@contextmanager
def _cursor(endpoint: FlightEndpoint) -> Iterator[Any]:
    settings = {}
    if "authorization" in endpoint.headers:
        settings[DatabaseOptions.AUTHORIZATION_HEADER.value] = endpoint.headers["authorization"]
    with adbc.connect(endpoint.uri, db_kwargs=settings, autocommit=True) as connection, connection.cursor() as cursor:
        yield cursor


def _await_table(cursor: Any, endpoint: FlightEndpoint) -> None:
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            cursor.execute(f"SELECT count(*) FROM {endpoint.table.format(BIG)}")
            cursor.fetchall()
        except adbc.Error as error:
            if time.monotonic() > end:
                raise NotReadyError(f"no table: {error}") from error
            time.sleep(0.1)
        else:
            return
