"""
An engine in a process of its own, with methods to start and observe it.

`python -m tests.queryengine.engine_process STATE_DIR SETTINGS`
"""

import json
import logging
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from queryengine.pool import gunicorn_worker
from queryengine.pool.arbiter import run_engine
from queryengine.pool.client import EngineClient
from queryengine.pool.gunicorn_worker import EngineWorker
from runtimeconf.model import DatasetConfig, QueryConfig, RuntimeConfig
from tests.queryengine.heartbeats import state_of
from tests.queryengine.publishing import wait_until

#: A test fails after this long; a slow machine does not.
LONG_S = 60.0

#: In the state directory: the code with which workers exit as soon as they start.
EXIT_CODE_FILE = "exit-code"


class FragileWorker(EngineWorker):
    """A worker that a test can make exit before it has booted."""

    def init_process(self) -> None:
        """Exit with the code in the file, if there is one."""
        path = Path(self.cfg.env_orig["STATE_DIR"]) / EXIT_CODE_FILE
        with suppress(FileNotFoundError):  # The test may delete it at any moment.
            os._exit(int(path.read_text()))
        super().init_process()


def config_of(state_dir: Path, *, shutdown_timeout_s: float = LONG_S, **limits: Any) -> RuntimeConfig:
    return RuntimeConfig(
        file=state_dir / "runtime.yaml",
        state_dir=state_dir,
        query=QueryConfig(**{"workers": 2, "max_queued": 64, "queue_timeout_s": LONG_S, "timeout_s": LONG_S, **limits}),
        shutdown_timeout_s=shutdown_timeout_s,
        datasets=(DatasetConfig(name="flights", from_="file:flights.csv", location="/flights.csv"),),
    )


class EngineProcess:
    """An engine in a process of its own."""

    def __init__(self, state_dir: Path, **settings: Any) -> None:
        self.state_dir = state_dir
        self._settings = settings
        self.log = state_dir / "engine.log"
        self.start()

    @property
    def config(self) -> RuntimeConfig:
        return config_of(self.state_dir, **self._settings)

    def start(self) -> None:
        command = [sys.executable, "-m", __name__, str(self.state_dir), json.dumps(self._settings)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "STATE_DIR": str(self.state_dir)}
            )
        self.pid = self._process.pid

    def client(self) -> EngineClient:
        """Return a client once all workers are alive. The caller closes it."""
        client = EngineClient(self.config)
        self.wait_until_whole(client)
        return client

    def wait_until_whole(self, client: EngineClient) -> None:
        """Wait until all workers serve and *client* knows it."""

        def is_whole() -> bool:
            # The client's status may be older than the end of a worker, so check the workers first.
            phases = [state_of(pid).phase for pid in self.workers()]
            return (
                len(phases) == client.status().workers_alive == self.config.query.workers
                and "booting" not in phases
                and "unfit" not in phases
            )

        wait_until(is_whole)

    def workers(self) -> set[int]:
        return set(map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()))

    def worker_of(self, query_id: str) -> int:
        """Wait until a worker runs the statement *query_id*; return its process id."""
        found: list[int] = []

        def is_running() -> bool:
            found[:] = [pid for pid in self.workers() if state_of(pid).runs(query_id)]
            return bool(found)

        wait_until(is_running)
        return found[0]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def limit_files(self, limit: int) -> None:
        """Limit the arbiter to descriptors below *limit*."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (limit, hard))

    def ended(self) -> int:
        """Wait for the end; return the exit code."""
        return self._process.wait(LONG_S)

    def close(self) -> None:
        """Stop it, if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self.ended()
        finally:
            self._process.kill()
            self._process.wait()


def main() -> None:
    state_dir, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    logging.basicConfig(level=logging.INFO)
    options = gunicorn_worker.options
    gunicorn_worker.options = lambda config: {**options(config), "worker_class": FragileWorker}
    run_engine(config_of(state_dir, **settings), several_keys=True)


if __name__ == "__main__":
    main()
