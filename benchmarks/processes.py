"""Processes that are measured: started, watched with all that they start, and stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PATIENCE_S = 300.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class NotReadyError(Exception):
    """A program ended before it answered, or does not answer; with what it said last."""


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(
    command: Sequence[str | Path], environment: Mapping[str, str], log: Path, is_ready: Callable[[], bool]
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """
    Run *command* for the length of the block, which begins when *is_ready* says yes.

    What the program writes goes to the file *log* as in production, and not to a terminal, which would be slower than
    any server. The block gets the process and the seconds from start to ready.

    Raises:
        NotReadyError: It ended before, or is not ready within five minutes.
    """
    with log.open("wb") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env={**os.environ, **environment}, stdout=output, stderr=output
        )
    try:
        while not is_ready():
            ended, waited_s = process.poll() is not None, time.monotonic() - began
            if ended or waited_s > PATIENCE_S:
                what = f"ended with {process.returncode}" if ended else f"is not ready after {waited_s:.0f} s"
                said = log.read_text(errors="replace").strip()
                raise NotReadyError(f"{Path(command[0]).name} {what}: {said[-1500:]}")
            time.sleep(max(0.02, waited_s / 50))  # to the nearest fiftieth: who asks takes from who starts
        yield process, time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def family(pid: int) -> Iterator[int]:
    """Yield *pid* and every process below it that lives now."""
    yield pid
    try:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from family(int(child))
    except (FileNotFoundError, ProcessLookupError):
        return


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU time, of user and system, that *pid* and the processes below it have used."""
    return sum(_cpu_ticks(member) for member in family(pid)) / _TICKS_PER_S


def pss_bytes(pid: int) -> int:
    """Return the memory of *pid* and the processes below it; a page that several of them share counts once."""
    return sum(_pss_kib(member) for member in family(pid)) * 1024


@contextmanager
def peak_pss(pid: int, interval_s: float = 0.05) -> Iterator[Callable[[], int]]:
    """Watch the memory of *pid* and the processes below it; the block gets a function for the peak so far."""
    peak = pss_bytes(pid)
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(interval_s):
            peak = max(peak, pss_bytes(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: peak
    finally:
        over.set()
        watcher.join()


def command(pid: int) -> str:
    """Return the command line of a process; nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def start_time(pid: int) -> str:
    """Return when a process began, in the system's unit; nothing when it has ended."""
    fields = _stat(pid)
    return "" if not fields or fields[0] == "Z" else fields[19]


def _cpu_ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def _stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` that follow the name, nothing when it has ended (proc(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _pss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
