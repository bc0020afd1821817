"""Clusters of tests: Sail in one process, over files that a test writes."""

import os
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from cluster.connection import Connection
from cluster.session import RemoteSession
from datasources.snapshots.parquet import export, parquet_path
from queryengine.backends import backend_of
from queryengine.cancellation import Interruption
from queryengine.engine import Description, Encoding, Query
from queryengine.execution.statement_runner import StatementRunner
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot, parquet_file
from runtimeconf.model import MIB, DatasetConfig, EngineConfig, QueryConfig, RuntimeConfig, Scope, SnapshotsConfig
from system.addresses import Address
from tests.datasources.support import deadline
from tests.queryengine.execution.instances import declared
from tests.queryengine.publishing import Publisher, wait_until
from tests.system.harness import Program, free_port

#: Runs for hours. Sail notices an interrupt after 128 batches of 1024 rows of `b`, each joined with all rows of `a`.
ENDLESS = "SELECT count(*) FROM range(0, 100) a, range(0, 400000000000) b WHERE (a.id * b.id) % 7 = 3"
#: The same, but 128 batches take minutes.
UNSTOPPABLE = (
    "SELECT count(*) FROM range(0, 2000) a, range(0, 400000000000) b"
    " WHERE sha2(CAST(a.id * b.id AS STRING), 512) LIKE '%zz%'"
)

LONG_S = 60.0

#: The interpreter of Sail.
PYTHON = Path(sys.executable)


class Sail(Program):
    """A Spark Connect server of Sail. Use it as a context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        python: Path = PYTHON,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.log = directory / "sail.log"
        self._python = python
        self.port = port or free_port()
        self._environ = environ or {}
        self._cpu_s: dict[int, float] = {}

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    def start(self) -> None:
        """Start it, and wait until it listens."""
        arguments = ["-m", "pysail", "spark", "server", "--ip", "127.0.0.1", "--port", str(self.port)]
        self.run([str(self._python), *arguments], {**os.environ, **self._environ})
        wait_until(self._listens, within_s=LONG_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pids(self) -> list[int]:
        """Return its processes."""
        return [self.process.pid]

    def cpu_s(self) -> float:
        """Return the seconds of CPU that it has used, and what had been seen of its processes that have ended."""
        for pid in self.pids():
            self._cpu_s[pid] = max(cpu_s(pid), self._cpu_s.get(pid, 0.0))
        return sum(self._cpu_s.values())

    def wait_until_idle(self, within_s: float = 20.0) -> None:
        """Wait until it uses less than a tenth of a processor."""
        wait_until(self.is_idle, within_s=within_s)

    def is_idle(self) -> bool:
        """Say whether it would use less than a tenth of a processor during half a second if it had one to itself."""
        before = sum(wanted_s(pid) for pid in self.pids())
        time.sleep(0.5)
        return sum(wanted_s(pid) for pid in self.pids()) - before < 0.05

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.output()
        return is_open(self.port)


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that the process *pid* has used; 0.0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wanted_s(pid: int) -> float:
    """Return the seconds that the threads of the process *pid* ran or waited for a processor."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            ran, waited, _ = map(int, thread.read_text().split())
            total += ran + waited
    return total / 1e9


def is_open(port: int) -> bool:
    """Say whether a process of this machine listens on *port*."""
    wanted = f":{port:04X}"
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return any(line.split()[1].endswith(wanted) and line.split()[3] == "0A" for line in lines)


def write_flights(directory: Path, rows: int = 1000, name: str = "flights") -> Path:
    """Write a directory with one Parquet file of columns id, name, carrier."""
    path = directory / name
    path.mkdir(exist_ok=True)
    numbers = range(rows)
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [f"n{number}" for number in numbers],
            "carrier": pa.array([number % 3 for number in numbers], pa.int32()),
        }
    )
    pq.write_table(table, path / f"{rows}.parquet")
    return path


def in_place(name: str, path: Path, **params: str) -> DatasetConfig:
    """Return a dataset that a cluster reads at *path*."""
    params = params or {"file_format": "parquet"}
    return DatasetConfig(name=name, from_=f"file:{path}", location=str(path), params=params, is_in_place=True)


class SharedPublisher(Publisher):
    """Publishes tables, and their rows as Parquet at *location*, from where clusters read them."""

    def __init__(self, state_dir: Path, directory: Path) -> None:
        super().__init__(state_dir)
        self._directory = directory / SNAPSHOT_DIRECTORY
        self._directory.mkdir(parents=True, exist_ok=True)
        self.location = f"file://{directory}"

    def _write(self, name: str, sql: str) -> Snapshot:
        snapshot = super()._write(name, sql)
        export(self.state_dir, snapshot, 256 * MIB, deadline())
        shutil.copyfile(parquet_path(self.state_dir, snapshot), self._directory / parquet_file(snapshot.file))
        return snapshot


def config_of(
    state_dir: Path,
    address: Address,
    datasets: Sequence[DatasetConfig],
    views: Mapping[str, str] | None = None,
    *,
    location: str = "",
    **query: Any,
) -> RuntimeConfig:
    """Return the configuration of an engine on the cluster at *address*; loaded datasets go to *location*."""
    return RuntimeConfig(
        file=state_dir.parent / "runtime.yaml",
        state_dir=state_dir,
        query=QueryConfig(**{"workers": 2, "timeout_s": LONG_S, "queue_timeout_s": LONG_S, **query}),
        engine=EngineConfig(name="sc", address=address, max_running=2),
        snapshots=SnapshotsConfig(location=location, role="auto") if location else None,
        datasets=tuple(datasets),
        views=tuple(declared(**(views or {}))),
    )


class ClusterEngine:
    """A statement runner on a cluster, in this process."""

    def __init__(self, config: RuntimeConfig) -> None:
        config.state_dir.mkdir(parents=True, exist_ok=True)
        self.runner = StatementRunner(config, backend_of(config))

    def run(
        self,
        sql: str,
        parameters: Any = None,
        encoding: Encoding = "json",
        interruption: Interruption | None = None,
        relations: Collection[str] | None = None,
        **query: Any,
    ) -> bytes:
        """Return the whole answer to a key that sees *relations*, by default all."""
        scope = None if relations is None else Scope(relations=frozenset(relations))
        asked = Query(sql=sql, parameters=parameters, encoding=encoding, scope=scope, **{"query_id": "q", **query})
        with ExitStack() as held:
            result = self.runner.run(asked, interruption or Interruption(), held)
        try:
            return b"".join(result)
        finally:
            result.close()

    def describe(self, sql: str, parameters: Any = None) -> Description:
        with ExitStack() as held:
            return self.runner.describe(
                Query(sql=sql, parameters=parameters, encoding="flight"), Interruption(), held, speculate_s=0.5
            )

    @property
    def session(self) -> RemoteSession:
        lease = self.runner.sessions.lease()
        lease.release()
        assert isinstance(lease.session, RemoteSession)
        return lease.session

    def session_id(self) -> str:
        """Return the id of the session that statements run in."""
        assert self.session._open is not None
        return self.session._open.id

    def connection(self) -> Connection:
        return self.session._connection

    def close(self) -> None:
        self.runner.close()
