"""
How fast Flight SQL gives rows, and how soon: this runtime beside a compiled peer, by the same client, in one run.

    python -m benchmarks.flight [--roapi PATH]

ADBC reads a table of 5 million rows x 5 columns (about 200 MB as Arrow), then sends `SELECT 1` again and again. The
contestants run one at a time and take turns, so that a busy machine slows all of them; each result is the median of the
rounds, and what counts are the ratios. The peer is ROAPI (Rust, DataFusion) with the table in memory. Both check a key.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import duckdb
import httpx
from adbc_driver_flightsql import DatabaseOptions

from benchmarks.servers import KEY, REPOSITORY, free_port, running

#: The aims: rows a second at least, the median of SELECT 1 at most, both times the peer's.
LEAST_ROWS, MOST_LATENCY = 1.2, 1.8

TABLE = """
    SELECT i AS id, (i % 1000)::INTEGER AS k, i / 7.0::DOUBLE AS x, 'item ' || (i % 100000) AS s,
           TIMESTAMP '2024-01-01' + to_seconds(i) AS t
    FROM range({rows}) t(i)
"""


@dataclass(frozen=True, slots=True)
class Contestant:
    """How to start a server, and where it speaks Flight SQL; `datasets` is where it says whether it still loads."""

    name: str
    command: Sequence[str]
    port: int
    datasets: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one contestant did in one round."""

    rows_per_s: float
    first_rows_per_s: float  # of the first read after the start
    megabytes_per_s: float
    select_1_p50_ms: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roapi", default=shutil.which("roapi"), help="the ROAPI program (default: from PATH)")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reads", type=int, default=3, help="of the whole table in one turn; the best counts")
    parser.add_argument("--statements", type=int, default=500, help="SELECT 1 in one turn")
    parser.add_argument("--workers", type=int, default=4, help="engine workers of this runtime")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        with duckdb.connect() as engine:
            engine.execute(f"COPY ({TABLE.format(rows=options.rows)}) TO '{scratch}/big.parquet' (FORMAT parquet)")
        contestants = list(_contestants(Path(scratch), options.roapi, options.workers))
        turns: dict[str, list[Turn]] = {contestant.name: [] for contestant in contestants}
        for round_ in range(options.rounds):
            for contestant in contestants[round_ % len(contestants) :] + contestants[: round_ % len(contestants)]:
                with running(contestant.command, Path(scratch), partial(_answers, contestant)):
                    turn = _measure(contestant, options.rows, options.reads, options.statements)
                turns[contestant.name].append(turn)
                print(f"round {round_ + 1} {contestant.name:6} {turn}", flush=True)
    return _report(turns)


def _contestants(scratch: Path, roapi: str | None, workers: int) -> Iterator[Contestant]:
    ours = {"http": free_port(), "flight": free_port()}
    config = scratch / "runtime.yaml"
    config.write_text(
        json.dumps(  # JSON is YAML
            {
                "runtime": {
                    "auth": {"api-key": {"enabled": True, "keys": [KEY]}},
                    "http": {"bind": f"127.0.0.1:{ours['http']}"},
                    "flight": {"bind": f"127.0.0.1:{ours['flight']}"},
                    "query": {"workers": workers},
                },
                "datasets": [{"from": "file:big.parquet", "name": "big"}],
            }
        )
    )
    config.chmod(0o600)
    serve = [sys.executable, str(REPOSITORY / "manage.py"), "serve", "--config", str(config)]
    yield Contestant("ours", serve, ours["flight"], f"http://127.0.0.1:{ours['http']}/v1/datasets")
    if roapi:
        peer = free_port()
        settings = {
            "addr": {
                "http": f"127.0.0.1:{free_port()}",
                "postgres": f"127.0.0.1:{free_port()}",
                "flight_sql": f"127.0.0.1:{peer}",
            },
            "tables": [
                {
                    "name": "big",
                    "uri": str(scratch / "big.parquet"),
                    "option": {"format": "parquet", "use_memory_table": True},
                }
            ],
            "flight_sql_config": {"auth_token": KEY},
        }
        file = scratch / "roapi.yml"
        file.write_text(json.dumps(settings))
        yield Contestant("ROAPI", [roapi, "-c", str(file)], peer)


def _connect(contestant: Contestant) -> adbc.Connection:
    settings = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {KEY}"}
    return adbc.connect(f"grpc://127.0.0.1:{contestant.port}", db_kwargs=settings, autocommit=True)


def _answers(contestant: Contestant) -> bool:
    try:
        with _connect(contestant) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM big")
            return cursor.fetchone() is not None and _has_loaded(contestant)
    except adbc.Error:
        return False


def _has_loaded(contestant: Contestant) -> bool:
    """Whether nothing loads beside what is measured: a runtime that starts again answers before it has loaded anew."""
    if not contestant.datasets:
        return True
    datasets = httpx.get(contestant.datasets, headers={"X-API-Key": KEY}, trust_env=False).json()
    return all(dataset["status"] == "Ready" for dataset in datasets)


def _measure(contestant: Contestant, rows: int, reads: int, statements: int) -> Turn:
    read_s = []
    size = 0
    answer_s = []
    with _connect(contestant) as connection, connection.cursor() as cursor:
        for _ in range(reads):
            started = time.perf_counter()
            cursor.execute("SELECT * FROM big")
            table = cursor.fetch_arrow_table()
            read_s.append(time.perf_counter() - started)
            if table.num_rows != rows:
                raise ValueError(f"{contestant.name} gave {table.num_rows} rows")
            size = table.nbytes
            del table
        for _ in range(statements + statements // 10):
            started = time.perf_counter()
            cursor.execute("SELECT 1")
            cursor.fetchall()
            answer_s.append(time.perf_counter() - started)
    best = min(read_s)
    return Turn(
        rows_per_s=round(rows / best),
        first_rows_per_s=round(rows / read_s[0]),
        megabytes_per_s=round(size / best / 1e6, 1),
        select_1_p50_ms=round(statistics.median(answer_s[statements // 10 :]) * 1e3, 3),  # the first ones warm up
    )


def _report(turns: dict[str, list[Turn]]) -> int:
    rows = {name: statistics.median(turn.rows_per_s for turn in found) for name, found in turns.items()}
    first = {name: statistics.median(turn.first_rows_per_s for turn in found) for name, found in turns.items()}
    p50 = {name: statistics.median(turn.select_1_p50_ms for turn in found) for name, found in turns.items()}
    for name in turns:
        print(
            f"{name:6} {rows[name] / 1e6:6.2f} million rows/s ({first[name] / 1e6:.2f} when first read), "
            f"SELECT 1 p50 {p50[name]:.2f} ms"
        )
    if "ROAPI" not in turns:
        return 0
    faster, slower = rows["ours"] / rows["ROAPI"], p50["ours"] / p50["ROAPI"]
    print(f"rows/s: {faster:.2f} x ROAPI (aim: at least {LEAST_ROWS}), on {len(os.sched_getaffinity(0))} cores")
    print(f"SELECT 1 p50: {slower:.2f} x ROAPI (aim: at most {MOST_LATENCY})")
    return 0 if faster >= LEAST_ROWS and slower <= MOST_LATENCY else 1


if __name__ == "__main__":
    sys.exit(main())
