"""The options of a refresh request: its mode and its delay."""

from pathlib import Path
from typing import Any

import pytest

from datasources.control import RefreshRun
from datasources.errors import SourceError, TimeColumnMissingError
from datasources.refresh.refresher import Refresher
from datasources.snapshots.snapshot import Order
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.datasources.sources.test_files import put
from tests.datasources.support import Start, builder, deadline, declare, finished, loaded, served, settled, state
from tests.datasources.test_refresh_clock import tick

OLD = "t,v\n1,a\n2,b\n"
#: Row 1 is gone, row 2 is another one, row 3 is new.
NEW = "t,v\n2,c\n3,d\n"

REPLACED, ADDED = [(2, "c"), (3, "d")], [(1, "a"), (2, "b"), (3, "d")]


def timed(directory: Path, mode: Any, **settings: Any) -> DatasetConfig:
    return declare(directory, "a.csv", time_column="t", acceleration=AccelerationConfig(refresh_mode=mode, **settings))


# --- the mode ---------------------------------------------------------------------------------------------------------


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


def test_a_full_load_of_what_is_appended_to_keeps_its_time(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", OLD)
    made = builder(tmp_path)

    with pytest.raises(SourceError, match="must keep the time_column"):
        made.build(Order(timed(tmp_path, "append"), "SELECT v FROM d", mode="full"), deadline())


def test_append_without_a_time_column_is_refused(tmp_path: Path, start: Start) -> None:
    put(tmp_path, "a.csv", OLD)
    refresher = start(declare(tmp_path, "a.csv", name="Orders"))
    settled(refresher, "Orders")

    with pytest.raises(TimeColumnMissingError, match=r"^Dataset Orders has no time_column"):
        refresher.request_refresh("orders", mode="append")
    assert len(refresher.history("Orders")) == 1


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


# --- the jitter -------------------------------------------------------------------------------------------------------


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
