import itertools
import logging
import threading
import time
from pathlib import Path

import pytest

from datasources.control import AdmittedSql
from datasources.deadline import Deadline
from datasources.refresh.refresher import Refresher
from datasources.snapshots.snapshot import Order, SnapshotBuilder
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot, manifest_path, read_manifest
from tests.datasources.sources.test_files import put
from tests.datasources.support import Start, accelerated, configure, finished, served, settled, state, wait_for


def tick(refresher: Refresher, clock: list[float], time_s: float) -> None:
    """Set the clock of intervals, and have the refresher look at it."""
    clock[0] = time_s
    with refresher._condition:
        refresher._condition.notify_all()


def test_r16_a_source_that_is_down_is_tried_ever_less_often_and_logged_once_a_minute(
    tmp_path: Path, begin: Start, caplog: pytest.LogCaptureFixture, clock: list[float]
) -> None:
    refresher = begin(accelerated(tmp_path, refresh_check_interval_s=10), now=lambda: clock[0])

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
    tmp_path: Path, begin: Start, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    put(tmp_path, "a.csv")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    refresher = begin(accelerated(tmp_path, refresh_check_interval_s=10), now=lambda: clock[0])

    tick(refresher, clock, 9.9)
    assert len(refresher.history("d")) == 1
    tick(refresher, clock, 10)

    wait_for(lambda: len(refresher.history("d")) == 2, "the next refresh")


def test_jitter_delays_only_scheduled_refreshes(tmp_path: Path, start: Start, clock: list[float]) -> None:
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
        self._building, self._go_on = building, go_on
        self.close = self._builder.close

    def build(self, order: Order, deadline: Deadline) -> Snapshot | None:
        self._building.append(order.dataset.name)
        while not self._go_on.wait(0.01) and not deadline.passed:
            pass
        return self._builder.build(order, deadline)


def test_two_loads_run_at_once_and_never_two_of_one_dataset(tmp_path: Path, start: Start) -> None:
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
    # First come, first served: c before the second load of a.
    assert building == ["a", "b", "c", "a"]
    assert len(read_manifest(tmp_path / "state").snapshots) == 3
    assert len(list((tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir())) == 3


def test_many_datasets_published_by_two_threads_are_all_there(tmp_path: Path, start: Start) -> None:
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
    tmp_path: Path, begin: Start, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a.csv")
    refresher = begin(accelerated(tmp_path, refresh_check_interval_s=10), now=lambda: clock[0])
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


def test_a_caller_who_joins_a_scheduled_run_has_the_source_read(tmp_path: Path, start: Start) -> None:
    put(tmp_path, "a.csv", "a,b\n1,x\n2,y\n")
    datasets = [accelerated(tmp_path, name=name) for name in "abcd"]
    for name in "abcd":
        settled(start(*datasets), name)
    go_on = threading.Event()
    refresher = start(*datasets, builders=[Slow(tmp_path, [], go_on) for _ in range(2)])

    first, second = refresher.history("c")[0], refresher.history("d")[0]
    asked = refresher.request_refresh("c", AdmittedSql("SELECT * FROM c WHERE a = 2"))
    # A request of the clock does not undo that of a caller.
    with refresher._condition:
        refresher._enqueue(refresher._entries["c"], None, skips=True)
    go_on.set()

    assert asked.id == first.id
    assert finished(refresher, first, "c").unchanged is False
    assert served(tmp_path, "c") == [(2, "y")]
    assert finished(refresher, second, "d").unchanged is True


def test_a_restart_with_an_unchanged_source_loads_nothing(tmp_path: Path, start: Start, refresher: Refresher) -> None:
    before = state(refresher)

    second = start(accelerated(tmp_path))
    assert second.is_loaded()
    run = settled(second)

    assert (run.status, run.unchanged, run.rows) == ("succeeded", True, 1)
    assert state(second).snapshot == before.snapshot
    assert [run.unchanged for run in second.history("d")] == [True, False]


def test_the_interval_counts_from_the_end_of_a_refresh(tmp_path: Path, start: Start) -> None:
    put(tmp_path, "a.csv")
    refresher = start(accelerated(tmp_path, refresh_check_interval_s=0.3))

    wait_for(lambda: len([run for run in refresher.history("d") if run.finished_at]) >= 4, "three intervals")

    times = [(run.started_at, run.finished_at) for run in reversed(refresher.history("d")) if run.finished_at]
    for (_, ended), (began, _) in itertools.pairwise(times):
        assert str(began) > str(ended)
