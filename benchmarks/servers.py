"""What benchmarks share that start servers: a free port, and a server for the length of a block."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
KEY = "benchmark-key-of-no-worth-0123456789"
START_PATIENCE_S = 120.0


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str], scratch: Path, answers: Callable[[], bool]) -> Iterator[None]:
    """
    Run *command* for the length of the block, which begins when *answers* says yes.

    Raises:
        TimeoutError: It ended before, or does not answer; with what it said last.
    """
    # To a file as in production, and not to a terminal, which would be slower than any server.
    with (scratch / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_PATIENCE_S
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"{command[0]} does not answer: {(scratch / 'server.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_PATIENCE_S)
