"""Rows of snapshots as Parquet. That a cluster reads the same values is shown beside the tests of the cluster."""

from pathlib import Path

import duckdb
import pytest

from datasources.errors import SnapshotError
from datasources.snapshots.parquet import export, parquet_path
from datasources.snapshots.snapshot import remove
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot, parquet_file, snapshot_path
from tests.datasources.support import MIB, deadline
from tests.queryengine.publishing import Publisher


def snapshot_of(state_dir: Path, sql: str) -> Snapshot:
    (snapshot,) = Publisher(state_dir).publish(d=sql).snapshots
    return snapshot


def test_the_file_has_all_rows_and_is_removed_with_its_snapshot(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, "SELECT range AS a, {'size': range::UTINYINT} AS b FROM range(100)")

    export(tmp_path, snapshot, 64 * MIB, deadline())

    path = parquet_path(tmp_path, snapshot)
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT count(*), sum(a), max(b) FROM '{path}'").fetchall()
    assert found == [(100, 4950, {"size": 99})]
    remove(snapshot_path(tmp_path, snapshot))
    assert list((tmp_path / SNAPSHOT_DIRECTORY).iterdir()) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("DATE 'infinity'", 'Column "x" has infinite dates'),
        ("[{'a': TIMESTAMPTZ '-infinity'}]", 'Column "x" has infinite dates'),
        ("TIMESTAMP_NS '2020-01-01 00:00:00.000000001'", 'Column "x" has nanoseconds'),
        ("[TIMESTAMP_NS '2020-01-01']", 'Column "x" has the type TIMESTAMP_NS[]'),
        ("170141183460469231731687303715884105727::HUGEINT", "more than 38 digits"),
        ("{'a': union_value(b := 1)}", 'Column "x" has the type STRUCT(a UNION(b INTEGER))'),
        ("1::BIGNUM", 'Column "x" has the type BIGNUM'),
    ],
)
def test_a_value_without_an_equal_is_an_error(tmp_path: Path, value: str, message: str) -> None:
    snapshot = snapshot_of(tmp_path, f"SELECT {value} AS x")

    with pytest.raises(SnapshotError) as caught:
        export(tmp_path, snapshot, 64 * MIB, deadline())

    assert not parquet_path(tmp_path, snapshot).exists()
    assert message in str(caught.value)
    assert "cluster" in str(caught.value)


def test_a_text_may_say_infinity(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, "SELECT 'infinity' AS x, 'infinity'::DOUBLE AS y")

    export(tmp_path, snapshot, 64 * MIB, deadline())

    assert parquet_path(tmp_path, snapshot).exists()


@pytest.mark.parametrize(
    ("limit_s", "memory_bytes", "message"),
    [(0.0, 64 * MIB, "stopped after"), (60.0, MIB, "needs more memory")],
)
def test_an_export_has_limits(tmp_path: Path, limit_s: float, memory_bytes: int, message: str) -> None:
    snapshot = snapshot_of(tmp_path, "SELECT range::VARCHAR || repeat('x', 100) AS a FROM range(100000)")

    with pytest.raises(SnapshotError, match=message):
        export(tmp_path, snapshot, memory_bytes, deadline(limit_s))


def test_a_damaged_snapshot_is_an_error(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, "SELECT 1 AS a")
    (tmp_path / SNAPSHOT_DIRECTORY / snapshot.file).write_bytes(b"damaged")

    with pytest.raises(SnapshotError, match="cannot be written for the cluster"):
        export(tmp_path, snapshot, 64 * MIB, deadline())


def test_no_name_is_hidden_from_clusters() -> None:
    assert parquet_file("__d-0123456789abcdef.duckdb") == "d-0123456789abcdef.parquet"
