"""
Measure the cost of monitoring: the same load on a runtime that reports everything, and on one that reports nothing.

    python -m benchmarks.watched cost --pairs 8 --rounds 6 --seconds 1

Both run at once and take turns under load, so other work on the machine affects both equally. Two instances of the same
runtime can differ by several per cent for as long as they run, so each pair is new, and the report shows the mean over
the pairs with its 95 % confidence interval. Callers notice the requests per second. The CPU time per request has less
noise, and the CPU time of single processes hardly any, so it shows the cost of `watch` and of the reports from `web`.
It does not include the idle time of the runtime that waits for its turn, although this runtime slows the other one.

Then runtimes that export every request to a collector that is silent, down or slow take turns with one whose collector
responds. Finally, the metrics of a runtime with many datasets and keys are scraped.
"""

import argparse
import math
import socket
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from benchmarks import processes
from benchmarks.load import Load, Statement
from benchmarks.processes import free_port
from benchmarks.rows.statements import SELECT_1
from benchmarks.subjects import KEY, Running, querykeep
from benchmarks.tables import Copies, Tables

ITEMS = "items_100000"
_BETWEEN_SCRAPES_S = 0.1
POINT = Statement(f"SELECT * FROM {ITEMS} WHERE id = {{}}", lowest=0, count=100_000)
_SHOWN = ("cost", "collectors", "page")
#: How long the slow collector takes for each answer; the runtime waits for up to 10 s.
_SLOW_S = 5.0

_CPU = "CPU us/request"
_PARTS = ("web", "watch", "engine", "flight", "refresh")
#: Student's t for a 95 % confidence interval of the mean of eight; a little too wide for more.
_STUDENT = 2.36

#: What was measured of a runtime, by the name of the metric.
Figures = Mapping[str, float]


def main() -> None:
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        scratch = Path(directory)
        tables = Tables(options.tables or scratch / "tables")
        if "cost" in options.shown:
            metrics = {"metrics": {"enabled": True, "bind": f"127.0.0.1:{free_port()}"}}
            everything = {**metrics, "history": {"enabled": True, "sql": True}}
            _compare({"off": {"history": {"enabled": False}}, "on": everything}, scratch, tables, options)
        if "collectors" in options.shown:
            ports = {
                "answers": stack.enter_context(_collector(0)),
                "silent": stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1],
                "down": free_port(),
                "slow": stack.enter_context(_collector(_SLOW_S)),
            }
            endpoints = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
            traces = {name: {"traces": {"endpoint": url, "sample": 1.0}} for name, url in endpoints.items()}
            _compare(traces, scratch, tables, options)
        if "page" in options.shown:
            print(_scrapes(scratch / "page", options.many))


def _compare(
    runtimes: Mapping[str, dict[str, Any]], scratch: Path, tables: Tables, options: argparse.Namespace
) -> None:
    """Print the cost of each of *runtimes*, by name, relative to the first."""
    found: dict[str, list[Mapping[str, Figures]]] = defaultdict(list)
    for _ in range(options.pairs):
        with ExitStack() as stack:
            started = {
                name: stack.enter_context(querykeep(name, runtime=runtime).running(scratch, tables, (ITEMS,)))
                for name, runtime in runtimes.items()
            }
            for statement in (SELECT_1, POINT):
                found[statement.sql].append(_take_turns(started, statement, options))
    first, *others = runtimes
    for sql, pairs in found.items():
        print(f"{sql}, {options.connections} connections, {options.pairs} times {options.rounds} rounds:")
        for metric, name in product(pairs[0][first], others):
            base, mine = ([pair[one][metric] for pair in pairs] for one in (first, name))
            # The time of a part is compared with that of all.
            whole = [pair[first][_CPU if metric.startswith(_CPU) else metric] for pair in pairs]
            change = [(one - other) / of * 100 for one, other, of in zip(mine, base, whole, strict=True)]
            error = _STUDENT * statistics.stdev(change) / len(change) ** 0.5 if len(change) > 1 else math.nan
            print(
                f"  {metric:28} {name} {statistics.mean(mine):8.1f}  {first} {statistics.mean(base):8.1f}  "
                f"{statistics.mean(change):+6.2f} % ± {error:.2f}"
            )


def _take_turns(
    started: Mapping[str, Running], statement: Statement, options: argparse.Namespace
) -> Mapping[str, Figures]:
    """Return the figures of each runtime, by its name."""
    loads: dict[str, list[Load]] = {name: [] for name in started}
    cpu_s = {name: defaultdict[str, float](float) for name in started}
    for running in started.values():
        running.warm_up(statement)
    for number in range(options.rounds):
        for name in list(started)[:: 1 if number % 2 else -1]:
            before_s = _cpu_s(started[name].pid)
            load = started[name].send(statement, options.connections, options.seconds)
            if load.errors:
                raise SystemExit(f"{load.errors} errors")
            loads[name].append(load)
            for member, now_s in _cpu_s(started[name].pid).items():
                cpu_s[name][member[0]] += now_s - before_s.get(member, now_s)
    return {
        name: {
            "requests/s": statistics.mean(load.per_s for load in turns),
            "p99 ms": statistics.median(load.p99_ms for load in turns),
            _CPU: sum(cpu_s[name].values()) / sum(load.requests for load in turns) * 1e6,
            **{f"{_CPU} of {part}": cpu_s[name][part] / sum(load.requests for load in turns) * 1e6 for part in _PARTS},
        }
        for name, turns in loads.items()
    }


def _cpu_s(pid: int) -> Mapping[tuple[str, int], float]:
    """Return the CPU time so far of each process of the runtime whose supervisor is *pid*, by its part and number."""
    found = defaultdict[tuple[str, int], float](float)
    for member in processes.family(pid):
        part = next((part for part in _PARTS if f" run{part} " in processes.command(member)), "others")
        for thread in Path(f"/proc/{member}/task").glob("*/schedstat"):  # in nanoseconds; `stat` is in ticks of 10 ms
            with suppress(OSError):
                found[part, member] += int(thread.read_text().split()[0]) / 1e9
    return found


@contextmanager
def _collector(delay_s: float) -> Iterator[int]:
    """A trace collector that accepts everything after *delay_s*. Yields its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(delay_s)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def _scrapes(scratch: Path, many: int) -> str:
    """Scrape the metrics of a runtime with *many* datasets and keys, each of which has sent a statement."""
    port = free_port()
    keys = [KEY, *(f"another-key-of-no-worth-{number:012}" for number in range(many - 1))]
    named = [
        {"name": f"key-{number}", "key": key, "expires": "2036-01-01T00:00:00Z"} for number, key in enumerate(keys)
    ]
    auth = {"api-key": {"enabled": True, "named_keys": named}}
    subject = querykeep("page", runtime={"auth": auth, "metrics": {"enabled": True, "bind": f"127.0.0.1:{port}"}})
    names = tuple(f"copy_{number}" for number in range(many))
    copies = Copies(scratch / "tables")
    with subject.running(scratch, copies, names) as running, httpx.Client(trust_env=False) as client:
        for key in keys:
            client.post(running.http.url, content="SELECT 1", headers={"X-API-Key": key}).raise_for_status()
        seconds = []
        for _ in range(200):
            time.sleep(_BETWEEN_SCRAPES_S)
            began = time.perf_counter()
            page = client.get(f"http://127.0.0.1:{port}/metrics").raise_for_status().content
            seconds.append(time.perf_counter() - began)
    quantiles = f"p50 {statistics.median(seconds) * 1000:.1f} ms, p99 {sorted(seconds)[197] * 1000:.1f} ms"
    return f"scrape of {many} datasets and keys, {len(page):,} bytes: {quantiles}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.watched", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shown", nargs="*", default=_SHOWN, metavar="WHAT", help=f"any of {', '.join(_SHOWN)}")
    parser.add_argument("--pairs", type=int, default=8, help="fresh instances of all runtimes that are compared")
    parser.add_argument("--rounds", type=int, default=6, help="of each pair and statement")
    parser.add_argument("--seconds", type=float, default=1.0, help="of load in each round")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--many", type=int, default=1000, help="datasets and keys of the page that is scraped")
    parser.add_argument("--tables", type=Path, help="directory that keeps the data for the next run")
    return parser


if __name__ == "__main__":
    main()
