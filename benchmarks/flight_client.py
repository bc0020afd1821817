"""
The ADBC client, in its own process: the driver does not free its memory, and an error in it can crash the process.

    python -m benchmarks.flight_client < TASK

A task is a JSON object, so that no key is in the process list: `uri`, `authorization` (may be empty), `wait_for`, and
either `read` and `times` or `ask` (a statement with `{}` for a number) and `seconds`.
"""

import itertools
import json
import sys
import time
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
from adbc_driver_flightsql import DatabaseOptions

#: Seconds from a server's first answer until its table must be ready.
PATIENCE_S = 60.0


def main() -> None:
    task = json.load(sys.stdin)
    settings = {DatabaseOptions.AUTHORIZATION_HEADER.value: task["authorization"]} if task["authorization"] else {}
    with adbc.connect(task["uri"], db_kwargs=settings, autocommit=True) as connection, connection.cursor() as cursor:
        await_table(cursor, task["wait_for"])
        found = (
            read(cursor, task["read"], task["times"]) if "read" in task else ask(cursor, task["ask"], task["seconds"])
        )
    json.dump(found, sys.stdout)


def await_table(cursor: Any, sql: str) -> None:
    """Wait until a statement succeeds."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            cursor.execute(sql)
            cursor.fetchall()
        except adbc.Error:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def read(cursor: Any, sql: str, times: int) -> dict[str, Any]:
    """Read a whole result several times, freeing it each time."""
    taken, rows = [], 0
    for _ in range(times):
        began = time.perf_counter()
        cursor.execute(sql)
        table = cursor.fetch_arrow_table()
        taken.append(time.perf_counter() - began)
        rows = table.num_rows
        del table
    return {"seconds": taken, "rows": rows}


def ask(cursor: Any, sql: str, seconds: float) -> dict[str, Any]:
    """Send small statements in sequence, each with a different number, after a warm-up of a quarter of the time."""
    taken = []
    began = time.perf_counter()
    warm, end = began + seconds / 4, began + seconds * 5 / 4
    for number in itertools.count(1):
        if (began := time.perf_counter()) > end:
            break
        cursor.execute(sql.replace("{}", str(number)))
        cursor.fetchall()
        if began > warm:
            taken.append(time.perf_counter() - began)
    return {"seconds": taken}


if __name__ == "__main__":
    main()
