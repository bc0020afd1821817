"""
How many small statements a second: this runtime beside a compiled peer and beside a bare view, in one run.

    python -m benchmarks.throughput [--roapi PATH]

`SELECT <unique number>` from wrk with 16 connections. The contestants run one at a time and take turns, so that a busy
machine slows all of them; each result is the median of the rounds, and what counts are the ratios. The peer is ROAPI
(Rust, DataFusion), which checks no key; ours does. The bare view is Django, DRF, gunicorn and gevent without an engine:
what it answers more is what authentication, gate, engine and encoders cost.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from benchmarks.servers import KEY, REPOSITORY, free_port, running

CONNECTIONS = 16

CONFIG = """\
runtime:
  auth:
    api-key:
      enabled: true
      keys: [{key}]
  http: {{bind: "127.0.0.1:{port}"}}
  flight: {{enabled: false}}
  query: {{workers: {workers}}}
"""


@dataclass(frozen=True, slots=True)
class Contestant:
    """How to start a server, and where it answers statements."""

    name: str
    command: Sequence[str]
    url: str
    headers: Mapping[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roapi", default=shutil.which("roapi"), help="the ROAPI program (default: from PATH)")
    parser.add_argument("--seconds", type=int, default=5, help="of one turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4, help="engine workers of this runtime")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.stderr.write("wrk is needed: apt-get install wrk\n")
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        contestants = list(_contestants(Path(scratch), options.roapi, options.workers))
        rates: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
        for turn in range(options.rounds):
            for contestant in contestants[turn % len(contestants) :] + contestants[: turn % len(contestants)]:
                with running(contestant.command, Path(scratch), partial(_answers, contestant)):
                    _measure(contestant, 1)
                    found = _measure(contestant, options.seconds)
                rates[contestant.name].append(found["requests"] / found["seconds"])
                print(f"round {turn + 1} {contestant.name:10} {found}", flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        others = ", ".join(f"{rate / other:.2f} x {that}" for that, other in medians.items() if that != name)
        print(f"{name:10} {rate:8.0f} requests/s   {others}")
    return 0


def _contestants(scratch: Path, roapi: str | None, workers: int) -> Iterator[Contestant]:
    ours, bare, peer = free_port(), free_port(), free_port()
    config = scratch / "runtime.yaml"
    config.write_text(CONFIG.format(key=KEY, port=ours, workers=workers))
    config.chmod(0o600)
    yield Contestant(
        "ours",
        [sys.executable, str(REPOSITORY / "manage.py"), "serve", "--config", str(config)],
        f"http://127.0.0.1:{ours}/v1/sql",
        {"X-API-Key": KEY},
    )
    gunicorn = [sys.executable, "-m", "gunicorn", "--config", os.devnull, "--worker-class", "gevent"]
    cores = str(len(os.sched_getaffinity(0)))
    yield Contestant(
        "bare view",
        [*gunicorn, "--workers", cores, "--bind", f"127.0.0.1:{bare}", "benchmarks.bare_view:application"],
        f"http://127.0.0.1:{bare}/v1/sql",
        {},
    )
    if roapi:
        table = scratch / "small.csv"
        table.write_text("a,b\n1,2\n")
        settings = {
            "addr": {"http": f"127.0.0.1:{peer}", "postgres": f"127.0.0.1:{free_port()}"},
            "tables": [{"name": "small", "uri": str(table)}],
        }
        file = scratch / "roapi.yml"
        file.write_text(json.dumps(settings))  # JSON is YAML
        yield Contestant("ROAPI", [roapi, "-c", str(file)], f"http://127.0.0.1:{peer}/api/sql", {})


def _answers(contestant: Contestant) -> bool:
    try:
        return httpx.post(contestant.url, content="SELECT 1", headers=contestant.headers).status_code == 200
    except httpx.TransportError:
        return False


def _measure(contestant: Contestant, seconds: int) -> dict[str, float]:
    headers = [part for name, value in contestant.headers.items() for part in ("-H", f"{name}: {value}")]
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(REPOSITORY / "benchmarks/select.lua")]
    printed = subprocess.run([*command, *headers, contestant.url], check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
