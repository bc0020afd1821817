"""`primary_key` and `indexes`: what they refuse, that a snapshot has them, and that they outlive every way to load."""

from pathlib import Path
from typing import Any

import duckdb
import pytest

from datasources.errors import SourceError
from datasources.snapshots.snapshot import Order
from queryengine.manifest import Snapshot, snapshot_path
from runtimeconf.model import AccelerationConfig, DatasetConfig, IndexConfig
from tests.datasources.sources.test_files import put
from tests.datasources.support import builder, deadline, declare, files_below, loaded, rows, verify

BY_A = IndexConfig(column="a")
UNIQUE_A = IndexConfig(column="A", unique=True)


def indexed(directory: Path, text: str = "a.csv", **settings: Any) -> DatasetConfig:
    return declare(directory, text, acceleration=AccelerationConfig(**settings))


def build(directory: Path, text: str = "a.csv", sql: str | None = None, **settings: Any) -> Snapshot:
    return builder(directory).build(Order(indexed(directory, text, **settings), sql), deadline())


def indexes_of(directory: Path, snapshot: Snapshot) -> list[tuple[str, bool, bool]]:
    """Return the column of each index, whether it is unique, and whether it is the primary key."""
    with duckdb.connect(str(snapshot_path(directory / "state", snapshot)), read_only=True) as connection:
        keys = connection.execute(
            "SELECT constraint_column_names[1], true, true FROM duckdb_constraints() "
            "WHERE constraint_type = 'PRIMARY KEY'"
        ).fetchall()
        others = connection.execute("SELECT expressions, is_unique, is_primary FROM duckdb_indexes()").fetchall()
    return [*keys, *((text.strip("'[]\""), unique, primary) for text, unique, primary in others)]


def test_a_snapshot_has_the_declared_indexes(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "a,b,c\n1,x,1\n2,y,1\n3,z,\n")

    made = build(tmp_path, primary_key="a", indexes=(IndexConfig(column="B", unique=True), IndexConfig(column="c")))

    assert indexes_of(tmp_path, made) == [("a", True, True), ("b", True, False), ("c", False, False)]
    assert rows(tmp_path, made) == [(1, "x", 1), (2, "y", 1), (3, "z", None)]
    # Equal values and nulls may be in an index that is not unique.
    assert rows(tmp_path, made, "SELECT b FROM d WHERE c = 1 ORDER BY b") == [("x",), ("y",)]
    verify(tmp_path / "state", made)


def test_a_look_up_by_an_indexed_column_reads_the_index(tmp_path: Path) -> None:
    duckdb.execute(
        f"COPY (SELECT i AS a, i % 7 AS b FROM range(300000) t(i) ORDER BY hash(i)) TO '{tmp_path}/s.parquet'"
    )
    made = build(tmp_path, "s.parquet", indexes=(UNIQUE_A,))

    assert rows(tmp_path, made, "SELECT a, b FROM d WHERE a = 4711") == [(4711, 0)]
    ((_, plan),) = rows(tmp_path, made, "EXPLAIN ANALYZE SELECT b FROM d WHERE a = 4711")
    assert "Index Scan" in plan


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        pytest.param("a\n1\n1\n", {"primary_key": "a"}, "same value in the column a, or", id="key twice"),
        pytest.param("a,b\n1,x\n,y\n", {"primary_key": "a"}, "none in the primary key", id="no key"),
        pytest.param("a\n1\n1\n", {"indexes": (UNIQUE_A,)}, "same value in the column A, or", id="twice"),
        pytest.param("b\n1\n", {"indexes": (BY_A,)}, "The indexed column a of d does not exist", id="absent"),
        pytest.param("b\n1\n", {"primary_key": "a"}, "The indexed column a of d", id="no such key"),
        pytest.param('{"a": [1]}', {"indexes": (BY_A,)}, "column a of d has a type that cannot be indexed", id="type"),
    ],
)
def test_data_that_violates_an_index_is_refused(tmp_path: Path, text: str, settings: Any, said: str) -> None:
    name = "a.json" if text.startswith("{") else "a.csv"
    put(tmp_path, name, text)

    with pytest.raises(SourceError, match=said):
        build(tmp_path, name, **settings)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("column", ['a"b', "select", "rowid", "x\ny", "Ümlaut", "_index_0"])
def test_a_column_is_found_whatever_its_name(tmp_path: Path, column: str) -> None:
    quoted = column.replace('"', '""')
    duckdb.execute(f"""COPY (SELECT 7 AS "{quoted}") TO '{tmp_path}/s.parquet'""")

    made = build(tmp_path, "s.parquet", primary_key=column.upper(), indexes=(IndexConfig(column=column.lower()),))

    assert [kinds for _, *kinds in indexes_of(tmp_path, made)] == [[True, True], [False, False]]
    assert rows(tmp_path, made) == [(7,)]


def test_an_index_is_of_what_the_refresh_sql_gives(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "x\n1\n1\n2\n")

    made = build(tmp_path, sql="SELECT x AS a, count(*) AS n FROM d GROUP BY x", primary_key="a")

    assert sorted(rows(tmp_path, made)) == [(1, 2), (2, 1)]


def test_an_append_keeps_the_index_and_what_it_promises(tmp_path: Path) -> None:
    acceleration = AccelerationConfig(refresh_mode="append", primary_key="id", indexes=(IndexConfig(column="b"),))
    dataset = declare(tmp_path, "a.csv", time_column="t", acceleration=acceleration)
    made = builder(tmp_path)
    put(tmp_path, "a.csv", "t,id,b\n1,1,x\n2,2,y\n")
    first = made.build(Order(dataset), deadline())

    put(tmp_path, "a.csv", "t,id,b\n1,1,x\n2,2,y\n3,3,x\n")
    second = loaded(made, dataset, None, deadline(), served=first)
    put(tmp_path, "a.csv", "t,id,b\n3,3,x\n4,1,z\n")
    with pytest.raises(SourceError, match="same value in a column with a unique index"):
        made.build(Order(dataset, served=second), deadline())

    verify(tmp_path / "state", second)
    assert indexes_of(tmp_path, second) == [("id", True, True), ("b", False, False)]
    assert rows(tmp_path, second, "SELECT id FROM d WHERE b = 'x' ORDER BY id") == [(1,), (3,)]
    assert rows(tmp_path, second, "SELECT b FROM d WHERE id = 3") == [("x",)]
    assert len(files_below(tmp_path)) == 2
