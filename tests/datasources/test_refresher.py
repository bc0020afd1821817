from __future__ import annotations

import gzip
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

from datasources.control import DatasetState, RefreshRun
from datasources.deadline import Deadline
from datasources.errors import AccelerationDisabledError, UnknownDatasetError
from datasources.refresh import schedule
from datasources.refresh.refresher import Refresher
from datasources.snapshots.snapshot import Order, SnapshotBuilder
from queryengine.errors import EmptyStatementError, SqlSyntaxError, StatementNotAllowedError
from queryengine.gate.gate import Gate
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot, manifest_path, read_manifest, snapshot_path
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.datasources.sources.test_files import make_fifo, make_loop, put, put_parquet
from tests.datasources.support import configure, declare, files_below, rows, wait_for


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
    run = refresher.request_refresh(name, f"SELECT count(*) AS n FROM {name}, range(100000000000) r")
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
    assert (second.from_, second.acceleration_enabled, second.loaded_once) == ("file:b.parquet", True, True)
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


def test_a_run_under_way_says_how_far_it_is(tmp_path: Path, start: Callable[..., Refresher]) -> None:
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

    refresher.request_refresh("d", "SELECT a, md5(i::VARCHAR) AS b FROM d, range(3000000) r(i)")
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


def test_r12_twenty_requests_at_once_need_two_reads_at_most(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path))
    settled(refresher)
    before = {run.id for run in refresher.history("d")}
    put(tmp_path, "a.csv", "a,b\n1,x\n2,newest\n")

    with ThreadPoolExecutor(20) as pool:
        runs = list(pool.map(lambda _: refresher.request_refresh("d"), range(20)))
    settled(refresher)

    ids = {run.id for run in runs}
    assert len(ids) <= 2
    assert ids == {run.id for run in refresher.history("d")} - before
    assert served(tmp_path)[-1] == (2, "newest")


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
        first = refresher.request_refresh("d", "SELECT * FROM d WHERE a = 1")
        second = refresher.request_refresh("d", "SELECT * FROM d WHERE a > 1")

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

    finished(refresher, refresher.request_refresh("d", "SELECT * FROM d WHERE a = 3"))
    assert served(tmp_path) == [(3, "z")]

    finished(refresher, refresher.request_refresh("d"))
    assert served(tmp_path) == [(1, "x"), (2, "y")]


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("", EmptyStatementError),
        ("SELEC 1", SqlSyntaxError),
        ("DELETE FROM d", StatementNotAllowedError),
        ("SELECT * FROM read_text('/etc/passwd')", StatementNotAllowedError),
    ],
)
def test_a_refresh_sql_that_may_not_run_is_refused_before_there_is_a_run(
    tmp_path: Path, start: Callable[..., Refresher], sql: str, error: type[Exception]
) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path))
    settled(refresher)

    with pytest.raises(error):
        refresher.request_refresh("d", sql)

    assert len(refresher.history("d")) == 1


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
        refresher.request_refresh("d", "not even SQL")

    assert len(refresher.history("d")) == 1


def instead(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return what puts something else in the place of a file."""

    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


# --- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-10]), id="R06 truncated"),
        pytest.param(lambda path: path.write_bytes(b"\0" * 1000), id="R06 bad magic"),
        pytest.param(lambda path: path.write_bytes(b""), id="R06 0 bytes"),
        pytest.param(lambda path: path.unlink(), id="R08 gone"),
        pytest.param(instead(Path.mkdir), id="R08 directory"),
        pytest.param(instead(make_fifo), id="R08 FIFO"),
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


def test_r06_r08_text_that_is_cut_or_damaged_keeps_the_last_good_data(
    tmp_path: Path, start: Callable[..., Refresher]
) -> None:
    whole = gzip.compress(b"a,b\n1,x\n")
    spoilt = {
        "half.csv": (b"a,b\n1,x\n", b"a,b\n1,x\n2"),
        "quote.csv": (b"a,b\n1,x\n", b'a,b\n1,x\n2,"y'),
        "latin.csv": (b"a,b\n1,x\n", b"a,b\n1,x\n2,\xe9t\xe9\n"),
        "crc.csv.gz": (whole, whole[:-8] + b"\0\0\0\0" + whole[-4:]),
        "cut.csv.gz": (whole, whole[:-10]),
        "cut.ndjson": (b'{"a":1,"b":"x"}\n', b'{"a":1,"b":"x"}\n{"a":2,"b'),
        "many/one.csv": (b"a,b\n1,x\n", None),
    }
    for file, (good, _) in spoilt.items():
        put(tmp_path, file, good)
    texts = [str(Path(file).parent) if file.startswith("many") else file for file in spoilt]
    names = [f"d{number}" for number in range(len(texts))]
    refresher = start(*(accelerated(tmp_path, text, name=name) for text, name in zip(texts, names, strict=True)))
    for name in names:
        assert settled(refresher, name).error is None

    for (file, (_, bad)), text, name in zip(spoilt.items(), texts, names, strict=True):
        if bad is None:
            (tmp_path / file).unlink()
        else:
            put(tmp_path, file, bad)

        run = finished(refresher, refresher.request_refresh(name), name)

        assert run.status == "failed", file
        assert f"'{text}'" in str(run.error)
        assert str(tmp_path) not in str(run.error)
        assert served(tmp_path, name) == [(1, "x")]


def test_r09_a_source_replaced_or_overwritten_thirty_times_is_never_mixed(
    tmp_path: Path, start: Callable[..., Refresher]
) -> None:
    def content(version: int) -> bytes:
        made = put_parquet(tmp_path, "made.parquet", version=[version] * 20_000, n=range(20_000))
        return made.read_bytes()

    path = tmp_path / "a.parquet"
    path.write_bytes(content(0))
    refresher = start(accelerated(tmp_path, "a.parquet"))
    settled(refresher)
    outcomes = set()
    for version in range(1, 31):
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
    assert served(tmp_path)[0][0] == 30


def test_p10_one_of_five_that_cannot_be_loaded_does_not_keep_the_others_back(
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


def tick(refresher: Refresher, clock: list[float], time_s: float) -> None:
    """Set the clock of intervals, and have the refresher look at it."""
    clock[0] = time_s
    with refresher._condition:
        refresher._condition.notify_all()


def test_r16_a_source_that_is_down_is_tried_ever_less_often_and_logged_once_a_minute(
    tmp_path: Path, start: Callable[..., Refresher], caplog: pytest.LogCaptureFixture, clock: list[float]
) -> None:
    refresher = start(accelerated(tmp_path, refresh_check_interval_s=10), now=lambda: clock[0])
    settled(refresher)

    tried_at = [0.0]
    for second in range(5, 600, 5):
        due = (refresher._entries["d"].due or 0.0) <= second
        tick(refresher, clock, second)
        if due:
            tried_at.append(second)
            wait_for(lambda: len(refresher.history("d")) == len(tried_at), "the next try")
            settled(refresher)
    assert len(refresher.history("d")) == len(tried_at)
    assert tried_at == [0, 10, 30, 70, 150, 230, 310, 390, 470, 550]

    def warnings() -> int:
        return sum(record.levelno == logging.WARNING for record in caplog.records)

    # At 0, 70, 150, 230 and so on.
    wait_for(lambda: warnings() == 8, "the log")

    down = state(refresher)
    assert (down.status, down.error, down.checked_at) == ("Error", "'a.csv' does not exist.", None)
    assert down.next_refresh_at is not None

    put(tmp_path, "a.csv")
    tick(refresher, clock, 630)
    wait_for(lambda: state(refresher).status == "Ready", "the recovery")
    settled(refresher)
    assert refresher._entries["d"].due == 640


def test_a_step_of_the_wall_clock_moves_no_refresh(
    tmp_path: Path, start: Callable[..., Refresher], monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    put(tmp_path, "a.csv")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    refresher = start(accelerated(tmp_path, refresh_check_interval_s=10), now=lambda: clock[0])
    settled(refresher)

    tick(refresher, clock, 9.9)
    assert len(refresher.history("d")) == 1
    tick(refresher, clock, 10)

    wait_for(lambda: len(refresher.history("d")) == 2, "the next refresh")


def test_jitter_puts_off_what_the_clock_starts_and_nothing_else(
    tmp_path: Path, start: Callable[..., Refresher], clock: list[float]
) -> None:
    put(tmp_path, "a.csv")
    dataset = accelerated(tmp_path, refresh_check_interval_s=100, refresh_jitter_enabled=True, refresh_jitter_max_s=40)

    refresher = start(dataset, now=lambda: clock[0], chance=lambda: 0.5)
    # There is nothing to serve yet: that is not put off.
    settled(refresher)
    assert refresher._entries["d"].due == 120
    finished(refresher, refresher.request_refresh("d"))

    again = start(dataset, now=lambda: clock[0], chance=lambda: 0.25)
    assert again._entries["d"].due == 10
    assert state(again).next_refresh_at is not None
    tick(again, clock, 10)
    wait_for(lambda: len(again.history("d")) == 3, "the load of the start")


# --- two at once ------------------------------------------------------------------------------------------------------


class Slow:
    """A `Builder` that says what it builds, and waits until it may go on."""

    def __init__(self, directory: Path, building: list[str], go_on: threading.Event) -> None:
        self._builder = SnapshotBuilder.of(configure(directory))
        self._building = building
        self._go_on = go_on

    def build(self, order: Order, deadline: Deadline) -> Snapshot | None:
        self._building.append(order.dataset.name)
        while not self._go_on.wait(0.01) and not deadline.passed:
            pass
        return self._builder.build(order, deadline)

    def rest(self) -> None:
        """Nothing is kept."""


def test_two_loads_run_at_once_and_never_two_of_one_dataset(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    put(tmp_path, "a.csv")
    building: list[str] = []
    go_on = threading.Event()
    refresher = start(
        *(accelerated(tmp_path, name=name) for name in ("a", "b", "c")),
        builders=[Slow(tmp_path, building, go_on) for _ in range(2)],
    )

    wait_for(lambda: len(building) == 2, "two loads")
    again = refresher.request_refresh("a")
    assert [refresher.history(name)[0].status for name in "abc"] == ["queued", "running", "queued"]
    assert building == ["a", "b"]

    go_on.set()
    assert finished(refresher, again, "a").status == "succeeded"
    for name in "bc":
        assert settled(refresher, name).status == "succeeded"
    # What was asked for first comes first: c before the second load of a.
    assert building == ["a", "b", "c", "a"]
    assert len(read_manifest(tmp_path / "state").snapshots) == 3
    assert len(list((tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir())) == 3


def test_many_datasets_published_by_two_threads_are_all_there(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    put(tmp_path, "a.csv")
    names = [f"d{number}" for number in range(8)]
    refresher = start(*(accelerated(tmp_path, name=name) for name in names))

    for name in names:
        assert settled(refresher, name).status == "succeeded"

    manifest = read_manifest(tmp_path / "state")
    assert {snapshot.dataset for snapshot in manifest.snapshots} == set(names)
    assert manifest.generation == len(names)


# --- what has not changed ---------------------------------------------------------------------------------------------


def test_the_clock_leaves_an_unchanged_source_unread_and_a_caller_has_it_read(
    tmp_path: Path, start: Callable[..., Refresher], clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path, refresh_check_interval_s=10), now=lambda: clock[0])
    settled(refresher)
    first = state(refresher)
    caplog.set_level(logging.INFO)
    manifest_path(tmp_path / "state").unlink()

    tick(refresher, clock, 10)
    wait_for(lambda: len(refresher.history("d")) == 2, "the refresh of the clock")
    checked = settled(refresher)
    (kept,) = read_manifest(tmp_path / "state").snapshots
    second = state(refresher)
    asked = finished(refresher, refresher.request_refresh("d"))
    third = state(refresher)

    assert (checked.status, checked.rows, checked.unchanged) == ("succeeded", 1, True)
    assert "Dataset d is unchanged" in caplog.text
    assert (second.snapshot, second.refreshed_at) == (first.snapshot, first.refreshed_at)
    assert Path(kept.file).stem == first.snapshot
    assert second.checked_at == checked.finished_at
    assert (asked.status, asked.unchanged) == ("succeeded", False)
    assert third.snapshot != first.snapshot


def test_a_caller_who_joins_what_nobody_asked_for_has_the_source_read(
    tmp_path: Path, start: Callable[..., Refresher]
) -> None:
    put(tmp_path, "a.csv", "a,b\n1,x\n2,y\n")
    datasets = [accelerated(tmp_path, name=name) for name in "abcd"]
    for name in "abcd":
        settled(start(*datasets), name)
    go_on = threading.Event()
    refresher = start(*datasets, builders=[Slow(tmp_path, [], go_on) for _ in range(2)])

    first, second = refresher.history("c")[0], refresher.history("d")[0]
    asked = refresher.request_refresh("c", "SELECT * FROM c WHERE a = 2")
    # Whom nobody asked takes nothing back.
    with refresher._condition:
        refresher._enqueue(refresher._entries["c"], None, skips=True)
    go_on.set()

    assert asked.id == first.id
    assert finished(refresher, first, "c").unchanged is False
    assert served(tmp_path, "c") == [(2, "y")]
    assert finished(refresher, second, "d").unchanged is True


def test_a_restart_with_an_unchanged_source_loads_nothing(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    put(tmp_path, "a.csv")
    dataset = accelerated(tmp_path)
    first = start(dataset)
    settled(first)
    before = state(first)

    second = start(dataset)
    assert second.is_loaded()
    run = settled(second)

    assert (run.status, run.unchanged, run.rows) == ("succeeded", True, 1)
    assert state(second).snapshot == before.snapshot
    assert [run.unchanged for run in second.history("d")] == [True, False]


# --- loading once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip_unchanged", [True, False])
def test_each_is_loaded_once_and_nothing_is_scheduled(tmp_path: Path, gate: Gate, skip_unchanged: bool) -> None:
    put(tmp_path, "a.csv")
    (tmp_path / "state").mkdir()
    datasets = [
        accelerated(tmp_path, name="Good", refresh_check_interval_s=0.1),
        accelerated(tmp_path, "absent.csv", name="bad", refresh_check_interval_s=0.1),
        accelerated(tmp_path, name="other", enabled=False),
    ]

    for is_again in (False, True):
        refresher = Refresher(configure(tmp_path, *datasets), gate)
        (good, first), (bad, second) = refresher.load_once(["good", "BAD", "Good"], skip_unchanged=skip_unchanged)
        assert refresher.stop(30)

        assert (good, first.status, first.rows) == ("Good", "succeeded", 1)
        assert first.unchanged is (is_again and skip_unchanged)
        assert (bad, second.status) == ("bad", "failed")
        assert [len(refresher.history(name)) for name in ("good", "bad", "other")] == [1 + is_again, 1 + is_again, 0]


def test_loading_once_what_is_unknown_loads_nothing(tmp_path: Path, gate: Gate) -> None:
    put(tmp_path, "a.csv")
    (tmp_path / "state").mkdir()
    refresher = Refresher(configure(tmp_path, accelerated(tmp_path)), gate)

    with pytest.raises(UnknownDatasetError):
        refresher.load_once(["d", "nope"], skip_unchanged=True)

    assert refresher.history("d") == ()
    assert refresher.stop(1)


def test_the_interval_counts_from_the_end_of_a_refresh(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path, refresh_check_interval_s=0.3))

    wait_for(lambda: len([run for run in refresher.history("d") if run.finished_at]) >= 4, "three intervals")

    times = [(run.started_at, run.finished_at) for run in reversed(refresher.history("d")) if run.finished_at]
    for (_, ended), (began, _) in itertools.pairwise(times):
        assert ended is not None
        assert began is not None
        assert began > ended


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


def test_trouble_nobody_thought_of_fails_one_run_and_is_logged(
    tmp_path: Path, start: Callable[..., Refresher], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path))
    settled(refresher)

    with monkeypatch.context() as patch:
        patch.setattr(duckdb, "connect", lambda *_args, **_more: 1 / 0)
        run = finished(refresher, refresher.request_refresh("d"))

    assert run.error == "The refresh failed for a reason that the log of the runtime tells."
    assert "ZeroDivisionError" in caplog.text
    assert finished(refresher, refresher.request_refresh("d")).status == "succeeded"


# --- stop and restart -------------------------------------------------------------------------------------------------


def test_a_stop_interrupts_the_load_and_lists_what_was_cut_off(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path))
    settled(refresher)
    began = time.monotonic()
    with held_up(refresher):
        refresher.request_refresh("d")
        assert refresher.stop(30)

    assert time.monotonic() - began < 30
    queued, running, first = refresher.history("d")
    assert (queued.status, running.status, first.status) == ("failed", "failed", "succeeded")
    assert (queued.error, running.error) == ("interrupted", "interrupted")
    assert queued.finished_at is not None
    assert running.finished_at is not None
    assert len(list((tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir())) == 1


def test_a_restart_serves_the_last_good_data_at_once_and_refreshes_behind_it(
    tmp_path: Path, start: Callable[..., Refresher]
) -> None:
    put(tmp_path, "a.csv")
    dataset = accelerated(tmp_path)
    first = start(dataset)
    settled(first)
    (tmp_path / "a.csv").unlink()

    second = start(dataset)
    assert second.is_loaded()
    assert served(tmp_path) == [(1, "x")]
    settled(second)

    assert state(second).status == "Error"
    assert state(second).rows == 1
    assert [run.status for run in second.history("d")] == ["failed", "succeeded"]
    put(tmp_path, "a.csv", "a,b\n2,y\n")
    third = start(dataset)
    settled(third)
    assert served(tmp_path) == [(2, "y")]


def test_a_restart_with_another_definition_does_not_serve_the_old_data(
    tmp_path: Path, start: Callable[..., Refresher]
) -> None:
    put(tmp_path, "a.csv")
    settled(start(accelerated(tmp_path)))

    refresher = start(accelerated(tmp_path, "absent.csv"))
    settled(refresher)

    assert not refresher.is_loaded()
    assert (state(refresher).status, state(refresher).rows) == ("Error", None)
    assert read_manifest(tmp_path / "state").snapshots == ()


def test_r18_a_damaged_snapshot_is_rebuilt_at_start(
    tmp_path: Path, start: Callable[..., Refresher], caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a.csv")
    dataset = accelerated(tmp_path)
    settled(start(dataset))
    (snapshot,) = (tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir()
    start(dataset).stop(30)
    (snapshot,) = (tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir()
    content = bytearray(snapshot.read_bytes())
    content[len(content) // 2] ^= 0x10
    snapshot.write_bytes(content)

    refresher = start(dataset)
    wait_for(refresher.is_loaded, "the rebuild")
    settled(refresher)

    assert served(tmp_path) == [(1, "x")]
    assert "is damaged: its checksum is wrong. It is loaded from the source again." in caplog.text


def test_r21_many_refreshes_leave_no_descriptor_thread_or_file(tmp_path: Path, start: Callable[..., Refresher]) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path))
    settled(refresher)

    def measure() -> tuple[int, int, list[str]]:
        names = [name.rsplit("-", 1)[0] for name in files_below(tmp_path)]
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), names

    before = measure()
    for _ in range(20):
        finished(refresher, refresher.request_refresh("d"))

    assert measure() == before


def test_a_refresher_that_was_never_started_stops(tmp_path: Path, gate: Gate) -> None:
    (tmp_path / "state").mkdir()

    refresher = Refresher(configure(tmp_path, accelerated(tmp_path)), gate)

    assert [(state.status, state.loaded_once) for state in refresher.datasets()] == [("Initializing", False)]
    assert refresher.stop(1)
