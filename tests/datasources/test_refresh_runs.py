import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from datasources.control import AdmittedSql, RefreshRun
from datasources.deadline import Deadline
from datasources.refresh import refresher as module
from datasources.refresh.refresher import Refresher
from datasources.snapshots.snapshot import Order, SnapshotBuilder
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot, manifest_path, read_manifest
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.datasources.sources.test_files import put
from tests.datasources.support import (
    Start,
    accelerated,
    builder,
    configure,
    deadline,
    declare,
    finished,
    loaded,
    meanwhile,
    served,
    settled,
    state,
)
from tests.system.harness import wait_for


def tick(refresher: Refresher, clock: list[float], time_s: float) -> None:
    """Set the clock of intervals, and have the refresher look at it."""
    clock[0] = time_s
    with refresher._condition:
        refresher._condition.notify_all()


@pytest.mark.parametrize("interval_s", [3600.0, None])
def test_r16_a_source_that_is_down_at_the_start_is_tried_ever_less_often_and_logged_once_a_minute(
    tmp_path: Path, begin: Start, caplog: pytest.LogCaptureFixture, clock: list[float], interval_s: float | None
) -> None:
    refresher = begin(accelerated(tmp_path, refresh_check_interval_s=interval_s), now=lambda: clock[0])

    tried_at = tries(refresher, clock, until_s=400)

    assert tried_at == [0, 2, 4, 8, 12, 20, 28, 44, 60, 92, 124, 184, 244, 304, 364]

    def warnings() -> int:
        return sum(record.levelno == logging.WARNING for record in caplog.records)

    # At 0, 60, 124, 184, 244, 304 and 364.
    wait_for(lambda: warnings() == 7, "the log")

    down = state(refresher)
    assert (down.status, down.error, down.checked_at) == ("Error", "'a.csv' does not exist.", None)
    assert down.next_refresh_at is not None

    put(tmp_path, "a.csv")
    tick(refresher, clock, 424)
    wait_for(lambda: state(refresher).status == "Ready", "the recovery")
    settled(refresher)
    assert refresher._datasets["d"].due == (None if interval_s is None else 424 + interval_s)


def tries(refresher: Refresher, clock: list[float], until_s: int) -> list[float]:
    """Advance the clock second by second, and return when `d` was loaded, the load of the start included."""
    tried_at = [clock[0]]
    for second in range(int(clock[0]) + 1, until_s):
        due = refresher._datasets["d"].due
        is_due = due is not None and due <= second
        tick(refresher, clock, second)
        if is_due:
            tried_at.append(second)
            wait_for(lambda: len(refresher.history("d")) == len(tried_at), "the next try")
            settled(refresher)
    return tried_at


def test_a_served_dataset_whose_refresh_fails_is_tried_again_soon_and_never_later_than_its_interval(
    tmp_path: Path, begin: Start, clock: list[float]
) -> None:
    put(tmp_path, "a.csv")
    dataset = accelerated(tmp_path, refresh_check_interval_s=100)
    refresher = begin(dataset, now=lambda: clock[0], chance=lambda: 0.0)
    source = tmp_path / "a.csv"
    source.rename(tmp_path / "gone.csv")

    # 5, 10, 20, 40, 80 s after a failure, then the interval.
    assert tries(refresher, clock, until_s=460) == [0, 100, 105, 115, 135, 175, 255, 355, 455]
    assert served(tmp_path) == [(1, "x")]

    (tmp_path / "gone.csv").rename(source)
    tick(refresher, clock, 555)
    wait_for(lambda: state(refresher).status == "Ready", "the recovery")
    settled(refresher)
    assert refresher._datasets["d"].due == 655


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({"refresh_retry_enabled": False}, [0, 100, 200], id="never"),
        pytest.param({"refresh_retry_max_attempts": 1}, [0, 2, 102, 202], id="once"),
    ],
)
def test_a_first_load_that_is_not_tried_again_waits_for_the_interval(
    tmp_path: Path, begin: Start, clock: list[float], settings: dict[str, Any], expected: list[float]
) -> None:
    refresher = begin(accelerated(tmp_path, refresh_check_interval_s=100, **settings), now=lambda: clock[0])

    assert tries(refresher, clock, until_s=250) == expected


def test_the_load_of_a_start_is_tried_again_although_older_data_is_served(
    tmp_path: Path, begin: Start, clock: list[float]
) -> None:
    put(tmp_path, "a.csv")
    begin(accelerated(tmp_path))
    (tmp_path / "a.csv").unlink()

    refresher = begin(accelerated(tmp_path), now=lambda: clock[0], chance=lambda: 0.0)

    assert served(tmp_path) == [(1, "x")]
    put(tmp_path, "a.csv", "a,b\n2,y\n")
    tick(refresher, clock, 5)
    wait_for(lambda: served(tmp_path) == [(2, "y")], "the next try")
    settled(refresher)
    assert refresher._datasets["d"].due is None


def test_jitter_delays_only_scheduled_refreshes(tmp_path: Path, start: Start, clock: list[float]) -> None:
    put(tmp_path, "a.csv")
    dataset = accelerated(tmp_path, refresh_check_interval_s=100, refresh_jitter_enabled=True, refresh_jitter_max_s=40)

    refresher = start(dataset, now=lambda: clock[0], chance=lambda: 0.5)
    # There is nothing to serve yet: that is not put off.
    settled(refresher)
    assert refresher._datasets["d"].due == 120
    finished(refresher, refresher.request_refresh("d"))

    again = start(dataset, now=lambda: clock[0], chance=lambda: 0.25)
    assert again._datasets["d"].due == 10
    assert state(again).next_refresh_at is not None
    tick(again, clock, 10)
    wait_for(lambda: len(again.history("d")) == 3, "the load of the start")


# --- two at once ------------------------------------------------------------------------------------------------------


class Slow:
    """A `Builder` that says what it builds, and waits until it may go on."""

    is_started = True

    def __init__(self, directory: Path, building: list[str], go_on: threading.Event) -> None:
        self._builder = SnapshotBuilder.of(configure(directory))
        self._building, self._go_on = building, go_on
        self.close = self._builder.close
        self.phases = self._builder.phases

    def build(self, order: Order, deadline: Deadline) -> Snapshot | None:
        self._building.append(order.dataset.name)
        while not self._go_on.wait(0.01) and not deadline.passed:
            pass
        return self._builder.build(order, deadline)


def test_two_loads_run_at_once_and_never_two_of_one_dataset(tmp_path: Path, start: Start, clock: list[float]) -> None:
    put(tmp_path, "a.csv")
    building: list[str] = []
    go_on = threading.Event()
    refresher = start(
        *(accelerated(tmp_path, name=name, refresh_check_interval_s=10) for name in ("a", "b", "c")),
        builders=[Slow(tmp_path, building, go_on) for _ in range(2)],
        now=lambda: clock[0],
    )

    wait_for(lambda: len(building) == 2, "two loads")
    again = refresher.request_refresh("a")
    assert [refresher.history(name)[0].status for name in "abc"] == ["queued", "running", "queued"]
    assert building == ["a", "b"]

    clock[0] = 5.0
    go_on.set()
    assert finished(refresher, again, "a").status == "succeeded"
    for name in "bc":
        assert settled(refresher, name).status == "succeeded"
    assert refresher._datasets["b"].due == 15  # counted from the end of its load
    # First come, first served: c before the second load of a.
    assert building == ["a", "b", "c", "a"]
    assert len(read_manifest(tmp_path / "state").snapshots) == 3
    assert len(list((tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir())) == 3


def test_the_second_builder_starts_only_for_a_run_that_waits(tmp_path: Path, start: Start, clock: list[float]) -> None:
    put(tmp_path, "a.csv")
    datasets = [accelerated(tmp_path, name=name) for name in "ab"]
    first: list[str] = []
    second: list[str] = []
    go_on = threading.Event()
    builders = [Slow(tmp_path, building, go_on) for building in (first, second)]
    builders[1].is_started = False
    refresher = start(*datasets, builders=builders, now=lambda: clock[0])

    wait_for(lambda: first == ["a"], "the first load")
    tick(refresher, clock, 1.75)
    with refresher._condition:
        assert refresher._runs.begin_next(2.0) is None
        assert refresher._runs.wait_s(2.0) == 0.25
    assert second == []
    tick(refresher, clock, 2.0)
    wait_for(lambda: second == ["b"], "the second load")
    go_on.set()
    assert {settled(refresher, name).status for name in "ab"} == {"succeeded"}


class Stuck:
    """A `Builder` whose loads with a `refresh_sql` last until they are stopped."""

    is_started = True

    def __init__(self, directory: Path) -> None:
        self._builder = SnapshotBuilder.of(configure(directory))
        self.close = self._builder.close
        self.phases = self._builder.phases

    def build(self, order: Order, deadline: Deadline) -> Snapshot | None:
        while order.refresh_sql is not None and not deadline.passed:
            deadline.sleep(0.01)
        return self._builder.build(order, deadline)


def test_endless_refreshes_of_a_key_do_not_keep_others_waiting(
    tmp_path: Path, begin: Start, clock: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.02)
    caplog.set_level(logging.INFO)
    put(tmp_path, "a.csv")
    datasets = [accelerated(tmp_path, name=name) for name in ("mine", "mine_too", "other")]
    scheduled = accelerated(tmp_path, name="scheduled", refresh_check_interval_s=100)
    refresher = begin(*datasets, scheduled, builders=[Stuck(tmp_path) for _ in range(2)], now=lambda: clock[0])
    endless = AdmittedSql("SELECT * FROM x")

    greedy = [refresher.request_refresh(name, endless, caller="greedy") for name in ("mine", "mine_too")]
    wait_for(lambda: [refresher.history(name)[0].status for name in ("mine", "mine_too")] == ["running"] * 2, "loads")
    run = refresher.request_refresh("other", caller="modest")
    with meanwhile(lambda: tick(refresher, clock, clock[0] + 0.1)):
        assert finished(refresher, run, "other").status == "succeeded"

        wait_for(lambda: refresher.history("mine_too")[0].status == "running", "the greedy load to begin again")
        wait_for(lambda: len(refresher.history("scheduled")) > 1, "the schedule")
        assert settled(refresher, "scheduled").status == "succeeded"

    assert "was stopped so that a waiting load can run" in caplog.text
    assert refresher.history("mine")[0].status == "running"
    assert [refresher.history(name)[0].id for name in ("mine", "mine_too")] == [one.id for one in greedy]
    assert len(refresher.history("mine_too")) == 2  # It is one run, however often it begins.


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

    assert refresher.is_loaded()
    first, second = refresher.history("c")[0], refresher.history("d")[0]
    asked = refresher.request_refresh("c", AdmittedSql("SELECT * FROM c WHERE a = 2"))
    # A request of the clock does not undo that of a caller.
    with refresher._condition:
        refresher._runs.load_soon([refresher._datasets["c"]])
    go_on.set()

    assert asked.id == first.id
    assert finished(refresher, first, "c").unchanged is False
    assert served(tmp_path, "c") == [(2, "y")]
    assert finished(refresher, second, "d").unchanged is True


OLD = "t,v\n1,a\n2,b\n"
#: Row 1 is gone, row 2 is another one, row 3 is new.
NEW = "t,v\n2,c\n3,d\n"

REPLACED, ADDED = [(2, "c"), (3, "d")], [(1, "a"), (2, "b"), (3, "d")]


def timed(directory: Path, mode: Any, **settings: Any) -> DatasetConfig:
    return declare(directory, "a.csv", time_column="t", acceleration=AccelerationConfig(refresh_mode=mode, **settings))


# --- the mode of a request --------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("declared", "mode", "expected"),
    [
        pytest.param("append", None, ADDED, id="as declared: append"),
        pytest.param("append", "append", ADDED, id="append to what is appended to"),
        pytest.param("append", "full", REPLACED, id="full of what is appended to"),
        pytest.param("full", None, REPLACED, id="as declared: full"),
        pytest.param("full", "full", REPLACED, id="full of what is replaced"),
        pytest.param("full", "append", ADDED, id="append to what is replaced"),
    ],
)
def test_a_mode_holds_for_its_run(
    tmp_path: Path, begin: Start, declared: str, mode: Any, expected: list[tuple[int, str]]
) -> None:
    put(tmp_path, "a.csv", OLD)
    refresher = begin(timed(tmp_path, declared))
    put(tmp_path, "a.csv", NEW)

    run = finished(refresher, refresher.request_refresh("d", mode=mode))

    assert (run.status, run.error) == ("succeeded", None)
    assert sorted(served(tmp_path)) == expected
    put(tmp_path, "a.csv", "t,v\n9,z\n")
    finished(refresher, refresher.request_refresh("d"))
    assert sorted(served(tmp_path)) == ([*expected, (9, "z")] if declared == "append" else [(9, "z")])


def test_what_was_appended_once_is_kept_by_the_next_start_and_read_anew_by_the_next_refresh(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", OLD)
    made, dataset = builder(tmp_path), timed(tmp_path, "full")
    first = loaded(made, dataset, None, deadline())
    put(tmp_path, "a.csv", NEW)

    second = loaded(made, dataset, None, deadline(), served=first, mode="append")

    assert second.source == first.source
    # The file is as it was when it was appended, and still has other rows than are served.
    third = loaded(made, dataset, None, deadline(), served=second, skip_unchanged=True)
    assert (second.rows, third.rows) == (3, 2)


@pytest.mark.parametrize("modes", [("full", "append"), ("append", "full"), ("full", None), (None, "full")])
def test_a_joined_run_is_full_when_one_of_those_who_ask_wants_that(
    tmp_path: Path, begin: Start, clock: list[float], modes: tuple[Any, Any]
) -> None:
    put(tmp_path, "a.csv", OLD)
    refresher = begin(timed(tmp_path, "append"), now=lambda: clock[0], chance=lambda: 1.0)
    put(tmp_path, "a.csv", NEW)

    first, second = (refresher.request_refresh("d", mode=mode, jitter_max_s=10) for mode in modes)
    tick(refresher, clock, 10)

    assert second.id == first.id
    assert finished(refresher, first).status == "succeeded"
    assert sorted(served(tmp_path)) == REPLACED


# --- the delay of a request -------------------------------------------------------------------------------------------


@pytest.fixture
def delayed(tmp_path: Path, begin: Start, clock: list[float]) -> tuple[Refresher, RefreshRun]:
    """A refresher that has loaded, and a run that a caller put off by 1000 s."""
    put(tmp_path, "a.csv")
    refresher = begin(timed(tmp_path, "full"), now=lambda: clock[0], chance=lambda: 1.0)
    return refresher, refresher.request_refresh("d", jitter_max_s=1000)


def status_of(refresher: Refresher, run_id: str) -> str:
    return next(run.status for run in refresher.history("d") if run.id == run_id)


def test_a_delayed_run_is_listed_and_blocks_no_other(tmp_path: Path, begin: Start, clock: list[float]) -> None:
    put(tmp_path, "a.csv")
    other = declare(tmp_path, "a.csv", name="other")
    refresher = begin(timed(tmp_path, "full"), other, now=lambda: clock[0], chance=lambda: 0.5)
    settled(refresher, "other")

    run = refresher.request_refresh("d", jitter_max_s=40)

    tick(refresher, clock, 19.9)
    assert finished(refresher, refresher.request_refresh("other"), "other").status == "succeeded"
    assert status_of(refresher, run.id) == "queued"
    assert state(refresher).status == "Ready"
    tick(refresher, clock, 20)
    assert finished(refresher, run).status == "succeeded"


@pytest.mark.parametrize("jitter_max_s", [0.0, 10.0])
def test_a_joined_run_begins_at_the_earliest_time_asked_for(
    delayed: tuple[Refresher, RefreshRun], clock: list[float], jitter_max_s: float
) -> None:
    refresher, first = delayed

    second = refresher.request_refresh("d", jitter_max_s=jitter_max_s)

    assert second.id == first.id
    tick(refresher, clock, jitter_max_s)
    assert finished(refresher, first).status == "succeeded"


def test_the_interval_ends_the_wait(tmp_path: Path, begin: Start, clock: list[float]) -> None:
    put(tmp_path, "a.csv")
    dataset = timed(tmp_path, "full", refresh_check_interval_s=10)
    refresher = begin(dataset, now=lambda: clock[0], chance=lambda: 1.0)
    run = refresher.request_refresh("d", jitter_max_s=1000)

    tick(refresher, clock, 10)

    assert finished(refresher, run).status == "succeeded"
    assert len(refresher.history("d")) == 2


def test_a_delayed_run_ends_with_the_runtime(delayed: tuple[Refresher, RefreshRun]) -> None:
    refresher, run = delayed
    assert status_of(refresher, run.id) == "queued"

    assert refresher.stop(30)

    (newest, _) = refresher.history("d")
    assert (newest.id, newest.status, newest.error) == (run.id, "failed", "interrupted")


def test_a_request_that_is_not_due_loads_as_declared_after_a_reload(tmp_path: Path, begin: Start) -> None:
    put(tmp_path, "a.csv")
    dataset = accelerated(tmp_path)
    former = begin(dataset)
    former.request_refresh("d", AdmittedSql("SELECT 1 AS a"), jitter_max_s=1e8)
    new = former.replace(configure(tmp_path, dataset), (), 60)

    assert [queued.sql for queued in new._runs._queue] == [None]
    assert new.stop(30)


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("takes_effect", [True, False])
def test_what_another_declaration_loads_is_served_once_it_takes_effect(
    tmp_path: Path, begin: Start, *, takes_effect: bool, is_loaded: bool
) -> None:
    dataset = accelerated(tmp_path)
    before = [(1, "x")] if is_loaded else []
    if is_loaded:
        put(tmp_path, "a.csv", "a,b\n1,x\n")
    former = begin(dataset)
    put(tmp_path, "a.csv", "a,b\n2,y\n3,z\n")
    # The definition stays the same, so the present data fits both.
    new = former.replace(configure(tmp_path, replace(dataset, on_schema_change="accept")), (), 60)

    wait_for(new.is_loaded, "the data")
    # It comes too late for the former declaration, and waits: what it appended would be lost if the reload failed.
    run = former.request_refresh("d", AdmittedSql("SELECT a FROM d"))
    assert present(tmp_path) == before
    if takes_effect:
        new.commit()
    else:
        put(tmp_path, "a.csv", "a,b\n4,w\n")
        new = new.replace(configure(tmp_path, dataset), (), 60)
        assert present(tmp_path) in (before, [(4, "w")])
    assert finished(new, run).status == "succeeded"
    assert present(tmp_path) == ([(2, "y"), (3, "z")] if takes_effect else [(4, "w")])
    assert takes_effect or 2 not in [one.rows for one in new.history("d")]
    assert len([*(tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir()]) == 1
    assert new.stop(30)


def present(directory: Path) -> list[tuple[Any, ...]]:
    """Return what statements read of `d`; nothing without data."""
    return served(directory) if read_manifest(directory / "state").snapshots else []
