"""What a load does with the served data: it adds newer rows to them, or leaves an unchanged source unread."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from msgspec.structs import replace

from datasources.errors import DatasetError, SchemaChangedError, SourceError
from datasources.loading import append
from datasources.refresh.loader import LoaderProcess
from datasources.snapshots.snapshot import Builder, Order, SnapshotBuilder
from datasources.sources import registry
from datasources.sources.source import Bound, Load, Wanted
from datasources.sources.streams import StreamScan
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot, snapshot_path
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.datasources.sources.test_files import put
from tests.datasources.support import configure, deadline, declare, files_below, loaded, rows, verify
from tests.datasources.test_snapshot import flip

APPEND = AccelerationConfig(refresh_mode="append")

#: A number of more digits than a float has.
EXACT = "1234567890123456789012345678.0123456789"
at = datetime.fromisoformat


class Source:
    """A source in an engine of its own; it keeps what loads wanted, and honours that."""

    def __init__(self) -> None:
        self.connection = duckdb.connect()
        self.wanted: list[Wanted] = []
        self.honours = True

    def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    def __call__(self, _dataset: DatasetConfig) -> "Source":
        return self

    @contextmanager
    def open(self, load: Load) -> Iterator[StreamScan]:
        self.wanted.append(load.wanted)
        names = [row[0] for row in self.connection.execute("DESCRIBE s").fetchall()]
        chosen, where = names, ["true"]
        if self.honours:
            if load.wanted.columns is not None:
                chosen = [name for name in names if name.lower() in load.wanted.columns]
            # The engine compares this type with no other.
            cast = "::TIMESTAMPTZ" if "TIMESTAMPTZ_NS" in str(self.connection.table("s").types) else ""
            where += [
                f'"{bound.column}"{cast} {bound.operator} $b{index}' for index, bound in enumerate(load.wanted.bounds)
            ]
        values = {f"b{index}": bound.value for index, bound in enumerate(load.wanted.bounds)} if where[1:] else {}
        columns = ", ".join(f'"{name}"' for name in chosen)
        sql = f"SELECT {columns} FROM s WHERE {' AND '.join(where)}"
        reader = self.connection.sql(sql, params=values).to_arrow_reader(1000)
        assert isinstance(reader, pa.RecordBatchReader)
        yield StreamScan(reader, load, lambda exc: SourceError(str(exc)))

    def has_changed(self, _version: str, _load: Load) -> bool:
        raise AssertionError("this source has no versions")


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    made = Source()
    # The name is taken from the registry as an import would; what stands behind it is ours to give.
    monkeypatch.setattr("datasources.loading.loading_engine.source_of", made)
    monkeypatch.setattr(registry, "source_of", made)
    yield made
    made.connection.close()


@pytest.fixture
def made(tmp_path: Path) -> SnapshotBuilder:
    (tmp_path / "state" / SNAPSHOT_DIRECTORY).mkdir(parents=True)
    return SnapshotBuilder.of(configure(tmp_path))


def appending(directory: Path, text: str = "a.parquet", **more: Any) -> DatasetConfig:
    return declare(directory, text, **{"time_column": "t", "acceleration": APPEND, **more})


def write(directory: Path, sql: str, name: str = "a.parquet") -> None:
    """Replace a file by the rows of *sql*, under its name at once."""
    duckdb.execute(f"COPY ({sql}) TO '{directory / 'next'}' (FORMAT {Path(name).suffix[1:]})")
    (directory / "next").rename(directory / name)


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.json"])
def test_newer_rows_are_added_and_nothing_else_is_read(tmp_path: Path, made: SnapshotBuilder, name: str) -> None:
    dataset = appending(tmp_path, name)
    write(tmp_path, "SELECT unnest([1, 2, 3]) AS t, 'old' AS x", name)
    old = loaded(made, dataset, None, deadline())
    content = snapshot_path(made.state_dir, old).read_bytes()
    # A row that was served has changed, one is gone, one came late, and two are newer.
    write(tmp_path, "SELECT unnest([1, 3, 0, 5, 4]) AS t, 'new' AS x", name)

    new = loaded(made, dataset, None, deadline(), served=old, skip_unchanged=True)

    assert rows(tmp_path, new) == [(1, "old"), (2, "old"), (3, "old"), (5, "new"), (4, "new")]
    assert (new.rows, new.columns, new.source) == (5, old.columns, old.source)
    assert new.source_version not in (None, old.source_version)
    verify(made.state_dir, new)
    assert snapshot_path(made.state_dir, old).read_bytes() == content
    assert files_below(tmp_path) == sorted(f"snapshots/{file}" for file in (old.file, new.file))
    assert made.build(Order(dataset, served=new, skip_unchanged=True), deadline()) is None


@pytest.mark.parametrize("skip_unchanged", [False, True])
def test_without_newer_rows_nothing_is_published(tmp_path: Path, made: SnapshotBuilder, skip_unchanged: bool) -> None:
    dataset = appending(tmp_path)
    write(tmp_path, "SELECT 7 AS t")
    old = loaded(made, dataset, None, deadline())
    write(tmp_path, "SELECT 7 AS t FROM range(3)")

    assert made.build(Order(dataset, served=old, skip_unchanged=skip_unchanged), deadline()) is None
    assert files_below(tmp_path) == [f"snapshots/{old.file}"]


@pytest.mark.parametrize(
    "case",
    [
        ("UTINYINT", "200", 200),
        ("HUGEINT", str(2**100), 2**100),
        ("FLOAT", "0.1", 0.10000000149011612),
        ("DOUBLE", "0.1", 0.1),
        ("DECIMAL(38,10)", EXACT, Decimal(EXACT)),
        ("DATE", "1969-12-31", date(1969, 12, 31)),
        ("TIMESTAMP", "1969-12-31 23:59:59.999999", at("1969-12-31T23:59:59.999999")),
        ("TIMESTAMP_S", "2024-01-01 00:00:01", at("2024-01-01T00:00:01")),
        ("TIMESTAMP_MS", "2024-01-01 00:00:01.001", at("2024-01-01T00:00:01.001")),
        ("TIMESTAMP_NS", "2024-01-01 00:00:01.000001999", at("2024-01-01T00:00:01.000001")),
        ("TIMESTAMPTZ", "2024-01-01 02:00:01+02", at("2024-01-01T00:00:01+00:00")),
        ("TIMESTAMPTZ_NS", "2024-01-01 02:00:01.000001999+02", at("2024-01-01T00:00:01.000001+00:00")),
        ("DATE", "12024-01-01", None),
        ("TIMESTAMP", "0044-03-15 (BC) 00:00:00", None),
    ],
)
def test_the_greatest_time_is_exact_in_every_type(
    tmp_path: Path, made: SnapshotBuilder, source: Source, case: tuple[str, str, object]
) -> None:
    kind, served, hint = case
    source.execute(f"CREATE TABLE s AS SELECT '{served}'::{kind} AS T, 1 AS n")
    dataset = appending(tmp_path)
    old = loaded(made, dataset, None, deadline())
    steps = {"DATE": "1", "DECIMAL(38,10)": "0.0000000001"}
    step = "INTERVAL 1 SECOND" if "TIME" in kind else steps.get(kind, "1")
    time = "T::TIMESTAMPTZ" if kind == "TIMESTAMPTZ_NS" else "T"
    newer = f"nextafter('{served}'::{kind}, 'inf'::{kind})" if kind in {"FLOAT", "DOUBLE"} else f"{time} + {step}"
    source.execute(f"INSERT INTO s SELECT ({newer})::{kind}, 2 FROM s")
    source.execute(f"INSERT INTO s VALUES (NULL, 3), ('{served}'::{kind}, 4)")
    if kind in {"FLOAT", "DOUBLE"}:
        source.execute("INSERT INTO s VALUES ('nan', 5), ('inf', 6)")
    if "TIMESTAMP" in kind or kind == "DATE":
        source.execute("INSERT INTO s VALUES ('infinity', 7)")

    new = []
    for source.honours in (True, False):
        new.append(loaded(made, dataset, None, deadline(), served=old))

    assert [rows(tmp_path, snapshot, "SELECT n FROM d") for snapshot in new] == [[(1,), (2,)]] * 2
    assert source.wanted[0] == Wanted()
    assert source.wanted[1] == Wanted(bounds=() if hint is None else (Bound("t", ">", hint),))  # type: ignore[arg-type]
    assert made.build(Order(dataset, served=new[0]), deadline()) is None


@pytest.mark.parametrize(
    ("first", "then", "counts"),
    [
        pytest.param("'1.5', NULL, 'nan', 'inf'", "'2.5', NULL, 'nan', '-inf', 'inf'", (4, 5), id="served once"),
        pytest.param("", "NULL, '1', '2.5'", (0, 3), id="all read without a served row"),
        pytest.param("NULL", "NULL, '1', '2.5'", (1, 3), id="all read without a served time"),
    ],
)
def test_null_and_infinite_times_are_loaded_only_at_first(
    tmp_path: Path, made: SnapshotBuilder, first: str, then: str, counts: tuple[int, int]
) -> None:
    dataset = appending(tmp_path)
    write(tmp_path, f"SELECT unnest([{first}]::VARCHAR[])::DOUBLE AS t")
    old = loaded(made, dataset, None, deadline())
    write(tmp_path, f"SELECT unnest([{then}]::VARCHAR[])::DOUBLE AS t")

    new = loaded(made, dataset, None, deadline(), served=old)

    assert (old.rows, new.rows) == counts
    assert rows(tmp_path, new)[-1] == (2.5,)


@pytest.mark.parametrize("honours", [True, False])
@pytest.mark.parametrize(
    ("items", "bounds", "values"),
    [
        # It reads the newer rows twice, of a stream that can be read once.
        ("t, (SELECT count(v) FROM d) AS n", (), [10, 10, 10, 10, 4]),
        ("T, v + 1 AS v1", (Bound("k", "=", 0),), [1, 4, 7, 10, 13]),
    ],
)
def test_a_refresh_sql_runs_over_the_newer_rows_and_tells_the_source_what_it_needs(
    tmp_path: Path, made: SnapshotBuilder, source: Source, *, items: str, bounds: Any, values: list[int], honours: bool
) -> None:
    source.honours = honours
    source.execute("CREATE TABLE s AS SELECT i AS t, i % 3 AS k, i AS v, 'unread' AS x FROM range(10) r(i)")
    sql = f"SELECT {items} FROM d WHERE k = 0"
    dataset = appending(tmp_path, acceleration=replace(APPEND, refresh_sql=sql))
    old = loaded(made, dataset, sql, deadline())
    source.execute("INSERT INTO s SELECT i, i % 3, i, 'unread' FROM range(10, 14) r(i)")

    new = loaded(made, dataset, sql, deadline(), served=old)

    assert rows(tmp_path, new) == list(zip((0, 3, 6, 9, 12), values, strict=True))
    columns = frozenset({"t", "k", "v"})
    assert source.wanted == [
        Wanted(columns=columns, bounds=bounds),
        Wanted(columns=columns, bounds=(*bounds, Bound("t", ">", 9))),
    ]


def test_the_refresh_sql_of_a_request_adds_what_it_gives_of_the_newer_rows(
    tmp_path: Path, made: SnapshotBuilder
) -> None:
    dataset = appending(tmp_path)
    write(tmp_path, "SELECT 1 AS t")
    old = loaded(made, dataset, None, deadline())
    write(tmp_path, "SELECT unnest([1, 2, 3, 4]) AS t")

    new = loaded(made, dataset, "SELECT * FROM d WHERE t < 4 AND t <> 2", deadline(), served=old)
    after = loaded(made, dataset, None, deadline(), served=new, skip_unchanged=True)

    assert rows(tmp_path, new) == [(1,), (3,)]
    assert rows(tmp_path, after) == [(1,), (3,), (4,)]


# --- what cannot be appended to ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT 1 AS x", r"^The source of d has no column 't', which is declared as its time_column\.$"),
        ("SELECT 'a' AS t", r"^The time_column 't' of d is of type VARCHAR: a time_column must be a number"),
        ("SELECT TIME '12:00' AS t", "is of type TIME:"),
        ("SELECT true AS t", "is of type BOOLEAN:"),
        ("SELECT [1] AS t", "is of type INTEGER"),
    ],
)
@pytest.mark.parametrize("served", [False, True])
def test_a_time_column_without_an_order_is_refused(
    tmp_path: Path, made: SnapshotBuilder, sql: str, said: str, served: bool
) -> None:
    dataset = appending(tmp_path)
    write(tmp_path, "SELECT 1 AS t")
    old = loaded(made, dataset, None, deadline()) if served else None
    write(tmp_path, sql)

    with pytest.raises(SourceError, match=said):
        made.build(Order(dataset, served=old), deadline())


@pytest.mark.parametrize("sql", ["SELECT x FROM d", "SELECT t::DATE AS t FROM d", "SELECT t AS moment FROM d"])
@pytest.mark.parametrize("mode", [None, "full"])
def test_a_refresh_sql_must_keep_the_time(tmp_path: Path, made: SnapshotBuilder, sql: str, mode: Any) -> None:
    write(tmp_path, "SELECT TIMESTAMP '2024-01-01' AS t, 1 AS x")

    with pytest.raises(
        SourceError, match=r"^The refresh_sql of d must keep the time_column 't' as it is \(TIMESTAMP\)"
    ):
        made.build(Order(appending(tmp_path), sql, mode=mode), deadline())


def test_other_columns_are_refused_or_loaded_in_full(tmp_path: Path, made: SnapshotBuilder) -> None:
    dataset = appending(tmp_path)
    write(tmp_path, "SELECT 1 AS t, 1 AS n")
    old = loaded(made, dataset, None, deadline())
    write(tmp_path, "SELECT unnest([1, 2]) AS t, 'x' AS n, 'x' AS more")

    with pytest.raises(SchemaChangedError, match=r"\(more is new, n is VARCHAR instead of INTEGER\)"):
        made.build(Order(dataset, served=old), deadline())
    full = loaded(made, replace(dataset, on_schema_change="accept"), None, deadline(), served=old)

    assert rows(tmp_path, full, "SELECT t FROM d") == [(1,), (2,)]
    assert len(files_below(tmp_path)) == 2


def served_and_newer(directory: Path, made: SnapshotBuilder) -> tuple[DatasetConfig, Snapshot]:
    dataset = appending(directory)
    write(directory, "SELECT unnest([1, 2]) AS t, 'old' AS x")
    old = loaded(made, dataset, None, deadline())
    write(directory, "SELECT unnest([2, 3]) AS t, 'new' AS x")
    return dataset, old


def test_a_changed_definition_is_a_full_load(tmp_path: Path, made: SnapshotBuilder) -> None:
    dataset, old = served_and_newer(tmp_path, made)
    for other in (
        replace(dataset, time_column="T"),
        replace(dataset, acceleration=replace(APPEND, refresh_sql="FROM d")),
        replace(dataset, time_column=None, acceleration=AccelerationConfig()),
        replace(dataset, acceleration=replace(APPEND, enabled=False)),
    ):
        assert rows(tmp_path, loaded(made, other, None, deadline(), served=old)) == [(2, "new"), (3, "new")]


def test_r18_a_damaged_snapshot_is_neither_appended_to_nor_kept_because_its_source_is_unchanged(
    tmp_path: Path, made: SnapshotBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    dataset, old = served_and_newer(tmp_path, made)
    flip(snapshot_path(made.state_dir, old), old.size_bytes // 2)

    new = loaded(made, dataset, None, deadline(), served=old)

    assert rows(tmp_path, new) == [(2, "new"), (3, "new")]
    assert [record.getMessage() for record in caplog.records] == [
        "The snapshot of d is damaged: its checksum is wrong. It will be reloaded from the source."
    ]
    flip(snapshot_path(made.state_dir, new), new.size_bytes // 2)
    assert made.build(Order(dataset, served=new, skip_unchanged=True), deadline()) is not None


def refuse(code: int) -> Callable[..., int]:
    """Return a function of the system that fails with *code*."""

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_file_system_without_copy_file_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", refuse(errno.EXDEV))
    (tmp_path / "old").write_bytes(b"content")

    append.copy(tmp_path / "old", tmp_path / "new", deadline())

    assert (tmp_path / "new").read_bytes() == b"content"


@pytest.mark.parametrize("fails", ["the copy", "the newer rows"])
def test_a_failed_append_keeps_the_served_data(
    tmp_path: Path, made: SnapshotBuilder, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    dataset, old = served_and_newer(tmp_path, made)
    content = snapshot_path(made.state_dir, old).read_bytes()
    if fails == "the copy":
        monkeypatch.setattr(os, "copy_file_range", refuse(errno.ENOSPC))
        monkeypatch.setattr(shutil, "copyfileobj", refuse(errno.ENOSPC))
        said = r"^The snapshot of d cannot be written to the state directory: No space left on device\.$"
    else:
        (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
        said = r"^'a\.parquet': it is not a Parquet file"

    with pytest.raises(DatasetError, match=said):
        made.build(Order(dataset, served=old), deadline())

    assert files_below(tmp_path) == [f"snapshots/{old.file}"]
    assert snapshot_path(made.state_dir, old).read_bytes() == content


@pytest.mark.exhaustive
def test_small_appends_leave_the_file_small(tmp_path: Path, made: SnapshotBuilder) -> None:
    dataset = appending(tmp_path)
    write(tmp_path, "SELECT i AS t, 'text ' || hash(i) AS x FROM range(200000) r(i)")
    snapshot = first = loaded(made, dataset, None, deadline())
    for index in range(8):
        write(tmp_path, f"SELECT 200000::BIGINT + {index} AS t, 'text' AS x")
        before, snapshot = snapshot, loaded(made, dataset, None, deadline(), served=snapshot)
        snapshot_path(made.state_dir, before).unlink()

    assert snapshot.rows == 200_008
    assert snapshot.size_bytes <= first.size_bytes + 4 * 256 * 1024


# --- an unchanged source ----------------------------------------------------------------------------------------------

SQL = "SELECT a FROM d"


@pytest.fixture(params=["here", pytest.param("process", marks=pytest.mark.exhaustive)])
def builder(request: pytest.FixtureRequest, made: SnapshotBuilder) -> Iterator[Builder]:
    with closing(made if request.param == "here" else LoaderProcess(made)) as builder:
        yield builder


@pytest.mark.parametrize("sql", [None, SQL])
def test_an_unchanged_source_is_loaded_again_only_on_request_or_with_other_settings(
    builder: Builder, tmp_path: Path, sql: str | None
) -> None:
    put(tmp_path, "a.csv", "a,b\n1,x\n2,y\n")
    dataset = declare(tmp_path, "a.csv")
    served = loaded(builder, dataset, sql, deadline())

    def again(dataset: DatasetConfig, served: Snapshot, sql: str | None) -> Snapshot | None:
        return builder.build(Order(dataset, sql, served=served, skip_unchanged=True), deadline())

    assert again(dataset, served, sql) is None
    assert files_below(tmp_path) == [f"snapshots/{served.file}"]
    assert list((tmp_path / "state/refresh_tmp").iterdir()) == []

    assert loaded(builder, dataset, sql, deadline(), served=served).file != served.file
    for other_sql in {None, SQL, f"{SQL} ORDER BY a"} - {sql}:
        assert again(dataset, served, other_sql) is not None
    assert again(dataset, replace(served, source_version=None), sql) is not None
    other = replace(dataset, acceleration=AccelerationConfig(refresh_sql="FROM d"))
    assert again(other, served, sql) is not None
    put(tmp_path, "new.csv", "a,b\n3,z\n").rename(tmp_path / "a.csv")
    assert rows(tmp_path, again(dataset, served, sql), "SELECT a FROM d") == [(3,)]


@pytest.mark.parametrize("name", ["a.ndjson", "a.csv"])
def test_a_row_that_is_newer_by_less_than_a_microsecond_is_added(
    tmp_path: Path, made: SnapshotBuilder, name: str
) -> None:
    dataset = appending(tmp_path, name)
    moments = [f"2026-01-01T00:00:00.000000{digits}Z" for digits in ("100", "900")]
    head, line = ("t\n", "{}\n") if name == "a.csv" else ("", '{{"t":"{}"}}\n')
    put(tmp_path, name, head + line.format(moments[0]))
    old = loaded(made, dataset, None, deadline())
    put(tmp_path, name, head + "".join(map(line.format, moments)))

    new = loaded(made, dataset, None, deadline(), served=old)

    assert rows(tmp_path, new, "SELECT epoch_ns(t) % 1000 FROM d") == [(100,), (900,)]
