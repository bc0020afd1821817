"""What all table formats promise."""

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from datasources.errors import SourceError
from datasources.sources.source import Bound
from runtimeconf.model import DatasetConfig
from tests.connectors.delta import test_delta
from tests.connectors.iceberg import test_iceberg
from tests.connectors.iceberg.iceberg_tables import SqliteCatalog
from tests.datasources.sources.loads import build, has_changed, load, load_in_process, scan, types, version
from tests.datasources.support import refusal, rows

MOMENT = datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=UTC)
NUMBER = uuid.UUID(int=2**127 + 5)

#: An array of a value and null, the engine's type, and the value that arrives if it is another.
Case = tuple[Any, ...]
TYPES: list[Case] = [
    (pa.array([-(2**31), None], pa.int32()), "INTEGER"),
    (pa.array([2**63 - 1, None]), "BIGINT"),
    (pa.array([0.5, None], pa.float32()), "FLOAT"),
    (pa.array([float("inf"), None]), "DOUBLE"),
    (pa.array([Decimal("12345678901234567890123456789012345.678"), None], pa.decimal128(38, 3)), "DECIMAL(38,3)"),
    (pa.array([True, None]), "BOOLEAN"),
    (pa.array(["ü'\"\n", None]), "VARCHAR"),
    (pa.array([b"\x00\xff", None]), "BLOB"),
    (pa.array([date(1, 1, 1), None]), "DATE"),
    (pa.array([MOMENT, None], pa.timestamp("us", "UTC")), "TIMESTAMP WITH TIME ZONE", MOMENT.replace(tzinfo=None)),
    (pa.array([MOMENT.replace(tzinfo=None), None], pa.timestamp("us")), "TIMESTAMP"),
    (pa.array([[1, None], None], pa.list_(pa.int64())), "BIGINT[]"),
    (
        pa.array([{"A b": 1, "c": [None]}, None], pa.struct({"A b": pa.int32(), "c": pa.list_(pa.string())})),
        'STRUCT("A b" INTEGER, c VARCHAR[])',
    ),
    (
        pa.array([[("k", {"x": 1})], []], pa.map_(pa.string(), pa.struct({"x": pa.int32()}))),
        "MAP(VARCHAR, STRUCT(x INTEGER))",
        {"k": {"x": 1}},
    ),
]


@dataclass(frozen=True)
class Lake:
    """A table format: how tables of it are declared and written, and the types that only this format has."""

    declare: Callable[..., DatasetConfig]
    write: Callable[..., Any]
    delete_where: Callable[[Path, str], object]
    overwrite: Callable[[Path, pa.Table], object]
    more_types: list[Case]
    partition_by_p: dict[str, Any]
    has_bounds_of_decimals: bool


DELTA = Lake(
    test_delta.delta,
    test_delta.write,
    lambda directory, where: DeltaTable(directory / "t").delete(where),
    lambda directory, rows: test_delta.write(directory, mode="overwrite", **rows.to_pydict()),
    [
        (pa.array([-128, None], pa.int8()), "TINYINT"),
        (pa.array([-32768, None], pa.int16()), "SMALLINT"),
    ],
    partition_by_p={"options": {"partition_by": ["p"]}},
    has_bounds_of_decimals=False,
)
ICEBERG = Lake(
    test_iceberg.iceberg,
    test_iceberg.write,
    lambda directory, where: SqliteCatalog(directory).load_table(("ns", "t")).delete(where),
    lambda directory, rows: SqliteCatalog(directory).load_table(("ns", "t")).overwrite(rows),
    [
        (pa.array([b"abcd", None], pa.binary(4)), "BLOB"),
        (pa.array([NUMBER.bytes, None], pa.uuid()), "UUID", NUMBER),
        (pa.array([time(23, 59, 59, 1), None], pa.time64("us")), "TIME"),
    ],
    partition_by_p={},
    has_bounds_of_decimals=True,
)


@pytest.fixture(params=[pytest.param(DELTA, id="delta"), pytest.param(ICEBERG, id="iceberg")])
def lake(request: pytest.FixtureRequest) -> Lake:
    found: Lake = request.param
    return found


def test_every_type_arrives_as_the_engine_has_it(tmp_path: Path, lake: Lake) -> None:
    cases = TYPES + lake.more_types
    lake.write(tmp_path, **{f"c{index}": values for index, (values, *_) in enumerate(cases)})

    snapshot = build(tmp_path, lake.declare(tmp_path))

    assert [column.type for column in snapshot.columns] == [kind for _, kind, *_ in cases]
    first, second = rows(tmp_path, snapshot, "SELECT * REPLACE (c9::TIMESTAMP AS c9) FROM d ORDER BY c0 NULLS LAST")
    assert first == tuple(other[0] if other else values[0].as_py() for values, _, *other in cases)
    assert second == tuple({} if values[1].as_py() == [] else None for values, *_ in cases)


def test_an_empty_table_keeps_its_columns(tmp_path: Path, lake: Lake) -> None:
    lake.write(tmp_path, n=pa.array([], pa.int32()), s=pa.array([], pa.string()))

    assert types(tmp_path, lake.declare(tmp_path)) == {"n": "INTEGER", "s": "VARCHAR"}
    assert load(tmp_path, lake.declare(tmp_path)) == []


def test_deleted_and_overwritten_rows_are_gone(tmp_path: Path, lake: Lake) -> None:
    lake.write(tmp_path, n=[1, 2, 3])
    lake.delete_where(tmp_path, "n = 2")

    assert load(tmp_path, lake.declare(tmp_path), "FROM d ORDER BY n") == [(1,), (3,)]

    lake.overwrite(tmp_path, pa.table({"n": [9]}))

    assert load(tmp_path, lake.declare(tmp_path)) == [(9,)]


def test_a_newer_version_and_a_table_made_anew_are_noticed(tmp_path: Path, lake: Lake) -> None:
    lake.write(tmp_path, n=[1])
    dataset = lake.declare(tmp_path)
    first = version(tmp_path, dataset)
    assert not has_changed(tmp_path, dataset, first)

    lake.write(tmp_path, n=[2])
    assert has_changed(tmp_path, dataset, first)
    assert not has_changed(tmp_path, dataset, version(tmp_path, dataset))
    assert load(tmp_path, dataset, "FROM d ORDER BY n") == [(1,), (2,)]

    shutil.rmtree(dataset.location)
    with pytest.raises(SourceError, match=r"^'[a-z/]+' does not exist\.$"):
        has_changed(tmp_path, dataset, first)

    (tmp_path / "catalog.db").unlink(missing_ok=True)
    lake.write(tmp_path, n=[1])
    assert has_changed(tmp_path, dataset, first)


@pytest.mark.parametrize("name", ["q\"u'o", "ü", "With Space", "dot.ted", "UPPER"])
def test_names_of_columns_and_tables_may_be_any(tmp_path: Path, lake: Lake, name: str) -> None:
    columns: dict[str, Any] = {name: [1]}
    lake.write(tmp_path, **columns)
    # The library that writes Delta tables would take %20 for a blank.
    Path(lake.declare(tmp_path).location).rename(tmp_path / f"my {name} %20 t")

    assert types(tmp_path, lake.declare(tmp_path, f"my {name} %20 t")) == {name: "BIGINT"}
    assert load(tmp_path, lake.declare(tmp_path, f"my {name} %20 t")) == [(1,)]


def test_only_wanted_columns_are_given(tmp_path: Path, lake: Lake) -> None:
    lake.write(tmp_path, a=[1], B=["x"], c=[2.5])

    assert scan(tmp_path, lake.declare(tmp_path), columns="b") == (["B"], [("x",)])
    assert scan(tmp_path, lake.declare(tmp_path), columns="") == (["a"], [(1,)])


MARCH = [date(2024, 3, 1), date(2024, 3, 2)]
ALL = {0, 1, 2, 3}


def test_files_without_wanted_rows_are_not_opened(tmp_path: Path, lake: Lake) -> None:
    for index in range(4):
        lake.write(
            tmp_path,
            p=[index],
            n=[index * 10],
            s=["x"],
            d=[MARCH[index // 2]],
            t=pa.array([datetime(2024, 1, 1 + index, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            e=pa.array([Decimal(index)], pa.decimal128(9, 2)),
            **lake.partition_by_p,
        )
    cases: list[tuple[set[int], list[Bound]]] = [
        ({2}, [Bound("p", "=", 2)]),
        ({0, 1}, [Bound("P", "<", 2)]),
        ({2, 3}, [Bound("N", ">=", 20)]),
        ({1}, [Bound("n", ">", 5), Bound("p", "<=", 1)]),
        ({0}, [Bound("n", "<", Decimal("0.5"))]),
        (ALL, [Bound("n", "<", 0.5)]),
        (ALL, [Bound("s", "<", "a")]),
        ({0, 1}, [Bound("d", "<", MARCH[1])]),
        (ALL, [Bound("d", "<", datetime(2024, 3, 2))]),  # noqa: DTZ001
        ({2, 3}, [Bound("t", ">=", datetime(2024, 1, 3, 0, 0, 0, 500))]),  # noqa: DTZ001
        ({3}, [Bound("t", ">=", datetime(2024, 1, 3, 0, 0, 0, 5000, tzinfo=UTC))]),
        ({1} if lake.has_bounds_of_decimals else ALL, [Bound("e", "=", Decimal(1))]),
        (ALL, [Bound("absent", "=", 1)]),
    ]

    for files, bounds in cases:
        found = scan(tmp_path, lake.declare(tmp_path), *bounds, columns="p")
        assert (bounds, found) == (bounds, (["p"], [(index,) for index in sorted(files)]))


@pytest.mark.parametrize("end", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_times_at_the_ends_of_pythons_calendar_are_found(tmp_path: Path, lake: Lake, end: datetime) -> None:
    lake.write(tmp_path, n=[1], t=pa.array([end], pa.timestamp("us", "UTC")))

    # The statistics of Delta tables are truncated to milliseconds.
    assert scan(tmp_path, lake.declare(tmp_path), Bound("t", "=", end), columns="n")[1] == [(1,)]


def test_a_path_that_is_not_a_directory_is_refused(tmp_path: Path, lake: Lake) -> None:
    dataset = lake.declare(tmp_path)
    path = Path(dataset.location)
    shown = path.relative_to(tmp_path)

    assert refusal(tmp_path, dataset) == f"'{shown}' does not exist."
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    assert refusal(tmp_path, dataset) == f"'{shown}' is not a directory."


@pytest.mark.exhaustive
def test_many_rows_pass_within_the_memory_of_a_loader(tmp_path: Path, lake: Lake) -> None:
    numbers = range(500_000)
    lake.write(tmp_path, n=pa.array(numbers), s=pa.array([f"a text of some length, {number}" for number in numbers]))
    lake.delete_where(tmp_path, "n >= 400000")

    found = load_in_process(tmp_path, lake.declare(tmp_path), "SELECT count(*), sum(n), min(s) FROM d", memory_mib=256)

    assert found == [(400_000, 79_999_800_000, "a text of some length, 0")]
