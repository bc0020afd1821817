"""Apache Spark: a master, two workers and a Spark Connect server, from the directory in SPARK_HOME."""

import os
import signal
import subprocess
from pathlib import Path

from tests.cluster.clusters import Sail, is_open
from tests.queryengine.publishing import wait_until
from tests.system.harness import free_port

TOKEN = "token-Zq8vT3mN6bX9cL2pR5sW7yD0fG4h"

_START_S = 180.0
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


class Spark(Sail):
    """A cluster of Spark that asks for `TOKEN`. Its processes are those of one session of the system."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        super().__init__(directory)
        self._home = Path(os.environ["SPARK_HOME"])
        self._directory = directory
        self._workers = workers
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start everything, and wait until Spark Connect listens."""
        master = free_port()
        address = ["--host", "127.0.0.1", "--webui-port", "0"]
        deploy = "org.apache.spark.deploy"
        self._spark("spark-class", f"{deploy}.master.Master", "--port", str(master), *address)
        wait_until(lambda: is_open(master), within_s=_START_S)
        url = f"spark://127.0.0.1:{master}"
        for _ in range(self._workers):
            self._spark("spark-class", f"{deploy}.worker.Worker", *address, "--cores", "1", "--memory", "2g", url)
        settings = {
            "spark.executor.memory": "1g",
            "spark.executor.cores": "1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.authenticate.token": TOKEN,
        }
        listed = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        self._spark(
            "spark-submit", "--class", _CONNECT, "--master", url, "--driver-memory", "1g", *listed, "spark-internal"
        )
        self.process = self._started[-1]
        wait_until(self._listens, within_s=_START_S)

    def executors(self) -> list[int]:
        """Return the processes that compute."""
        return [
            pid
            for pid in _pids()
            if "CoarseGrainedExecutorBackend" in _command(pid) and str(self._home) in _command(pid)
        ]

    def pids(self) -> list[int]:
        """Return the driver and the executors."""
        return [*super().pids(), *self.executors()]

    def kill(self) -> None:
        for process in self._started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in self.executors():
            os.kill(pid, signal.SIGKILL)
        self._started.clear()

    def _spark(self, program: str, *arguments: str) -> None:
        environ = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_WORKER_DIR": str(self._directory / "work"),
        }
        with self.log.open("ab") as log:
            self._started.append(
                subprocess.Popen(
                    [self._home / "bin" / program, *arguments],
                    env=environ,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
