"""
Quack, the protocol of DuckDB's own server: the server, and a client that measures it.

    python benchmarks/floors/quack.py serve PORT NAME=PARQUET...
    python benchmarks/floors/quack.py ask < TASK

Both run in the virtual environment of the peers and import nothing of this project. A task is that of
`benchmarks.flight_client`, with the token as `authorization`.
"""

import itertools
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_httpfs  # type: ignore[import-not-found]  # it is in the environment of the peers
import duckdb_extension_quack  # type: ignore[import-not-found]  # as above

#: That of `benchmarks.subjects.KEY`.
TOKEN = "benchmark-key-of-no-worth-0123456789"  # noqa: S105 (opens a server on this machine while it is measured)


def connected() -> duckdb.DuckDBPyConnection:
    """Return a connection that has loaded the extension, whose signature DuckDB checks."""
    connection = duckdb.connect()
    for package in (duckdb_extension_httpfs, duckdb_extension_quack):
        directory = Path(package.__file__).parent / f"extensions/v{duckdb.__version__}"
        (extension,) = directory.glob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    return connection


def serve(port: str, *files: str) -> None:
    """Serve tables in memory until SIGTERM."""
    connection = connected()
    for file in files:
        name, path = file.split("=", 1)
        connection.execute(f"CREATE TABLE {name} AS FROM '{path}'")
    connection.execute(f"FROM quack_serve('quack:127.0.0.1:{port}', token := '{TOKEN}')")
    signal.sigwait([signal.SIGTERM, signal.SIGINT])


def ask(task: dict[str, Any]) -> dict[str, Any]:
    """Read a whole result several times, or send small statements in sequence after a warm-up."""
    connection = connected()
    connection.execute(f"ATTACH '{task['uri']}' AS server (TOKEN '{task['authorization']}')")

    def timed(sql: str, fetch: Callable[[Any], Any]) -> tuple[float, Any]:
        began = time.perf_counter()
        found = fetch(connection.execute("FROM server.query(?)", [sql]))
        return time.perf_counter() - began, found

    if "read" in task:
        reads = [timed(task["read"], lambda result: result.to_arrow_table().num_rows) for _ in range(task["times"])]
        return {"seconds": [seconds for seconds, _ in reads], "rows": reads[-1][1]}
    taken: list[float] = []
    warm = time.perf_counter() + task["seconds"] / 4
    for number in itertools.count(1):
        seconds, _ = timed(task["ask"].replace("{}", str(number)), lambda result: result.fetchall())
        if (now := time.perf_counter()) > warm:
            taken.append(seconds)
        if now > warm + task["seconds"]:
            break
    return {"seconds": taken}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        json.dump(ask(json.load(sys.stdin)), sys.stdout)
