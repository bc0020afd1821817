"""
What it costs to be watched: the same load on a runtime that tells everything, and on one that tells nothing.

    python -m benchmarks.watched --rounds 10 --seconds 4

Both run all the time, and take turns under load, so that whatever else the machine does meets both. Requests a second
are what a caller sees; processor time for each request says the same with less noise.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.load import Statement
from benchmarks.processes import free_port
from benchmarks.rows.statements import SELECT_1
from benchmarks.samples import ratio
from benchmarks.subjects import Running, Subject, querykeep
from benchmarks.tables import Tables

ITEMS = "items_100000"
POINT = Statement(f"SELECT * FROM {ITEMS} WHERE id = {{}}", lowest=0, count=100_000)


def main() -> None:
    options = _parser().parse_args()
    port = free_port()
    everything = {
        "metrics": {"enabled": True, "bind": f"127.0.0.1:{port}"},
        "history": {"enabled": True, "sql": True},
    }
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        scratch = Path(directory)
        tables = Tables(options.tables or scratch / "tables")
        started = [
            stack.enter_context(subject.running(scratch, tables, (ITEMS,)))
            for subject in (_subject("on", everything), _subject("off", {"history": {"enabled": False}}))
        ]
        for statement in (SELECT_1, POINT):
            print(f"{statement.sql}, {options.connections} connections, {options.rounds} rounds:")
            rates, costs = _take_turns(started, statement, options)
            for name, (on, off) in {"requests/s": rates, "CPU us/request": costs}.items():
                found = ratio(on, off)
                print(f"  {name:15} on {statistics.median(on):8.1f}  off {statistics.median(off):8.1f}", end="  ")
                paired = statistics.median(mine / other for mine, other in zip(on, off, strict=True))
                print(f"on/off {found.value:.4f} ({found.low:.3f} to {found.high:.3f}), of rounds {paired:.4f}")
        print(_scrapes(port))


def _take_turns(started: Sequence[Running], statement: Statement, options: argparse.Namespace) -> tuple[Any, Any]:
    """Return requests a second, and processor time of a request in microseconds, each of both runtimes by round."""
    rates: tuple[list[float], list[float]] = ([], [])
    costs: tuple[list[float], list[float]] = ([], [])
    for running in started:
        running.warm_up(statement)
    for number in range(options.rounds):
        for index in (0, 1) if number % 2 else (1, 0):
            before_s = started[index].cpu_s()
            found = started[index].send(statement, options.connections, options.seconds)
            if found.errors:
                raise SystemExit(f"{found.errors} errors")
            rates[index].append(found.per_s)
            costs[index].append((started[index].cpu_s() - before_s) / found.requests * 1e6)
    return rates, costs


def _scrapes(port: int) -> str:
    seconds = []
    for _ in range(200):
        began = time.perf_counter()
        httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).raise_for_status()
        seconds.append(time.perf_counter() - began)
    return f"scrape: p50 {statistics.median(seconds) * 1000:.1f} ms, p99 {sorted(seconds)[197] * 1000:.1f} ms"


def _subject(name: str, runtime: dict[str, Any]) -> Subject:
    return querykeep(name, runtime=runtime)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.watched", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load in each round")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--tables", type=Path, help="directory that keeps the data for the next run")
    return parser


if __name__ == "__main__":
    main()
