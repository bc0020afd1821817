from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

from datasources.control import AdmittedSql, DatasetState, RefreshRun
from datasources.deadline import Deadline
from datasources.errors import AccelerationDisabledError, UnknownDatasetError
from datasources.refresh import schedule
from datasources.refresh.refresher import Refresher
from datasources.snapshots.snapshot import Order, SnapshotBuilder
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot, read_manifest, snapshot_path
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.datasources.sources.test_files import make_loop, put, put_parquet
from tests.datasources.support import configure, declare, rows, wait_for


def accelerated(directory: Path, text: str = "a.csv", *, name: str = "d", **settings: Any) -> DatasetConfig:
    return declare(directory, text, name=name, acceleration=AccelerationConfig(**settings))


def state(refresher: Refresher, name: str = "d") -> DatasetState:
    return next(state for state in refresher.datasets() if state.name == name)


def settled(refresher: Refresher, name: str = "d") -> RefreshRun:
    """Wait until no run of the dataset is unfinished, and return the newest."""

    def newest() -> RefreshRun | None:
        runs = refresher.history(name)
        return runs[0] if runs and all(run.finished_at for run in runs) else None

    return wait_for(newest, f"{name} to settle")


def finished(refresher: Refresher, run: RefreshRun, name: str = "d") -> RefreshRun:
    """Wait for the end of *run*."""

    def found() -> RefreshRun | None:
        return next((other for other in refresher.history(name) if other.id == run.id and other.finished_at), None)

    return wait_for(found, f"{run.id} to finish")


def served(directory: Path, name: str = "d") -> list[tuple[Any, ...]]:
    """Return what a statement that begins now reads."""
    while True:
        snapshots = {snapshot.dataset: snapshot for snapshot in read_manifest(directory / "state").snapshots}
        try:
            return rows(directory, snapshots[name])
        except duckdb.IOException:
            # Superseded between the two lines: a reader takes the manifest again.
            assert not snapshot_path(directory / "state", snapshots[name]).exists()


@contextmanager
def held_up(refresher: Refresher, name: str = "d") -> Iterator[RefreshRun]:
    """Have a load of the dataset under way that goes on until its refresh_timeout, or until the refresher stops."""
    run = refresher.request_refresh(name, AdmittedSql(f"SELECT count(*) AS n FROM {name}, range(100000000000) r"))
    wait_for(lambda: any(other.status == "running" for other in refresher.history(name)), "the slow run")
    yield run


# --- loading and refreshing -------------------------------------------------------------------------------------------


def test_every_dataset_is_loaded_at_start_in_the_order_of_the_yaml(
    tmp_path: Path, start: Callable[..., Refresher]
) -> None:
    put(tmp_path, "a.csv")
    put_parquet(tmp_path, "b.parquet", n=[1, 2, 3])

    refresher = start(
        accelerated(tmp_path, "b.parquet", name="Second"), accelerated(tmp_path, name="first", enabled=False)
    )
    wait_for(refresher.is_loaded, "the initial load")
    settled(refresher, "first")
    settled(refresher, "Second")

    second, first = refresher.datasets()
    assert (second.name, second.status, second.rows, second.error) == ("Second", "Ready", 3, None)
    assert (second.from_, second.acceleration_enabled) == ("file:b.parquet", True)
    snapshots = read_manifest(tmp_path / "state").snapshots
    (of_second,) = (snapshot for snapshot in snapshots if snapshot.dataset == "Second")
    assert second.snapshot == Path(of_second.file).stem
    assert second.refreshed_at == of_second.created_at
    assert second.bytes == of_second.size_bytes == snapshot_path(tmp_path / "state", of_second).stat().st_size
    assert (first.acceleration_enabled, first.status, first.rows) == (False, "Ready", 1)


def test_r01_a_refresh_replaces_old_data_by_new_and_nothing_between(
    tmp_path: Path, start: Callable[..., Refresher]
) -> None:
    put_parquet(tmp_path, "a.parquet", version=[0] * 10_000)
    refresher = start(accelerated(tmp_path, "a.parquet"))
    settled(refresher)
    seen: set[tuple[int, int, int]] = set()
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            (snapshot,) = read_manifest(tmp_path / "state").snapshots
            try:
                seen.update(rows(tmp_path, snapshot, "SELECT min(version), max(version), count(*) FROM d"))
            except duckdb.IOException:
                # Superseded between the two lines: a reader takes the manifest again.
                assert not snapshot_path(tmp_path / "state", snapshot).exists()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for version in range(1, 6):
            put_parquet(tmp_path, "new.parquet", version=[version] * 10_000).replace(tmp_path / "a.parquet")
            run = refresher.request_refresh("d")
            assert run.id in [other.id for other in refresher.history("d")]
            done = finished(refresher, run)
            assert (done.status, done.rows, done.error) == ("succeeded", 10_000, None)
            assert served(tmp_path)[0] == (version,)
            assert len(list((tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir())) == 1
    finally:
        ended.set()
        reader.join()

    assert seen <= {(version, version, 10_000) for version in range(6)}
    assert len(seen) >= 2


def test_a_run_says_when_it_was_asked_for_began_and_ended(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path))
    settled(refresher)

    asked = refresher.request_refresh("D")
    run = finished(refresher, asked)

    assert (asked.status, asked.started_at, asked.finished_at) == ("queued", None, None)
    assert asked.requested_at == run.requested_at
    assert run.started_at is not None
    assert run.finished_at is not None
    assert run.requested_at <= run.started_at <= run.finished_at
    assert run.duration_ms is not None
    assert 0 < run.duration_ms < 60_000


def test_a_running_refresh_reports_its_progress(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    class Patient(SnapshotBuilder):
        """Opens its source when it may."""

        def build(self, order: Order, deadline: Deadline) -> Snapshot | None:
            assert go.wait(60)
            return super().build(order, deadline)

    def progress() -> RefreshRun:
        return refresher.history("d")[0]

    go = threading.Event()
    put(tmp_path, "a.csv")
    dataset = accelerated(tmp_path)
    builder = Patient.of(configure(tmp_path, dataset))
    refresher = start(dataset, builders=[builder, builder])
    wait_for(lambda: progress().phase == "opening", "the run to open its source")
    first, second = progress(), progress()
    assert (first.status, first.bytes, first.rows) == ("running", None, None)
    assert first.duration_ms is not None
    assert second.duration_ms is not None
    assert first.duration_ms <= second.duration_ms
    go.set()
    assert settled(refresher).phase is None

    refresher.request_refresh("d", AdmittedSql("SELECT a, md5(i::VARCHAR) AS b FROM d, range(3000000) r(i)"))
    sizes = set()
    with refresher._publication._lock:

        def is_publishing() -> bool:
            if progress().phase == "loading":
                sizes.add(progress().bytes)
            return progress().phase == "publishing"

        wait_for(is_publishing, "all rows to be written")
    run = settled(refresher)

    assert len(sizes - {None}) > 1
    assert run.bytes == state(refresher).bytes
    assert (run.phase, run.status) == (None, "succeeded")


def test_one_runs_one_waits_and_a_third_joins_the_one_that_waits(
    tmp_path: Path, start: Callable[..., Refresher]
) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path, refresh_timeout_s=1.0))
    settled(refresher)

    with held_up(refresher) as running:
        second = refresher.request_refresh("d")
        third = refresher.request_refresh("d")

        assert state(refresher).status == "Refreshing"
        assert second.id == third.id != running.id
        assert [run.status for run in refresher.history("d")[:2]] == ["queued", "running"]

    settled(refresher)
    assert [run.status for run in refresher.history("d")] == ["succeeded", "failed", "succeeded"]
    assert served(tmp_path) == [(1, "x")]


def test_a_request_with_another_refresh_sql_joins_and_decides_since_it_is_the_later_one(
    tmp_path: Path, start: Callable[..., Refresher]
) -> None:
    put(tmp_path, "a.csv", "a,b\n1,x\n2,y\n3,z\n")
    refresher = start(accelerated(tmp_path, refresh_timeout_s=1.0))
    settled(refresher)

    with held_up(refresher):
        first = refresher.request_refresh("d", AdmittedSql("SELECT * FROM d WHERE a = 1"))
        second = refresher.request_refresh("d", AdmittedSql("SELECT * FROM d WHERE a > 1"))

    assert first.id == second.id
    assert finished(refresher, first).rows == 2
    assert served(tmp_path) == [(2, "y"), (3, "z")]


def test_a_refresh_sql_of_a_request_holds_for_that_refresh_only(
    tmp_path: Path, start: Callable[..., Refresher]
) -> None:
    put(tmp_path, "a.csv", "a,b\n1,x\n2,y\n3,z\n")
    refresher = start(accelerated(tmp_path, refresh_sql="SELECT * FROM d WHERE a < 3"))
    settled(refresher)
    assert served(tmp_path) == [(1, "x"), (2, "y")]

    finished(refresher, refresher.request_refresh("d", AdmittedSql("SELECT * FROM d WHERE a = 3")))
    assert served(tmp_path) == [(3, "z")]

    finished(refresher, refresher.request_refresh("d"))
    assert served(tmp_path) == [(1, "x"), (2, "y")]


def test_r15_a_dataset_that_is_unknown_or_not_accelerated_is_not_read(
    tmp_path: Path, start: Callable[..., Refresher]
) -> None:
    put(tmp_path, "a.csv")
    refresher = start(declare(tmp_path, "a.csv", acceleration=AccelerationConfig(enabled=False)))
    settled(refresher)

    with pytest.raises(UnknownDatasetError, match=r"^Dataset nope not found\.$"):
        refresher.request_refresh("nope")
    with pytest.raises(UnknownDatasetError):
        refresher.history("nope")
    with pytest.raises(AccelerationDisabledError, match=r"^Dataset d does not have acceleration enabled\.$"):
        refresher.request_refresh("d", AdmittedSql("not even SQL"))

    assert len(refresher.history("d")) == 1


def instead(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return what puts something else in the place of a file."""

    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


# --- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-10]), id="R06 truncated"),
        pytest.param(lambda path: path.write_bytes(b"\0" * 1000), id="R06 bad magic"),
        pytest.param(lambda path: path.write_bytes(b""), id="R06 0 bytes"),
        pytest.param(lambda path: path.unlink(), id="R08 gone"),
        pytest.param(instead(Path.mkdir), id="R08 directory"),
        pytest.param(instead(os.mkfifo), id="R08 FIFO"),
        pytest.param(instead(make_loop), id="R08 symlink loop"),
        pytest.param(instead(lambda path: path.symlink_to("/dev/zero")), id="R08 device"),
    ],
)
def test_a_source_that_fails_keeps_the_last_good_data_and_recovers(
    tmp_path: Path, start: Callable[..., Refresher], spoil: Callable[[Path], object]
) -> None:
    path = put_parquet(tmp_path, "a.parquet", n=[1])
    refresher = start(accelerated(tmp_path, "a.parquet", refresh_check_interval_s=0.1))
    settled(refresher)

    put_parquet(tmp_path, "good.parquet", n=[2])
    spoil(path)
    failed = wait_for(
        lambda: next((run for run in refresher.history("d") if run.status == "failed"), None), "the failure"
    )

    assert failed.error is not None
    assert "'a.parquet'" in failed.error
    assert failed.rows is None
    assert "'a.parquet'" in str(state(refresher).error)
    assert state(refresher).status in {"Error", "Refreshing"}
    assert refresher.is_loaded()
    assert served(tmp_path) == [(1,)]

    if path.is_dir():
        path.rmdir()
    (tmp_path / "good.parquet").replace(path)
    wait_for(lambda: served(tmp_path) == [(2,)], "the recovery")
    wait_for(lambda: state(refresher).error is None, "the recovery to show")


@pytest.mark.parametrize("times", [4, pytest.param(30, marks=pytest.mark.exhaustive)])
def test_r09_a_source_that_is_replaced_or_overwritten_is_never_mixed(
    tmp_path: Path, start: Callable[..., Refresher], times: int
) -> None:
    def content(version: int) -> bytes:
        made = put_parquet(tmp_path, "made.parquet", version=[version] * 20_000, n=range(20_000))
        return made.read_bytes()

    path = tmp_path / "a.parquet"
    path.write_bytes(content(0))
    refresher = start(accelerated(tmp_path, "a.parquet"))
    settled(refresher)
    outcomes = set()
    for version in range(1, times + 1):
        new = content(version)
        run = refresher.request_refresh("d")
        wait_for(lambda: refresher.history("d")[0].started_at, "the scan")
        if version % 2:
            path.write_bytes(new)
        else:
            (tmp_path / "made.parquet").replace(path)
        outcomes.add(finished(refresher, run).status)

        (snapshot,) = read_manifest(tmp_path / "state").snapshots
        ((least, most, count),) = rows(tmp_path, snapshot, "SELECT min(version), max(version), count(*) FROM d")
        assert least == most <= version
        assert count == 20_000
    assert outcomes <= {"succeeded", "failed"}
    assert finished(refresher, refresher.request_refresh("d")).status == "succeeded"
    assert served(tmp_path)[0][0] == times


def test_p10_one_failing_dataset_of_five_does_not_block_the_others(
    tmp_path: Path, start: Callable[..., Refresher], caplog: pytest.LogCaptureFixture
) -> None:
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        put(tmp_path, f"{name}.csv")
    put(tmp_path, "b.csv", "")

    refresher = start(*(accelerated(tmp_path, f"{name}.csv", name=name) for name in names))
    for name in names:
        settled(refresher, name)

    assert [state(refresher, name).status for name in names] == ["Ready", "Error", "Ready", "Ready", "Ready"]
    assert not refresher.is_loaded()
    assert state(refresher, "b").error == "'b.csv' is empty (0 bytes)."
    assert "Dataset b cannot be refreshed: 'b.csv' is empty (0 bytes)." in caplog.text


@pytest.mark.parametrize("enabled", [True, False])
def test_a_dataset_that_was_never_loaded_is_tried_again_without_an_interval(
    tmp_path: Path, start: Callable[..., Refresher], monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    monkeypatch.setattr(schedule, "FIRST_RETRY_S", 0.1)
    refresher = start(accelerated(tmp_path, enabled=enabled))
    wait_for(lambda: len(refresher.history("d")) > 2, "more tries")
    assert state(refresher).status == "Error"
    assert not refresher.is_loaded()

    put(tmp_path, "a.csv")

    wait_for(refresher.is_loaded, "the load")
    settled(refresher)
    tries = len(refresher.history("d"))
    time.sleep(0.5)
    assert len(refresher.history("d")) == tries


def test_a_dataset_without_acceleration_is_read_once(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path, enabled=False, refresh_check_interval_s=0.05, refresh_sql="not SQL"))
    settled(refresher)

    put(tmp_path, "a.csv", "a,b\n2,y\n")
    time.sleep(0.5)

    assert len(refresher.history("d")) == 1
    assert served(tmp_path) == [(1, "x")]
    assert (state(refresher).status, state(refresher).acceleration_enabled) == ("Ready", False)


def test_changed_columns_are_refused_and_the_old_data_stays(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path))
    settled(refresher)
    put(tmp_path, "a.csv", "a,c\n1,x\n")

    run = finished(refresher, refresher.request_refresh("d"))

    assert run.status == "failed"
    assert run.error is not None
    assert "b is gone, c is new" in run.error
    assert served(tmp_path) == [(1, "x")]
    assert len(list((tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir())) == 1


def test_changed_columns_are_accepted_when_the_yaml_says_so(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    put(tmp_path, "a.csv")
    refresher = start(declare(tmp_path, "a.csv", on_schema_change="accept"))
    settled(refresher)
    put(tmp_path, "a.csv", "c\n7\n")

    run = finished(refresher, refresher.request_refresh("d"))

    assert run.status == "succeeded"
    assert served(tmp_path) == [(7,)]


def test_an_unexpected_error_fails_one_run_and_is_logged(
    tmp_path: Path, start: Callable[..., Refresher], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path))
    settled(refresher)

    with monkeypatch.context() as patch:
        patch.setattr(duckdb, "connect", lambda *_args, **_more: 1 / 0)
        run = finished(refresher, refresher.request_refresh("d"))

    assert run.error == "The refresh failed; see the log of the runtime."
    assert "ZeroDivisionError" in caplog.text
    assert finished(refresher, refresher.request_refresh("d")).status == "succeeded"
