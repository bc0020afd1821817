import hashlib
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from datasources.errors import SchemaChangedError, SnapshotError, SourceError
from datasources.loading.columns import refuse_changes
from datasources.snapshots.snapshot import Order, Verifier, fingerprint
from queryengine.manifest import Column, Snapshot, snapshot_path
from runtimeconf.model import AccelerationConfig, IndexConfig
from system.wallclock import utc_now
from tests.datasources.sources.test_files import put
from tests.datasources.support import (
    builder,
    deadline,
    declare,
    file_limit,
    files_below,
    meanwhile,
    open_below,
    rows,
    verify,
)


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
        ("SELECT sum(a) EXPORT_STATE AS s FROM d", "The column s of d has a type that cannot be shown."),
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


def test_a_damaged_row_is_blamed_on_the_file_not_on_the_refresh_sql(tmp_path: Path) -> None:
    put(tmp_path, "b.csv", "a,b\n1,2\n1\n")

    with pytest.raises(SourceError, match=r"^'b\.csv', line 3"):
        builder(tmp_path).build(Order(declare(tmp_path, "b.csv"), "SELECT a FROM d"), deadline())


def test_times_are_read_in_utc_whatever_the_machine_says(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
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


DAMAGE: list[Any] = [
    *(
        pytest.param(lambda path, at=at: flip(path, at), "damaged: its checksum is wrong", id=f"bit {at}")
        for at in (0, 100, 4096 + 10, 20_000, -1)
    ),
    pytest.param(Path.unlink, r"^The snapshot of d cannot be read: No such file or directory\.$", id="missing"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGE)
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
        with pytest.raises(SnapshotError, match="does not hold the rows and columns it should"):
            verify(tmp_path / "state", changed)

    path = snapshot_path(tmp_path / "state", snapshot)
    path.write_bytes(b"SQLite format 3\0" * 300)
    foreign = replace(snapshot, size_bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(SnapshotError, match="cannot be opened by this engine"):
        verify(tmp_path / "state", foreign)


# --- columns and settings ---------------------------------------------------------------------------------------------


def columns(**types: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=kind) for name, kind in types.items())


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"a": "BIGINT"}, "(b is gone)"),
        ({"a": "BIGINT", "b": "VARCHAR", "c": "DATE"}, "(c is new)"),
        ({"a": "DOUBLE", "b": "VARCHAR"}, "(a is DOUBLE instead of BIGINT)"),
        ({"b": "VARCHAR", "a": "BIGINT"}, "(they are in another order)"),
        ({"x": "DATE", "y": "DATE"}, "(a is gone, b is gone, x is new and 1 more)"),
    ],
)
def test_changed_columns_are_refused_with_what_changed(new: dict[str, str], said: str) -> None:
    with pytest.raises(SchemaChangedError, match=re.escape(said)) as caught:
        refuse_changes("d", columns(a="BIGINT", b="VARCHAR"), columns(**new))

    assert "set it to accept" in str(caught.value)
    refuse_changes("d", columns(**new), columns(**new))


INDEXES = (IndexConfig(column="a"), IndexConfig(column="a", unique=True), IndexConfig(column="b"))


def test_other_settings_have_another_fingerprint(tmp_path: Path) -> None:
    dataset = declare(tmp_path, "a.csv")
    others = [
        declare(tmp_path, "b.csv"),
        declare(tmp_path / "elsewhere", "a.csv"),
        declare(tmp_path, "a.csv", name="D"),
        declare(tmp_path, "a.csv", file_format="csv"),
        declare(tmp_path, "a.csv", acceleration=AccelerationConfig(refresh_sql="SELECT 1 AS a")),
        declare(tmp_path, "a.csv", acceleration=AccelerationConfig(primary_key="a")),
        *(declare(tmp_path, "a.csv", acceleration=AccelerationConfig(indexes=(index,))) for index in INDEXES),
    ]
    same = [
        declare(tmp_path, "a.csv", on_schema_change="accept"),
        declare(tmp_path, "a.csv", acceleration=AccelerationConfig(enabled=False, refresh_sql="SELECT 1 AS a")),
        declare(tmp_path, "a.csv", acceleration=AccelerationConfig(enabled=False, primary_key="a", indexes=INDEXES)),
        declare(tmp_path, "a.csv", acceleration=AccelerationConfig(refresh_check_interval_s=1)),
    ]

    assert len({fingerprint(dataset), *map(fingerprint, others)}) == len(others) + 1
    assert {fingerprint(dataset)} == set(map(fingerprint, same))
