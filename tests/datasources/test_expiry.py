"""`refresh_data_window` and `retention_period`: rows that are too old are left out of a load, or dropped by it."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from msgspec.structs import replace

from datasources.errors import SourceError
from datasources.snapshots.snapshot import Order, SnapshotBuilder, fingerprint
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot
from runtimeconf.model import AccelerationConfig, DatasetConfig, TimeFormat
from tests.datasources.sources.test_files import put
from tests.datasources.support import Start, accelerated, configure, deadline, declare, finished, rows, served

DAY_S = 86_400.0
NOW = datetime.now(UTC)

NAMES = "SELECT name FROM d ORDER BY name"


def builder(directory: Path) -> SnapshotBuilder:
    config = configure(directory)
    (config.state_dir / SNAPSHOT_DIRECTORY).mkdir(parents=True, exist_ok=True)
    return SnapshotBuilder.of(config)


def aged(**days: float) -> str:
    """Return a CSV of names, each with a time of so many days ago."""
    return "t,name\n" + "".join(f"{NOW - timedelta(days=age):%F %T},{name}\n" for name, age in days.items())


def kept(directory: Path, text: str = "a.csv", time_format: TimeFormat | None = None, **settings: Any) -> DatasetConfig:
    return declare(
        directory, text, time_column="T", time_format=time_format, acceleration=AccelerationConfig(**settings)
    )


def names(directory: Path, snapshot: Snapshot | None) -> list[str]:
    assert snapshot is not None
    return [name for (name,) in rows(directory, snapshot, NAMES)]


@pytest.mark.parametrize(
    "settings",
    [
        {"refresh_data_window_s": DAY_S},
        {"retention_period_s": DAY_S},
        {"refresh_data_window_s": 9 * DAY_S, "retention_period_s": DAY_S},
        {"refresh_data_window_s": DAY_S, "refresh_sql": "SELECT upper(name) AS name FROM d"},
    ],
)
def test_a_load_leaves_out_old_rows_and_those_without_a_time(tmp_path: Path, settings: dict[str, Any]) -> None:
    put(tmp_path, "a.csv", aged(A=0.5, B=1.5, C=30) + ",D\n")
    dataset = kept(tmp_path, **settings)

    snapshot = builder(tmp_path).build(Order(dataset, dataset.acceleration.refresh_sql), deadline())

    assert names(tmp_path, snapshot) == ["A"]


@pytest.mark.parametrize(
    ("expression", "time_format"),
    [
        ("t::DATE", "date"),
        ("t::TIMESTAMP_NS", None),
        ("t AT TIME ZONE 'UTC'", "timestamptz"),
        ("(t AT TIME ZONE 'UTC')::TIMESTAMPTZ_NS", None),
        ("epoch(t)", "unix_seconds"),
        ("epoch_ms(t)", "unix_millis"),
        ("epoch_ms(t)::DECIMAL(20,2)", "unix_millis"),
    ],
)
def test_any_type_of_time_is_compared_as_a_time(tmp_path: Path, expression: str, time_format: Any) -> None:
    duckdb.execute(
        f"COPY (SELECT {expression} AS t, name FROM (VALUES (TIMESTAMP '{NOW:%F %T}', 'new'), "
        f"(TIMESTAMP '{NOW - timedelta(days=3):%F %T}', 'old')) AS v(t, name)) TO '{tmp_path}/a.parquet'"
    )
    dataset = kept(tmp_path, "a.parquet", time_format, refresh_data_window_s=2 * DAY_S)

    assert names(tmp_path, builder(tmp_path).build(Order(dataset), deadline())) == ["new"]


@pytest.mark.parametrize(
    ("text", "time_format", "said"),
    [
        ("t,name\n1,a\n", None, "is of type BIGINT: set time_format to unix_seconds or unix_millis"),
        pytest.param(aged(a=0), "unix_millis", "is of type TIMESTAMP: remove time_format", id="timestamp"),
        ("t,name\nx,a\n", None, "is of type VARCHAR: a time_column must be a number, a date or a timestamp"),
        ("name\na\n", None, "has no column 'T'"),
    ],
)
def test_a_time_column_that_cannot_tell_the_age_makes_the_load_fail(
    tmp_path: Path, text: str, time_format: Any, said: str
) -> None:
    put(tmp_path, "a.csv", text)

    with pytest.raises(SourceError, match=said):
        builder(tmp_path).build(Order(kept(tmp_path, time_format=time_format, retention_period_s=1)), deadline())


def test_rows_expire_although_the_source_is_unchanged(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", aged(A=0.5, B=1.5))
    dataset, made = kept(tmp_path, refresh_data_window_s=DAY_S), builder(tmp_path)
    snapshot = made.build(Order(dataset), deadline())

    assert made.build(Order(dataset, served=snapshot, skip_unchanged=True), deadline()) is None, "nothing has expired"
    shorter = kept(tmp_path, refresh_data_window_s=0.4 * DAY_S)
    assert fingerprint(shorter) != fingerprint(dataset)
    assert names(tmp_path, made.build(Order(shorter, served=snapshot, skip_unchanged=True), deadline())) == []


def test_without_its_time_column_a_result_is_computed_each_time(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", aged(A=0.5, B=1.5))
    sql = "SELECT name FROM d"
    dataset, made = kept(tmp_path, refresh_data_window_s=DAY_S, refresh_sql=sql), builder(tmp_path)
    snapshot = made.build(Order(dataset, sql), deadline())

    again = made.build(Order(dataset, sql, served=snapshot, skip_unchanged=True), deadline())

    assert names(tmp_path, again) == ["A"]


def test_an_append_drops_what_it_served_once_that_has_expired(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", aged(A=0.5, B=1.5, C=3))
    dataset = kept(tmp_path, refresh_mode="append", refresh_data_window_s=2 * DAY_S, retention_period_s=30 * DAY_S)
    made = builder(tmp_path)
    first = made.build(Order(dataset), deadline())
    assert names(tmp_path, first) == ["A", "B"], "the window"

    retained = kept(tmp_path, refresh_mode="append", retention_period_s=DAY_S)
    put(tmp_path, "a.csv", aged(A=0.5, B=1.5))
    kept_before = made.build(Order(retained, now=(NOW - timedelta(days=1)).timestamp()), deadline())
    assert names(tmp_path, kept_before) == ["A", "B"], "a day ago, B was younger"
    put(tmp_path, "a.csv", aged(A=0.5, B=1.5, D=0.1))

    second = made.build(Order(retained, served=kept_before), deadline())
    assert names(tmp_path, second) == ["A", "D"]
    put(tmp_path, "a.csv", aged(A=0.5, B=1.5))
    assert names(tmp_path, made.build(Order(retained, served=kept_before), deadline())) == ["A"], "nothing newer"
    assert made.build(Order(retained, served=second), deadline()) is None, "nothing newer, nothing expired"


@pytest.mark.parametrize(
    "settings", [{"refresh_mode": "append", "retention_period_s": 86_400.0}, {"refresh_data_window_s": 86_400.0}]
)
def test_a_clock_that_is_wrong_for_a_moment_loses_no_rows(
    tmp_path: Path, begin: Start, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    put(tmp_path, "a.csv", f"n,t\n1,{datetime.now(UTC):%F %T}\n")
    refresher = begin(replace(accelerated(tmp_path, **settings), time_column="t"))
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 400 * 86_400)

    put(tmp_path, "a.csv", f"n,t\n1,{datetime.now(UTC):%F %T}\n2,{datetime.now(UTC):%F %T}\n")
    assert finished(refresher, refresher.request_refresh("d")).error is None

    assert (1,) in served(tmp_path, sql="SELECT n FROM d")
