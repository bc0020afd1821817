"""Helpers for the tests of this room: declare, build and wait."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest
from msgspec.structs import replace

from datasources.control import DatasetControl, DatasetState, RefreshRun
from datasources.deadline import Deadline
from datasources.errors import SourceError
from datasources.refresh.refresher import Refresher
from datasources.snapshots.snapshot import Builder, Order, SnapshotBuilder, Verifier, verify_file
from datasources.sources.source import Load
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot, read_manifest, snapshot_path
from runtimeconf.model import AccelerationConfig, DatasetConfig, QueryConfig, RuntimeConfig
from tests.open_files import open_files
from tests.system.harness import wait_for

#: Starts refreshers over the state directory of a test: see the fixture `start`.
Start = Callable[..., Refresher]

MIB = 1024 * 1024


@contextmanager
def meanwhile(step: Callable[[], object], pause_s: float = 0.005) -> Iterator[None]:
    """Repeat *step* in a thread until the block ends."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(pause_s):
            step()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def snapshot_of(dataset: str = "orders", **changes: Any) -> Snapshot:
    """Return the entry of a manifest for *dataset*. Nothing is written."""
    entry = Snapshot(
        dataset=dataset, file=f"{dataset}.duckdb", rows=1, size_bytes=1, sha256="0" * 64,
        created_at="2026-01-01T00:00:00.000Z", source="", columns=(),
    )  # fmt: skip
    return replace(entry, **changes)


def deadline(limit_s: float = 60.0) -> Deadline:
    return Deadline(limit_s, threading.Event())


def new_load(directory: Path, limit_s: float = 60.0) -> Load:
    """Begin a load with a scratch directory in *directory*."""
    scratch = directory / "scratch"
    scratch.mkdir(exist_ok=True)
    return Load(deadline=deadline(limit_s), scratch=scratch, scratch_bytes=16 * MIB)


def verify(state_dir: Path, snapshot: Snapshot) -> None:
    """Compare *snapshot* with its file: size, checksum, columns and number of rows."""
    verify_file(state_dir, snapshot)
    with closing(Verifier(state_dir)) as verifier:
        verifier.verify_content(snapshot)


def declare(
    directory: Path, text: str, *, name: str = "d", file_format: str | None = None, **more: Any
) -> DatasetConfig:
    """Declare a dataset as a YAML in *directory* would: `from: file:TEXT`; *more* are fields of the dataset."""
    acceleration = more.pop("acceleration", AccelerationConfig())
    return DatasetConfig(
        name=name,
        from_=f"file:{text}",
        location=f"{directory}/{text}",
        params={"file_format": file_format} if file_format else {},
        acceleration=acceleration,
        yaml_path="datasets[0]",
        line=1,
        **more,
    )


def accelerated(directory: Path, text: str = "a.csv", *, name: str = "d", **settings: Any) -> DatasetConfig:
    return declare(directory, text, name=name, acceleration=AccelerationConfig(**settings))


def appended(directory: Path) -> DatasetConfig:
    """Declare `a.csv`, whose column `a` is the time, as a dataset to which refreshes append."""
    return replace(accelerated(directory, refresh_mode="append"), time_column="a", time_format="unix_seconds")


def configure(directory: Path, *datasets: DatasetConfig, **more: Any) -> RuntimeConfig:
    """Make the configuration of a runtime whose state directory is `state` in *directory*."""
    query = QueryConfig(memory_limit_bytes=256 * MIB, temp_directory_limit_bytes=256 * MIB)
    return RuntimeConfig(
        file=directory / "runtime.yaml", state_dir=directory / "state", datasets=datasets, query=query, **more
    )


def state(refresher: Refresher, name: str = "d") -> DatasetState:
    return next(state for state in refresher.datasets() if state.name == name)


def settled(control: DatasetControl, name: str = "d") -> RefreshRun:
    """Wait until no run of the dataset is unfinished, and return the newest."""

    def newest() -> RefreshRun | None:
        runs = control.history(name)
        return runs[0] if runs and all(run.finished_at for run in runs) else None

    return wait_for(newest, f"{name} to settle")


def finished(control: DatasetControl, run: RefreshRun, name: str = "d") -> RefreshRun:
    """Wait for the end of *run*."""
    return wait_for(
        lambda: next((other for other in control.history(name) if other.id == run.id and other.finished_at), None),
        f"{run.id} to finish",
    )


def served(directory: Path, name: str = "d", sql: str = "") -> list[tuple[Any, ...]]:
    """Return what a statement that begins now reads, or what *sql* gives over it."""
    while True:
        snapshots = {snapshot.dataset: snapshot for snapshot in read_manifest(directory / "state").snapshots}
        try:
            return rows(directory, snapshots[name], sql)
        except duckdb.IOException:
            # Superseded between the two lines: a reader takes the manifest again.
            assert not snapshot_path(directory / "state", snapshots[name]).exists()


class FullBuilder(SnapshotBuilder):
    """A builder for loads that cannot find nothing to do."""

    def build(self, order: Order, deadline: Deadline) -> Snapshot:
        snapshot = super().build(order, deadline)
        assert snapshot is not None
        return snapshot


def loaded(made: Builder, dataset: DatasetConfig, refresh_sql: str | None, limit: Deadline, **more: Any) -> Snapshot:
    """Build with *made* where there is something to build; *more* are fields of the order."""
    snapshot = made.build(Order(dataset, refresh_sql, **more), limit)
    assert snapshot is not None
    return snapshot


def builder(directory: Path, memory_mib: int = 256) -> FullBuilder:
    """Make a builder whose state directory is `state` in *directory*."""
    state_dir = directory / "state"
    (state_dir / SNAPSHOT_DIRECTORY).mkdir(parents=True, exist_ok=True)
    return FullBuilder(state_dir=state_dir, memory_limit_bytes=memory_mib * MIB, temp_directory_limit_bytes=16 * MIB)


def rows(directory: Path, snapshot: Snapshot | None, sql: str = "") -> list[tuple[Any, ...]]:
    """Return the rows of a snapshot, or what *sql* gives over it."""
    assert snapshot is not None, "nothing was built"
    with duckdb.connect(str(snapshot_path(directory / "state", snapshot)), read_only=True) as connection:
        return connection.execute(sql or f'FROM "{snapshot.dataset}"').fetchall()


def refusal(directory: Path, dataset: DatasetConfig, limit_s: float = 60.0) -> str:
    """Return the error of a source that is refused: one sentence, without server paths and secrets; no file is left."""
    before = files_below(directory)
    with pytest.raises(SourceError) as caught:
        builder(directory).build(Order(dataset), deadline(limit_s))
    sentence = str(caught.value)
    kinds = ("pass", "password", "token", "user", "username", "host", "s3_key", "s3_secret", "s3_endpoint")
    secrets = [value for name, value in dataset.params.items() if name.endswith(kinds)]
    for hidden in (str(directory), "/proc", "Traceback", "\n", *(secret for secret in secrets if len(secret) > 2)):
        assert hidden not in sentence
    assert sentence.endswith(".")
    assert files_below(directory) == before
    return sentence


def files_below(directory: Path) -> list[str]:
    """Return the names of all files below the state directory, but for its lock and socket."""
    found = [str(path.relative_to(directory / "state")) for path in (directory / "state").rglob("*") if path.is_file()]
    return sorted(name for name in found if name not in {"lock", "control.sock"})


def open_below(directory: Path) -> list[str]:
    """Return the files below *directory* that this process has open."""
    return [path for path in open_files(directory) if path.startswith(f"{directory}/")]


def connections_to(port: int) -> int:
    """Return how many connections to *port* of 127.0.0.1 this process holds as their client."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        # Not a connection, or closed meanwhile by another thread.
        with suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as duplicate:
            found += duplicate.getpeername() == ("127.0.0.1", port)
    return found
