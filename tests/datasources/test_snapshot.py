import dataclasses
import hashlib
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from msgspec.structs import replace

from datasources.errors import SchemaChangedError, SnapshotError, SourceError
from datasources.loading.columns import refuse_changes
from datasources.snapshots.directory import as_declared
from datasources.snapshots.snapshot import Order, Verifier, fingerprint
from queryengine.manifest import Column, Snapshot, snapshot_path
from runtimeconf.model import AccelerationConfig, DatasetConfig, IndexConfig
from system.wallclock import utc_now
from tests.datasources.sources.test_files import put
from tests.datasources.support import (
    accelerated,
    builder,
    deadline,
    declare,
    files_below,
    loaded,
    meanwhile,
    open_below,
    rows,
    verify,
)
from tests.file_limit import file_limit


def build(directory: Path, refresh_sql: str | None = None, *, name: str = "d") -> Snapshot:
    put(directory, "a.csv", "a,b\n1,x\n2,y\n")
    return builder(directory).build(Order(declare(directory, "a.csv", name=name), refresh_sql), deadline())


def test_a_snapshot_is_one_private_file_as_described(tmp_path: Path) -> None:
    snapshot = build(tmp_path)

    path = snapshot_path(tmp_path / "state", snapshot)
    assert files_below(tmp_path) == [f"snapshots/{snapshot.file}"]
    assert re.fullmatch(r"d-[0-9a-f]{16}\.duckdb", snapshot.file)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert snapshot.size_bytes == path.stat().st_size
    assert snapshot.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert snapshot.rows == 2
    assert snapshot.columns == (Column(name="a", type="BIGINT"), Column(name="b", type="VARCHAR"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", snapshot.created_at)
    assert snapshot.created_at <= utc_now()
    verify(tmp_path / "state", snapshot)


def test_sql_that_another_node_admitted_is_judged_in_the_dialect_of_this_one(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "a,b\n1,x\n2,y\n")
    order = Order(declare(tmp_path, "a.csv"), "SELECT nvl(a, 0) AS a FROM d")
    checking = dataclasses.replace(builder(tmp_path), checks_sql=True)

    assert rows(tmp_path, loaded(checking, order.dataset, order.refresh_sql, deadline())) == [(1,), (2,)]
    with pytest.raises(SourceError, match="nvl"):
        dataclasses.replace(checking, datafusion_sql=False).build(order, deadline())


@pytest.mark.parametrize("change", [{"rows": 1}, {"rows": 3}, {"columns": ()}])
def test_a_file_that_differs_from_its_description_is_not_served(tmp_path: Path, change: dict[str, Any]) -> None:
    snapshot = replace(build(tmp_path), **change)

    with closing(Verifier(tmp_path / "state")) as verifier, pytest.raises(SnapshotError):
        verifier.verify_content(snapshot)


def test_an_interrupted_verification_does_not_affect_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that loads has a limit of memory, and one verifier for all its loads."""
    first, second = build(tmp_path), build(tmp_path, name="e")

    def break_off(*_: object) -> int:
        raise MemoryError

    with closing(Verifier(tmp_path / "state")) as verifier:
        with monkeypatch.context() as patched:
            patched.setattr("datasources.snapshots.snapshot.count_of", break_off)
            with pytest.raises(MemoryError):
                verifier.verify_content(first)
        assert open_below(tmp_path) == []
        verifier.verify_content(second)


@pytest.mark.parametrize("name", ["a*b", "a[b]", "**", "a{b}", "it's", 'a"b', "a%20b", "a#b", "a;b"])
def test_the_path_of_a_state_directory_is_not_a_pattern(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()

    assert rows(tmp_path / name, build(tmp_path / name)) == [(1, "x"), (2, "y")]


@pytest.mark.parametrize("name", ["Flights", "order", 'a "quoted" name', "it's", "ü" * 60])
def test_the_table_has_the_name_of_the_dataset(tmp_path: Path, name: str) -> None:
    snapshot = build(tmp_path, name=name)

    with duckdb.connect(str(snapshot_path(tmp_path / "state", snapshot)), read_only=True) as connection:
        assert connection.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [(name,)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a + 1 AS c FROM d WHERE b = 'y'", [(3,)]),
        ("FROM D;", [(1, "x"), (2, "y")]),
        ("WITH x AS (SELECT * FROM main.d) SELECT max(a) AS m FROM x -- comment", [(2,)]),
        ("SELECT count(*) AS n FROM runtime.main.d", [(2,)]),
        ("SELECT NULL AS nothing, row(1, 2) AS pair FROM d LIMIT 1", [(None, (1, 2))]),
    ],
)
def test_refresh_sql_makes_the_rows(tmp_path: Path, sql: str, expected: list[tuple[Any, ...]]) -> None:
    assert rows(tmp_path, build(tmp_path, sql)) == expected


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT nope FROM d", 'The refresh_sql of d failed: Binder Error: Referenced column "nope" not found'),
        ("SELECT * FROM other", "The refresh_sql of d failed: Catalog Error: Table with name other does not exist"),
        ("SELECT b::INTEGER AS n FROM d", "'a.csv', line 2: a value does not fit the type of its column."),
        ("SELECT upper(b)::INTEGER AS n FROM d", "The refresh_sql of d failed: Conversion Error"),
        ("SELECT sum(a) EXPORT_STATE AS s FROM d", "The column s of d has a type that cannot be displayed."),
        # The gate refuses these before; the loading engine does too.
        ("SELECT * FROM read_text('/etc/passwd')", "The refresh_sql of d failed: Permission Error"),
        ("SELECT * FROM '/etc/passwd'", "The refresh_sql of d failed"),
        ("SELECT * FROM glob('/*')", "The refresh_sql of d failed: Permission Error"),
    ],
)
def test_a_refresh_sql_that_fails_leaves_nothing(tmp_path: Path, sql: str, said: str) -> None:
    with pytest.raises(SourceError, match=f"^{re.escape(said)}"):
        build(tmp_path, sql)

    assert files_below(tmp_path) == []


def test_a_snapshot_with_arrays_of_a_former_version_is_not_served(tmp_path: Path) -> None:
    dataset = declare(tmp_path, "a.csv")
    snapshot = build(tmp_path)
    former = replace(snapshot, columns=(Column(name="a", type="STRUCT(x BIGINT[2])"),))

    assert as_declared([snapshot], [dataset]) == [snapshot]
    assert as_declared([former], [dataset]) == []


def test_a_damaged_row_is_blamed_on_the_file_not_on_the_refresh_sql(tmp_path: Path) -> None:
    put(tmp_path, "b.csv", "a,b\n1,2\n1\n")

    with pytest.raises(SourceError, match=r"^'b\.csv', line 3"):
        builder(tmp_path).build(Order(declare(tmp_path, "b.csv"), "SELECT a FROM d"), deadline())


def test_times_are_read_in_utc_whatever_the_machine_says(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from datasources.snapshots.directory import as_declared
from datasources.snapshots.snapshot import Order
from tests.datasources.support import builder, deadline, declare, rows
directory = Path("{tmp_path}")
(directory / "t.csv").write_text("moment\\n2024-07-01 00:00:00\\n")
sql = "SELECT moment::TIMESTAMPTZ AT TIME ZONE 'UTC' = moment AS same FROM d"
snapshot = builder(directory).build(Order(declare(directory, "t.csv"), sql), deadline())
print(rows(directory, snapshot))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={"TZ": "America/New_York"}, capture_output=True, text=True, check=True
    )

    assert done.stdout == "[(True,)]\n"


def test_a_full_disk_is_reported_and_the_next_load_succeeds(tmp_path: Path) -> None:
    made = builder(tmp_path)
    put(tmp_path, "a.csv", "a,b\n" + "".join(f"{i},{i * 7919 % 1000003}\n" for i in range(200000)))
    for limit in (200_000, 300_000):
        with file_limit(limit), pytest.raises(SnapshotError, match=r"^The snapshot cannot .*: File too large\.$"):
            made.build(Order(declare(tmp_path, "a.csv")), deadline())
        assert files_below(tmp_path) == []

    assert made.build(Order(declare(tmp_path, "a.csv")), deadline()).rows == 200_000


def test_a_missing_directory_is_reported_without_its_path(tmp_path: Path) -> None:
    made = builder(tmp_path)
    (tmp_path / "state/snapshots").rmdir()
    put(tmp_path, "a.csv")

    said = r"^The snapshot cannot be .* state directory: No such file or directory\.$"
    with pytest.raises(SnapshotError, match=said):
        made.build(Order(declare(tmp_path, "a.csv")), deadline())


def test_a_vanishing_file_is_reported_without_its_path(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    made = builder(tmp_path)

    def vanish() -> None:
        for path in (tmp_path / "state/snapshots").glob("*.duckdb"):
            path.unlink(missing_ok=True)

    said = r"^The snapshot of d .* the state directory: No such file or directory"
    with meanwhile(vanish, 0.001), pytest.raises(SnapshotError, match=said):
        made.build(Order(declare(tmp_path, "a.csv"), "SELECT count(*) AS n FROM range(3000000)"), deadline())


def test_a_load_is_interrupted_and_leaves_nothing(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    endless = Order(declare(tmp_path, "a.csv"), "SELECT count(*) AS n FROM range(1000000000000)")
    began = time.monotonic()

    with pytest.raises(SnapshotError, match="refresh_timeout"):
        builder(tmp_path).build(endless, deadline(0.3))

    assert time.monotonic() - began < 30
    assert files_below(tmp_path) == []


# --- good and damaged snapshots ---------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        *(
            pytest.param(lambda path, at=at: flip(path, at), "damaged: its checksum is wrong", id=f"bit {at}")
            for at in (0, 100, 4096 + 10, 20_000, -1)
        ),
        pytest.param(Path.unlink, r"^The snapshot of d cannot be read: No such file or directory\.$", id="missing"),
    ],
)
def test_r18_a_damaged_or_missing_file_is_detected(tmp_path: Path, damage: Callable[[Path], object], said: str) -> None:
    snapshot = build(tmp_path)
    damage(snapshot_path(tmp_path / "state", snapshot))

    with pytest.raises(SnapshotError, match=said):
        verify(tmp_path / "state", snapshot)


def test_a_snapshot_is_compared_while_others_in_the_process_have_it_open(tmp_path: Path) -> None:
    snapshot = build(tmp_path)

    with duckdb.connect(str(snapshot_path(tmp_path / "state", snapshot)), read_only=True):
        verify(tmp_path / "state", snapshot)


def test_r18_content_that_differs_from_the_manifest_is_detected(tmp_path: Path) -> None:
    snapshot = build(tmp_path)
    for changed in (replace(snapshot, rows=3), replace(snapshot, columns=())):
        with pytest.raises(SnapshotError, match="does not have the expected rows and columns"):
            verify(tmp_path / "state", changed)

    path = snapshot_path(tmp_path / "state", snapshot)
    path.write_bytes(b"SQLite format 3\0" * 300)
    foreign = replace(snapshot, size_bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(SnapshotError, match="cannot be opened by this engine"):
        verify(tmp_path / "state", foreign)


# --- indexes ----------------------------------------------------------------------------------------------------------

BY_A = IndexConfig(columns=("a",))
BY_B = IndexConfig(columns=("b",))
UNIQUE_A = IndexConfig(columns=("A",), unique=True)


def indexed(directory: Path, text: str = "a.csv", sql: str | None = None, **settings: Any) -> Snapshot:
    return builder(directory).build(Order(accelerated(directory, text, **settings), sql), deadline())


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

    made = indexed(
        tmp_path, primary_key=("a",), indexes=(IndexConfig(columns=("B",), unique=True), IndexConfig(columns=("c",)))
    )

    assert indexes_of(tmp_path, made) == [("a", True, True), ("b", True, False), ("c", False, False)]
    assert rows(tmp_path, made) == [(1, "x", 1), (2, "y", 1), (3, "z", None)]
    # Equal values and nulls may be in an index that is not unique.
    assert rows(tmp_path, made, "SELECT b FROM d WHERE c = 1 ORDER BY b") == [("x",), ("y",)]
    verify(tmp_path / "state", made)


def test_a_look_up_by_an_indexed_column_reads_the_index(tmp_path: Path) -> None:
    duckdb.execute(
        f"COPY (SELECT i AS a, i % 7 AS b FROM range(300000) t(i) ORDER BY hash(i)) TO '{tmp_path}/s.parquet'"
    )
    made = indexed(tmp_path, "s.parquet", indexes=(UNIQUE_A,))

    assert rows(tmp_path, made, "SELECT a, b FROM d WHERE a = 4711") == [(4711, 0)]
    ((_, plan),) = rows(tmp_path, made, "EXPLAIN ANALYZE SELECT b FROM d WHERE a = 4711")
    assert "Index Scan" in plan


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        pytest.param("a\n1\n1\n", {"primary_key": ("a",)}, "same value in the column a, or", id="key twice"),
        pytest.param("a,b\n1,x\n,y\n", {"primary_key": ("a",)}, "null in the primary key", id="no key"),
        pytest.param("a\n1\n1\n", {"indexes": (UNIQUE_A,)}, "same value in the column A, or", id="twice"),
        pytest.param("b\n1\n", {"indexes": (BY_A,)}, "The indexed column a of d does not exist", id="absent"),
        pytest.param("b\n1\n", {"primary_key": ("a",)}, "The indexed column a of d", id="no such key"),
        pytest.param('{"a": [1]}', {"indexes": (BY_A,)}, "column a of d has a type that cannot be indexed", id="type"),
    ],
)
def test_data_that_violates_an_index_is_refused(tmp_path: Path, text: str, settings: Any, said: str) -> None:
    name = "a.json" if text.startswith("{") else "a.csv"
    put(tmp_path, name, text)

    with pytest.raises(SourceError, match=said):
        indexed(tmp_path, name, **settings)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("column", ['a"b', "select", "rowid", "x\ny", "Ümlaut", "_index_0"])
def test_a_column_is_found_whatever_its_name(tmp_path: Path, column: str) -> None:
    quoted = column.replace('"', '""')
    duckdb.execute(f"""COPY (SELECT 7 AS "{quoted}") TO '{tmp_path}/s.parquet'""")

    made = indexed(
        tmp_path, "s.parquet", primary_key=(column.upper(),), indexes=(IndexConfig(columns=(column.lower(),)),)
    )

    assert [kinds for _, *kinds in indexes_of(tmp_path, made)] == [[True, True], [False, False]]
    assert rows(tmp_path, made) == [(7,)]


def test_an_index_is_of_what_the_refresh_sql_gives(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "x\n1\n1\n2\n")

    made = indexed(tmp_path, sql="SELECT x AS a, count(*) AS n FROM d GROUP BY x", primary_key=("a",))

    assert sorted(rows(tmp_path, made)) == [(1, 2), (2, 1)]


def test_an_append_keeps_the_index_and_what_it_promises(tmp_path: Path) -> None:
    acceleration = AccelerationConfig(refresh_mode="append", primary_key=("id",), indexes=(BY_B,))
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


@pytest.mark.parametrize(
    ("on_conflict", "expected"),
    [
        pytest.param("upsert", [(1, "A", "new"), (2, "a", "y"), (2, "b", "z")], id="upsert"),
        pytest.param("drop", [(1, "A", "x"), (2, "a", "y"), (2, "b", "z")], id="drop"),
    ],
)
def test_an_append_of_a_key_that_is_there_already_does_what_on_conflict_says(
    tmp_path: Path, on_conflict: Any, expected: list[Any]
) -> None:
    acceleration = AccelerationConfig(refresh_mode="append", primary_key=("ID", "k"), on_conflict=on_conflict)
    dataset = declare(tmp_path, "a.csv", time_column="t", acceleration=acceleration)
    made = builder(tmp_path)
    put(tmp_path, "a.csv", "t,id,k,b\n1,1,A,x\n2,2,a,y\n")
    first = made.build(Order(dataset), deadline())

    put(tmp_path, "a.csv", "t,id,k,b\n1,1,A,x\n2,2,a,y\n3,1,A,new\n3,2,b,z\n")
    second = loaded(made, dataset, None, deadline(), served=first)
    put(tmp_path, "a.csv", "t,id,k,b\n4,5,A,x\n5,5,A,y\n")
    with pytest.raises(SourceError, match="same value in a column with a unique index"):
        made.build(Order(dataset, served=second), deadline())

    verify(tmp_path / "state", second)
    assert rows(tmp_path, second, "SELECT id, k, b FROM d ORDER BY id, k") == expected

    dropping = replace(dataset, acceleration=replace(acceleration, on_conflict="drop"))
    put(tmp_path, "a.csv", "t,id,k,b\n4,5,A,x\n")
    third = loaded(made, dropping, None, deadline(), served=second)
    assert first.is_reordered is False
    assert second.is_reordered is third.is_reordered is (on_conflict == "upsert"), "the moved rows stay where they are"
    assert loaded(made, dropping, None, deadline()).is_reordered is False, "all rows are loaded anew"


# --- columns and settings ---------------------------------------------------------------------------------------------


def columns(**types: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=kind) for name, kind in types.items())


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"a": "BIGINT"}, "(b is gone)"),
        ({"a": "BIGINT", "b": "VARCHAR", "c": "DATE"}, "(c is new)"),
        ({"a": "DOUBLE", "b": "VARCHAR"}, "(a is DOUBLE instead of BIGINT)"),
        ({"b": "VARCHAR", "a": "BIGINT"}, "(they are in a different order)"),
        ({"x": "DATE", "y": "DATE"}, "(a is gone, b is gone, x is new and 1 more)"),
    ],
)
def test_changed_columns_are_refused_with_what_changed(new: dict[str, str], said: str) -> None:
    with pytest.raises(SchemaChangedError, match=re.escape(said)) as caught:
        refuse_changes("d", columns(a="BIGINT", b="VARCHAR"), columns(**new))

    assert "set on_schema_change to accept" in str(caught.value)
    refuse_changes("d", columns(**new), columns(**new))


INDEXES = (BY_A, IndexConfig(columns=("a",), unique=True), IndexConfig(columns=("b",)))


def test_a_fingerprint_is_that_of_earlier_releases() -> None:
    params = {"csv_has_header": False, "skip_rows": 3, "null_values": ("NA", "n/a"), "file_compression_type": "ZSTD"}
    dataset = DatasetConfig(name="d", from_="file:/data/a.csv", location="/data/a.csv", params=params)

    assert fingerprint(dataset) == "2cedd32ac529f96e0640f40b762781b97caace7b037ea6250d4ebc9a7e2dd1b1"


def test_other_settings_have_another_fingerprint(tmp_path: Path) -> None:
    dataset = declare(tmp_path, "a.csv")
    others = [
        declare(tmp_path, "b.csv"),
        declare(tmp_path / "elsewhere", "a.csv"),
        declare(tmp_path, "a.csv", name="D"),
        declare(tmp_path, "a.csv", file_format="csv"),
        declare(tmp_path, "a.csv", acceleration=AccelerationConfig(refresh_sql="SELECT 1 AS a")),
        declare(tmp_path, "a.csv", acceleration=AccelerationConfig(primary_key=("a",))),
        *(declare(tmp_path, "a.csv", acceleration=AccelerationConfig(indexes=(index,))) for index in INDEXES),
    ]
    same = [
        declare(tmp_path, "a.csv", on_schema_change="accept"),
        declare(tmp_path, "a.csv", acceleration=AccelerationConfig(enabled=False, refresh_sql="SELECT 1 AS a")),
        declare(tmp_path, "a.csv", acceleration=AccelerationConfig(enabled=False, primary_key=("a",), indexes=INDEXES)),
        declare(tmp_path, "a.csv", acceleration=AccelerationConfig(refresh_check_interval_s=1)),
    ]

    assert len({fingerprint(dataset), *map(fingerprint, others)}) == len(others) + 1
    assert {fingerprint(dataset)} == set(map(fingerprint, same))
