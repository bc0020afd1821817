"""
Check R02: everything is killed at random moments of refreshes while six readers compare sums.

A few kills are a part of `make test-all`; `make soak` does fifty, and prints what it saw.
"""

import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import httpx
import pytest

from queryengine.manifest import read_manifest
from tests.system.harness import PATIENCE_S, Server, wait_for
from tests.system.processes import kill_family

ROWS = 100_000
READERS = 6
SUMS = "SELECT count(*) AS n, min(version) AS least, max(version) AS most, sum(id)::BIGINT AS s FROM orders"


def write_version(path: Path, version: int) -> None:
    """Put a version of the source in its place; what is read of it at any moment is one version."""
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT i + {version} AS id, {version} AS version, md5(i::VARCHAR) AS filling "
            f"FROM range({ROWS}) t(i)) TO '{path}.new' (FORMAT parquet)"
        )
    Path(f"{path}.new").replace(path)


def version_of(row: dict[str, Any]) -> int:
    """Return the one version that the sums are of."""
    version = int(row["least"])
    whole = {"n": ROWS, "least": version, "most": version, "s": ROWS * (ROWS - 1) // 2 + ROWS * version}
    assert row == whole, "torn"
    return version


@dataclass
class Seen:
    """What the readers saw, over all lives of the runtime."""

    answers: int = 0
    versions: set[int] = field(default_factory=set)
    torn: list[Any] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    newest: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, row: dict[str, Any]) -> None:
        with self.lock:
            self.answers += 1
            try:
                version = version_of(row)
            except AssertionError:
                self.torn.append(row)
                return
            self.versions.add(version)
            self.newest = max(self.newest, version)


def read(server: Server, seen: Seen, stop: threading.Event) -> None:
    """Ask until *stop*; while the runtime is down there is nobody to ask."""
    while not stop.is_set():
        try:
            answer = server.sql(SUMS)
        except httpx.TransportError:
            stop.wait(0.02)
            continue
        if answer.status_code == 200:
            seen.take(answer.json()[0])
        else:
            with seen.lock:
                seen.refused.add(f"{answer.status_code} {answer.json()['code']}")
            stop.wait(0.02)


def kill_everything(server: Server) -> None:
    kill_family(server.process.pid)
    server.process.wait(PATIENCE_S)


def kill_often(directory: Path, kills: int) -> tuple[Seen, list[float]]:
    """Kill a runtime *kills* times, and return what was seen and the seconds that each start took until ready."""
    acceleration = {"enabled": True, "refresh_check_interval": "100ms"}
    changes = {
        "datasets": [{"from": "file:orders.parquet", "name": "orders", "acceleration": acceleration}],
        "views": [],
    }
    source, seen, starts = directory / "orders.parquet", Seen(), []
    write_version(source, 0)
    stop, written = threading.Event(), 0
    with Server(directory, changes=changes) as server:
        readers = [threading.Thread(target=read, args=(server, seen, stop)) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        try:
            for _ in range(kills):
                # At any moment from the first look at the new source to its publication, and a little later.
                written += 1
                write_version(source, written)
                time.sleep(random.random() * 1.5)
                before = seen.newest
                kill_everything(server)
                server.launch()
                began = time.monotonic()
                server.wait_until_up()
                starts.append(time.monotonic() - began)
                found = version_of(server.rows(SUMS)[0])
                # What anybody saw survives: it was on the disk before.
                assert before <= found <= written
            wait_for(lambda: seen.newest == written, "the last version")
        finally:
            stop.set()
            for reader in readers:
                reader.join()
    check_the_disk(directory / ".runtime")
    return seen, starts


def check_the_disk(state: Path) -> None:
    """Nothing is left of what was cut off."""
    (snapshot,) = read_manifest(state).snapshots
    assert [path.name for path in (state / "snapshots").iterdir()] == [snapshot.file]
    assert not [path for path in state.iterdir() if path.suffix == ".tmp"]
    scratch = state / "refresh_tmp"
    assert not scratch.exists() or not list(scratch.iterdir())


@pytest.mark.exhaustive
def test_r02_everything_killed_at_random_moments(tmp_path: Path) -> None:
    seen, _ = kill_often(tmp_path, 3)

    assert seen.torn == []
    assert seen.answers > 0
    assert seen.refused <= {"503 engine_unavailable", "500 engine_worker_died", "503 engine_busy"}


@pytest.mark.soak
def test_r02_fifty_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen, starts = kill_often(tmp_path, 50)

    with capsys.disabled():
        print(
            f"\n50 kills, {READERS} readers: {seen.answers} answers of {len(seen.versions)} versions, "
            f"{len(seen.torn)} torn; ready after {median(starts):.1f} s (median), {max(starts):.1f} s (most); "
            f"refused with {', '.join(sorted(seen.refused)) or 'nothing'}"
        )
    assert seen.torn == []
    assert max(starts) < 10
