"""Start, observe and stop the measured processes, including their children."""

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
    """A program ended before it was ready, or did not become ready. The message includes its last output."""


def free_port() -> int:
    """Return a free port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(
    command: Sequence[str | Path], environment: Mapping[str, str], log: Path, is_ready: Callable[[], bool]
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """
    Run *command* for the duration of the block, which starts when *is_ready* returns True.

    The program's output goes to the file *log*: a terminal would be slower than any server. The block gets the process
    and the seconds from start to ready.

    Raises:
        NotReadyError: The program ended, or is not ready within five minutes.
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
            time.sleep(max(0.02, waited_s / 50))  # an error of 2 %: frequent checks would slow the start
        yield process, time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def family(pid: int) -> Iterator[int]:
    """Yield *pid* and all its current descendants."""
    yield pid
    try:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from family(int(child))
    except (FileNotFoundError, ProcessLookupError):
        return


def cpu_s(pid: int) -> float:
    """Return the user and system CPU time of *pid* and its descendants in seconds."""
    return sum(_cpu_ticks(member) for member in family(pid)) / _TICKS_PER_S


def pss_bytes(pid: int) -> int:
    """Return the memory of *pid* and its descendants (PSS: shared pages count once)."""
    return sum(_pss_kib(member) for member in family(pid)) * 1024


@contextmanager
def peak_pss(pid: int, interval_s: float = 0.05) -> Iterator[Callable[[], int]]:
    """Sample the memory of *pid* and its descendants; the block gets a function that returns the peak so far."""
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
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks; empty if it has ended."""
    fields = _stat(pid)
    return "" if not fields or fields[0] == "Z" else fields[19]


def _cpu_ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def _stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` after the name (proc(5)); none if the process has ended."""
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
