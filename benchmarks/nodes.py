"""
Measure how many statements nodes that share snapshots run per second of CPU time: `python -m benchmarks.nodes`.

Each node has the same cores, regardless of the number of nodes. Clients and object storage run on any core. The object
storage is the one from the tests, so this needs requirements/test.txt.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.bench import rotated, say
from benchmarks.load import Load, Statement
from benchmarks.rows.statements import AGGREGATE, ITEMS, POINT
from benchmarks.subjects import Running, querykeep
from benchmarks.tables import Tables
from runtimeconf.model import SnapshotsConfig
from tests.nodes.storage_server import storage_process

_STATEMENTS = {"point": POINT, "aggregate": AGGREGATE}
_CONNECTIONS = 4  # to each node: more nodes are for more callers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description="Throughput per core of nodes.")
    most = min(3, len(os.sched_getaffinity(0)))
    parser.add_argument("--nodes", type=int, default=most, help="the most nodes, and shares (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of each load (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    options = parser.parse_args()
    counts = range(1, options.nodes + 1)
    cores = sorted(os.sched_getaffinity(0))
    shares = [cores[index :: options.nodes] or [cores[index % len(cores)]] for index in range(options.nodes)]
    samples: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        tables = Tables(Path(scratch) / "tables")
        for number in range(options.rounds):
            for count in rotated(counts, number):
                samples[count].append(_measure(shares[:count], Path(scratch), tables, options.seconds))
                say(f"{count} nodes: {samples[count][-1]}")
    if options.json:
        options.json.write_text(json.dumps(samples), encoding="utf-8")
    print(_table(samples))


def _measure(shares: Sequence[Sequence[int]], scratch: Path, tables: Tables, seconds: float) -> dict[str, float]:
    """Start a node on each of these sets of cores, and send each statement to all of them at once."""
    with ExitStack() as stack:
        shared, _ = stack.enter_context(storage_process())
        runtime = {"snapshots": _settings(shared.config()), "query": {"workers": 2}}
        nodes = []
        for share in shares:
            prefix = ["taskset", "--cpu-list", ",".join(map(str, share))]
            nodes.append(stack.enter_context(querykeep(runtime=runtime).running(scratch, tables, (ITEMS,), prefix)))
        began_s = sum(node.cpu_s() for node in nodes)
        time.sleep(seconds)
        found = {"idle % of a core": (sum(node.cpu_s() for node in nodes) - began_s) / seconds * 100}
        for name, statement in _STATEMENTS.items():
            loads, cpu_s = _send(nodes, statement, seconds)
            answers = sum(load.requests - load.errors for load in loads)
            found[f"{name} requests/s"] = sum(load.per_s for load in loads)
            found[f"{name} requests per CPU s"] = answers / cpu_s
            found[f"{name} errors"] = sum(load.errors for load in loads)
        return found


def _settings(shared: SnapshotsConfig) -> dict[str, object]:
    return {"location": shared.location, "role": "auto", "params": dict(shared.params)}


def _send(nodes: Sequence[Running], statement: Statement, seconds: float) -> tuple[list[Load], float]:
    """Return the load of each node, and the processor time of all."""
    for node in nodes:
        node.warm_up(statement)
    began_s = sum(node.cpu_s() for node in nodes)
    with ThreadPoolExecutor(len(nodes)) as pool:
        loads = list(pool.map(lambda node: node.send(statement, _CONNECTIONS, seconds), nodes))
    return loads, sum(node.cpu_s() for node in nodes) - began_s


def _table(samples: dict[int, list[dict[str, float]]]) -> str:
    """Return the medians as Markdown, with their ratios to those of one node."""
    names = list(samples[1][0])
    lines = [f"| nodes | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    base = {name: median(sample[name] for sample in samples[1]) for name in names}
    for count, taken in samples.items():
        middle = {name: median(sample[name] for sample in taken) for name in names}
        cells = [f"{middle[name]:.4g} ({middle[name] / base[name]:.2f})" if base[name] else "0" for name in names]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
