"""Publishers that are killed or stopped at any point: no version is lost, torn, or published without the lease."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import botocore.exceptions
import duckdb
import pytest

from nodes.documents import MANIFEST, SharedManifest
from queryengine.manifest import ManifestError, read_manifest, snapshot_path
from tests.datasources.sources.test_files import put
from tests.nodes.node_process import ID_NAME
from tests.nodes.storage_server import SharedStorage, storage_process
from tests.system.harness import wait_for

pytestmark = pytest.mark.plugin

_NAMES = "abc"
_ROWS = 2000
#: The time until another node publishes, with a lease that expires after 4 s instead of 15.
_MOVES_WITHIN_S = 30.0

_chance = random.Random(18)

_SUMS = "SELECT count(*), sum(a)::BIGINT, min(b), max(b) FROM d"


class Nodes:
    """Three nodes over a source that changes all the time; somebody reads from each node, and watches the manifest."""

    def __init__(self, directory: Path, shared: SharedStorage) -> None:
        self.directory, self.shared = directory, shared
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.version = 0
        self.answers = 0
        self.wrong: list[str] = []
        self.seen: dict[str, int] = dict.fromkeys(_NAMES, 0)
        self.manifests: list[SharedManifest] = []
        self._ended = threading.Event()

    def start(self, name: str) -> None:
        (self.directory / name / "state").mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.directory / name / ID_NAME).unlink(missing_ok=True)
        program = [sys.executable, "-m", "tests.nodes.node_process", str(self.directory), self.shared.url, name]
        self.processes[name] = subprocess.Popen(program)

    def end(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def write(self) -> None:
        """Write the next version: every row has its number, and the ids have a known sum."""
        self.version += 1
        lines = "".join(f"{number},{self.version}\n" for number in range(_ROWS))
        put(self.directory, "a.csv", f"a,b\n{lines}".encode())

    def _write_next(self) -> None:
        """Write once a node serves the version before; on a slow machine, the file would change during every load."""
        if self.version in self.seen.values():
            self.write()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Write, read and watch until the block ends."""
        steps: list[tuple[Callable[[], None], float]] = [
            (self._write_next, 0.2),
            (self._watch, 0.05),
            *((partial(self.read, name), 0.1) for name in _NAMES),
        ]
        threads = [threading.Thread(target=self._repeat, args=step) for step in steps]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def publisher(self) -> str:
        """Wait until a node publishes that is running, and return its name."""
        return wait_for(self._publisher, "a publisher")

    def epoch(self) -> int:
        return self.manifests[-1].epoch if self.manifests else 0

    def read(self, name: str) -> None:
        """Ask one node twenty times, as its engine would, and compare the sums."""
        state_dir = self.directory / name / "state"
        # The node has nothing yet, or the file was superseded: an engine reads the manifest again.
        with suppress(ManifestError, duckdb.IOException):
            for snapshot in read_manifest(state_dir).snapshots:
                path = str(snapshot_path(state_dir, snapshot))
                with duckdb.connect(path, read_only=True, config={"threads": 1}) as connection:
                    for _ in range(20):
                        self._check(name, *connection.execute(_SUMS).fetchall()[0])

    def _check(self, name: str, count: int, total: int, first: int, last: int) -> None:
        self.answers += 1
        if (count, total, first) != (_ROWS, _ROWS * (_ROWS - 1) // 2, last):
            self.wrong.append(f"{name} answers {count, total, first, last}")
        if last < self.seen[name]:
            self.wrong.append(f"{name} answers version {last} after {self.seen[name]}")
        self.seen[name] = last

    def _watch(self) -> None:
        with suppress(botocore.exceptions.ClientError):  # There is none yet.
            found = SharedManifest.decode(self.shared.document(MANIFEST))
            if not self.manifests or found != self.manifests[-1]:
                self.manifests.append(found)

    def _publisher(self) -> str | None:
        for name in self.processes:
            with suppress(OSError):
                if self.manifests and (self.directory / name / ID_NAME).read_text() == self.manifests[-1].node:
                    return name
        return None

    def _repeat(self, step: Callable[[], None], pause_s: float) -> None:
        while not self._ended.wait(pause_s):
            step()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with storage_process() as (shared, _):
        made = Nodes(tmp_path, shared)
        made.write()
        for name in _NAMES:
            made.start(name)
        yield made
        made.end()


def _disturb(nodes: Nodes, *, stops: bool) -> float:
    """Kill or stop the publisher at a random time; return the seconds until another node publishes."""
    name = nodes.publisher()
    time.sleep(_chance.uniform(0, 1))
    process, epoch, began = nodes.processes[name], nodes.epoch(), time.monotonic()
    process.send_signal(signal.SIGSTOP if stops else signal.SIGKILL)
    wait_for(lambda: nodes.epoch() > epoch, "another publisher")
    took_s = time.monotonic() - began
    if stops:
        time.sleep(_chance.uniform(0, 1))
        process.send_signal(signal.SIGCONT)
    else:
        process.wait()
        nodes.start(name)
    return took_s


def _has_last(nodes: Nodes, name: str) -> bool:
    nodes.read(name)
    return nodes.seen[name] == nodes.version


@pytest.mark.exhaustive
@pytest.mark.parametrize(("disturbances", "answers"), [(6, 3_000), pytest.param(30, 20_000, marks=pytest.mark.soak)])
def test_a_publisher_that_dies_or_sleeps_at_any_point_costs_no_version(
    nodes: Nodes, disturbances: int, answers: int
) -> None:
    with nodes.at_work():
        moves = [_disturb(nodes, stops=number % 3 == 2) for number in range(disturbances)]
        wait_for(lambda: nodes.answers >= answers, "the answers", 600.0)

    nodes.write()
    for name in _NAMES:
        wait_for(lambda: _has_last(nodes, name), f"the last version on {name}")  # noqa: B023
    assert nodes.wrong == []
    assert max(moves) < _MOVES_WITHIN_S
    # Each version of the manifest follows the one before, and each epoch has one node.
    numbers = [(one.epoch, one.generation) for one in nodes.manifests]
    assert numbers == sorted(set(numbers))
    assert len({(one.epoch, one.node) for one in nodes.manifests}) == len({one.epoch for one in nodes.manifests})
    assert nodes.epoch() > disturbances
