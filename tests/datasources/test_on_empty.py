"""What a refresh does when a source that had rows has none."""

import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import telemetry.state
from datasources.control import AdmittedSql
from datasources.refresh.loader import LoaderProcess
from datasources.snapshots.snapshot import SnapshotBuilder
from runtimeconf.model import AccelerationConfig, DatasetConfig, MaterializedView
from system import settled_clock, wallclock
from telemetry.events import EmptiedEvent, Event
from tests.datasources.support import Start, configure, declare, finished, served, settled, state

FULL = [(1, "x"), (2, "y")]
EMPTY: list[tuple[int, str]] = []
REFUSAL = (
    "The source of d has no rows and on_empty is fail: the 2 previously loaded rows stay in place. "
    "To serve an empty dataset, set on_empty to accept."
)


def write(directory: Path, rows: list[tuple[int, str]], name: str = "a.parquet") -> None:
    """Replace the source: a file whose columns have types even without rows."""
    columns = {"a": pa.array([a for a, _ in rows], pa.int64()), "b": pa.array([b for _, b in rows], pa.string())}
    pq.write_table(pa.table(columns), directory / "new")
    (directory / "new").replace(directory / name)


def counted(events: list[Event]) -> list[str]:
    return [event.dataset for event in events if isinstance(event, EmptiedEvent)]


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """What is reported to the counters."""
    reported: list[Event] = []
    telemetry.state.deliver_to(reported.append, lambda _: None)
    yield reported
    telemetry.state.disconnect()


def test_an_empty_source_is_served_with_a_warning_and_counted(
    tmp_path: Path, begin: Start, events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, FULL)
    refresher = begin(declare(tmp_path, "a.parquet"))
    write(tmp_path, EMPTY)

    for _ in range(2):  # Only the first one has lost rows.
        assert finished(refresher, refresher.request_refresh("d")).rows == 0

    assert served(tmp_path) == []
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "Dataset d no longer has rows; before this refresh it had 2"
    ]
    telemetry.state.flush()
    assert counted(events) == ["d"]


def test_a_guarded_dataset_keeps_its_rows_until_there_are_others(
    tmp_path: Path, begin: Start, events: list[Event]
) -> None:
    write(tmp_path, FULL)
    guarded = declare(tmp_path, "a.parquet", on_empty="fail")
    refresher = begin(guarded)
    write(tmp_path, EMPTY)

    run = finished(refresher, refresher.request_refresh("d"))

    assert (run.status, run.error, state(refresher).error) == ("failed", REFUSAL, REFUSAL)
    assert served(tmp_path) == [(1, "x"), (2, "y")]
    # Also after a restart, in the process that loads under `serve`.
    with LoaderProcesses(tmp_path) as builders:
        refresher = begin(guarded, builders=builders)
        assert (state(refresher).status, state(refresher).error, state(refresher).rows) == ("Error", REFUSAL, 2)
        write(tmp_path, [(3, "z")])
        assert finished(refresher, refresher.request_refresh("d")).error is None
        assert (served(tmp_path), state(refresher).status) == ([(3, "z")], "Ready")
    telemetry.state.flush()
    assert counted(events) == []


@pytest.mark.parametrize("on_empty", ["accept", "fail"])
@pytest.mark.parametrize("content", ["a,b\n", "a,b"])
def test_a_file_with_a_header_only_has_no_rows_and_no_other_types(
    tmp_path: Path, begin: Start, content: str, on_empty: Literal["accept", "fail"]
) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2024-01-05\n2,\n")
    refresher = begin(declare(tmp_path, "a.csv", on_empty=on_empty))
    (tmp_path / "a.csv").write_text(content)

    run = finished(refresher, refresher.request_refresh("d"))

    assert run.error == (REFUSAL if on_empty == "fail" else None)
    types = served(tmp_path, sql="SELECT column_type FROM (DESCRIBE d)")
    assert (len(served(tmp_path)), types) == (2 if on_empty == "fail" else 0, [("BIGINT",), ("DATE",)])


@pytest.mark.parametrize(
    ("acceleration", "rows"),
    [
        pytest.param(AccelerationConfig(enabled=True, refresh_mode="append"), 2, id="append"),
        pytest.param(AccelerationConfig(enabled=True, refresh_data_window_s=1e10), 0, id="window"),
        pytest.param(AccelerationConfig(enabled=True, refresh_sql="SELECT a + 1 AS a, b FROM d"), 0, id="refresh_sql"),
    ],
)
def test_the_types_of_a_file_with_a_header_only_are_those_served(
    tmp_path: Path, begin: Start, acceleration: AccelerationConfig, rows: int
) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2024-01-05\n2,2024-01-06\n")
    dataset = replace(declare(tmp_path, "a.csv"), time_column="b", acceleration=acceleration)
    refresher = begin(dataset)
    (tmp_path / "a.csv").write_text("a,b\n")

    run = finished(refresher, refresher.request_refresh("d"))

    assert (run.error, len(served(tmp_path))) == (None, rows)
    assert served(tmp_path, sql="SELECT column_type FROM (DESCRIBE d)") == [("BIGINT",), ("DATE",)]


class LoaderProcesses:
    """The builders of `serve`, which end with the block."""

    def __init__(self, directory: Path) -> None:
        self._builders = [LoaderProcess(SnapshotBuilder.of(configure(directory))) for _ in range(2)]

    def __enter__(self) -> list[LoaderProcess]:
        return self._builders

    def __exit__(self, *_: object) -> None:
        for one in self._builders:
            one.close()


@pytest.mark.parametrize("refresh_sql", ["SELECT * FROM d WHERE a > 5", "SELECT * FROM d LIMIT 0"])
def test_the_guard_is_about_the_result_of_the_refresh_sql(tmp_path: Path, begin: Start, refresh_sql: str) -> None:
    write(tmp_path, FULL)
    refresher = begin(declare(tmp_path, "a.parquet", on_empty="fail"))

    run = finished(refresher, refresher.request_refresh("d", AdmittedSql(refresh_sql)))

    assert (run.error, served(tmp_path)) == (REFUSAL, [(1, "x"), (2, "y")])


def test_a_first_load_may_be_empty(tmp_path: Path, begin: Start, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, EMPTY)
    refresher = begin(declare(tmp_path, "a.parquet", on_empty="fail"))
    assert (state(refresher).status, served(tmp_path)) == ("Ready", [])

    # An empty dataset stays empty, and another definition makes another dataset.
    assert finished(refresher, refresher.request_refresh("d")).error is None
    write(tmp_path, FULL)
    finished(refresher, refresher.request_refresh("d"))
    write(tmp_path, EMPTY, "b.parquet")
    refresher = begin(declare(tmp_path, "b.parquet", on_empty="fail"))
    assert (state(refresher).error, served(tmp_path)) == (None, [])
    assert "no longer has rows" not in caplog.text


def test_an_append_that_finds_nothing_keeps_its_rows_without_an_error(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, FULL)
    acceleration = AccelerationConfig(refresh_mode="append")
    refresher = begin(declare(tmp_path, "a.parquet", time_column="a", on_empty="fail", acceleration=acceleration))
    write(tmp_path, EMPTY)

    run = finished(refresher, refresher.request_refresh("d"))
    assert (run.unchanged, run.rows, served(tmp_path)) == (True, 2, [(1, "x"), (2, "y")])

    run = finished(refresher, refresher.request_refresh("d", mode="full"))
    assert (run.error, served(tmp_path)) == (REFUSAL, [(1, "x"), (2, "y")])


@pytest.mark.parametrize("mode", ["full", "append"])
def test_rows_that_are_too_old_leave_a_guarded_dataset(
    tmp_path: Path, begin: Start, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    now = datetime.now(UTC)
    write(tmp_path, [(int(now.timestamp()), "x"), (int(now.timestamp()) - 60, "y")])
    acceleration = AccelerationConfig(refresh_mode=mode, retention_period_s=3600.0, retention_check_interval_s=86400.0)
    settings = {"time_column": "a", "time_format": "unix_seconds", "on_empty": "fail"}
    refresher = begin(declare(tmp_path, "a.parquet", acceleration=acceleration, **settings))
    write(tmp_path, EMPTY)

    if mode == "full":
        assert finished(refresher, refresher.request_refresh("d")).error == REFUSAL
    assert state(refresher).rows == 2

    right, since_boot = time.time, wallclock.since_boot
    monkeypatch.setattr(time, "time", lambda: right() + 7200)
    monkeypatch.setattr(settled_clock, "since_boot", lambda: since_boot() + 7200)
    assert finished(refresher, refresher.request_refresh("d")).error is None
    assert served(tmp_path) == []


def test_a_view_may_find_nothing_and_reads_what_a_guarded_dataset_keeps(
    tmp_path: Path, begin: Start, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, FULL)
    guarded = declare(tmp_path, "a.parquet", on_empty="fail")
    view = DatasetConfig(
        name="large",
        from_="view:large",
        connector="view",
        location=str(tmp_path / "state"),
        on_schema_change="accept",
        acceleration=AccelerationConfig(),
        view=MaterializedView(sql="SELECT * FROM d WHERE a > 1", reads=("d",)),
    )
    refresher = begin(guarded, view)
    assert served(tmp_path, "large") == [(2, "y")]

    write(tmp_path, EMPTY)
    assert finished(refresher, refresher.request_refresh("d")).error == REFUSAL
    assert finished(refresher, refresher.request_refresh("large"), "large").rows == 1

    write(tmp_path, [(1, "x")])
    finished(refresher, refresher.request_refresh("d"))
    settled(refresher, "large")
    assert (served(tmp_path, "large"), state(refresher, "large").error) == ([], None)
    assert "no longer has rows" not in caplog.text


def test_a_dataset_that_is_reloaded_with_accept_takes_the_empty_source(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, FULL)
    guarded = declare(tmp_path, "a.parquet", on_empty="fail")
    begin(guarded)
    write(tmp_path, EMPTY)

    assert state(begin(guarded)).rows == 2
    assert state(begin(replace(guarded, on_empty="accept"))).rows == 0
