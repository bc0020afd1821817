"""
Whether each start and stop of `manage.py serve` leaves the machine as it was, and how long a start takes.

    python -m benchmarks.cycles [CYCLES]

Each cycle starts the runtime with one small dataset, waits until it is ready, sends a statement, stops it with SIGTERM,
and looks for what is left: processes that it had started, sockets and temporary files in its state directory, entries
of /dev/shm (whoever else makes some meanwhile is counted too), and its port. The exit code is 0 when nothing was left
and every cycle ended with 0.
"""

from __future__ import annotations

import argparse
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.servers import KEY, REPOSITORY, free_port

PATIENCE_S = 60.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (nothing is written there)

CONFIG = """\
runtime:
  auth:
    api-key:
      enabled: true
      keys: [{key}]
  http: {{bind: "127.0.0.1:{port}"}}
  flight: {{enabled: false}}
datasets:
  - from: file:small.csv
    name: small
    acceleration: {{enabled: true, refresh_mode: full}}
"""


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one start and stop took and left."""

    ready_s: float
    stop_s: float
    exit_code: int
    left: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cycles", type=int, nargs="?", default=100)
    options = parser.parse_args()
    done: list[Cycle] = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        port = free_port()
        (directory / "small.csv").write_text("a,b\n1,2\n")
        config = directory / "runtime.yaml"
        config.write_text(CONFIG.format(key=KEY, port=port))
        config.chmod(0o600)
        for number in range(options.cycles):
            cycle = _cycle(directory, port)
            done.append(cycle)
            print(
                f"cycle {number + 1}: ready after {cycle.ready_s:.2f} s, stopped after {cycle.stop_s:.2f} s with "
                f"{cycle.exit_code}, left: {', '.join(cycle.left) or 'nothing'}",
                flush=True,
            )
    left = Counter(name for cycle in done for name in cycle.left)
    codes = Counter(cycle.exit_code for cycle in done)
    print(f"start to ready  {statistics.median(cycle.ready_s for cycle in done):.2f} s (median)")
    print(f"stop            {statistics.median(cycle.stop_s for cycle in done):.2f} s (median)")
    print(f"exit codes      {', '.join(f'{code}: {count} times' for code, count in codes.items())}")
    print(f"left behind     {', '.join(left) or 'nothing'}")
    return int(bool(left) or set(codes) != {0})


def _cycle(directory: Path, port: int) -> Cycle:
    shared = _shared_memory()
    command = [sys.executable, str(REPOSITORY / "manage.py"), "serve", "--config", str(directory / "runtime.yaml")]
    with (directory / "server.log").open("ab") as log:
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)
        try:
            _wait_until_ready(process, port, directory / "server.log")
            ready_s = time.monotonic() - began
            answer = httpx.post(
                f"http://127.0.0.1:{port}/v1/sql", content="SELECT a FROM small", headers={"X-API-Key": KEY}
            )
            if answer.text != '[{"a":1}]':
                raise RuntimeError(f"a wrong answer: {answer.status_code} {answer.text}")
            # By its start time too: the system may give a number away again.
            members = {member: _start_time(member) for member in _family(process.pid)}
        finally:
            told = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code = process.wait(PATIENCE_S)
    stop_s = time.monotonic() - told
    processes = [f"process {member}" for member, start in members.items() if start and _start_time(member) == start]
    files = [f"file {path}" for path in _not_to_stay(directory / ".runtime")]
    memory = [str(SHARED_MEMORY / name) for name in sorted(_shared_memory() - shared)]
    ports = [f"port {port}"] if _is_taken(port) else []
    return Cycle(ready_s, stop_s, code, [*processes, *files, *memory, *ports])


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the runtime ended: {log.read_text()}")
        try:
            if httpx.get(f"http://127.0.0.1:{port}/v1/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise TimeoutError(f"the runtime is not ready: {log.read_text()}")


def _family(pid: int) -> Iterator[int]:
    """Yield *pid* and every process below it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))


def _start_time(pid: int) -> str:
    """Return when a process began, in the system's unit; nothing when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _not_to_stay(state_dir: Path) -> Iterator[str]:
    """Yield what a stop has to remove: sockets, spilled data, snapshots that are not published."""
    published = (state_dir / "manifest.json").read_text()
    for path in sorted(state_dir.rglob("*")):
        name = path.relative_to(state_dir)
        is_superseded = name.parts[0] == "snapshots" and path.is_file() and path.name not in published
        if path.is_socket() or (len(name.parts) > 1 and name.parts[0] != "snapshots") or is_superseded:
            yield str(name)


def _shared_memory() -> set[str]:
    return {path.name for path in SHARED_MEMORY.glob("*")}


if __name__ == "__main__":
    sys.exit(main())
