"""A row of parameters in Arrow, as values that the engine takes."""

import io
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from queryengine.errors import ParameterError
from queryengine.execution.arrow_parameters import from_arrow
from queryengine.execution.parameters import bind
from tests.corpus import each

DAY = "1970-01-01"


def stream(*batches: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def row(**values: Any) -> pa.RecordBatch:
    arrays = [value if isinstance(value, pa.Array) else pa.array([value]) for value in values.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(values))


@each(
    ("value", "expected"),
    [
        pytest.param(pa.array([5], pa.int8()), 5, id="int"),
        pytest.param(pa.array([2**64 - 1], pa.uint64()), 2**64 - 1, id="large int"),
        pytest.param(pa.array([1.5], pa.float32()), 1.5, id="float"),
        pytest.param(pa.array(["é"]), "é", id="text"),
        pytest.param(pa.array(["é"], pa.large_string()), "é", id="large text"),
        pytest.param(pa.array(["é"]).dictionary_encode(), "é", id="dictionary"),
        pytest.param(pa.array([b"\xff"]), b"\xff", id="bytes"),
        pytest.param(pa.array([True]), True, id="boolean"),
        pytest.param(pa.array([None], pa.int64()), None, id="null of a type"),
        pytest.param(pa.array([None]), None, id="null"),
        pytest.param(pa.array([Decimal("1.50")]), Decimal("1.50"), id="decimal"),
        pytest.param(pa.array([date(2024, 2, 29)]), date(2024, 2, 29), id="date"),
        pytest.param(pa.array([time(1, 2, 3, 4)]), time(1, 2, 3, 4), id="time"),
        pytest.param(pa.array([datetime(2024, 1, 1, 2)]), datetime(2024, 1, 1, 2), id="timestamp"),  # noqa: DTZ001
        pytest.param(
            pa.array([datetime(2024, 1, 1, tzinfo=UTC)]), datetime(2024, 1, 1, tzinfo=UTC), id="timestamp with a zone"
        ),
        pytest.param(pa.array([timedelta(days=1)]), timedelta(days=1), id="duration"),
        pytest.param(pa.array([[1, None]]), [1, None], id="list"),
        pytest.param(pa.array([{"a": 1}]), {"a": 1}, id="struct"),
    ],
)
def test_a_value_keeps_its_type(value: pa.Array, expected: object) -> None:
    (found,) = from_arrow(stream(row(a=value)), named=False)

    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("type_", "text", "kind"),
    [
        (pa.timestamp("ns"), f"{DAY} 00:00:00.000000001", "TIMESTAMP_NS"),
        (pa.timestamp("ns", "Europe/Berlin"), f"{DAY} 00:00:00.000000001", "TIMESTAMP_NS"),  # in UTC
        (pa.time64("ns"), "00:00:00.000000001", "TIME_NS"),
    ],
)
def test_nanoseconds_are_kept(type_: pa.DataType, text: str, kind: str) -> None:
    values = from_arrow(stream(row(a=pa.array([1], type_))), named=False)

    assert duckdb.connect().execute("SELECT $1::VARCHAR, typeof($1)", values).fetchone() == (text, kind)
    assert from_arrow(stream(row(a=pa.array([None], type_))), named=False) == [None]


def test_microseconds_with_a_zone_can_be_compared_with_any_time() -> None:
    value = pa.array([1_704_067_200_000_001_000], pa.timestamp("ns", "Europe/Berlin"))

    values = from_arrow(stream(row(a=value)), named=False)

    assert values == [datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]
    found = duckdb.connect().execute("SELECT '2024-01-01 00:00:00+00'::TIMESTAMPTZ < $1", values).fetchone()
    assert found == (True,)


@each(
    ("names", "named", "expected"),
    [
        ("b a", False, [1, 2]),
        ("$2 $1", False, [2, 1]),
        ("$2 $3", False, [1, 2]),
        *((f"{mark}b {mark}a", True, {"b": 1, "a": 2}) for mark in ("", "$", ":", "@")),
    ],
)
def test_positions_and_names(names: str, named: bool, expected: object) -> None:
    values = dict(zip(names.split(), (1, 2), strict=True))

    assert from_arrow(stream(row(**values)), named=named) == expected


def test_empty_batches_do_not_count() -> None:
    batch = row(a=1)

    assert from_arrow(stream(batch.slice(0, 0), batch, batch.slice(0, 0)), named=False) == [1]


@each(
    ("data", "named", "message"),
    [
        pytest.param(b"", False, "readable", id="nothing"),
        pytest.param(b"nonsense" * 10, False, "readable", id="nonsense"),
        pytest.param(stream(row(a=1))[:-100], False, "readable", id="cut"),
        pytest.param(stream(row(a=1), row(a=1)), False, "Only one row", id="two batches"),
        pytest.param(stream(row(a=pa.array([1, 2]))), False, "Only one row", id="two rows"),
        pytest.param(stream(row(a=1).slice(0, 0)), False, "no row", id="no row"),
        pytest.param(stream(row(**{"a": 1, "$a": 2})), True, "set twice", id="a name twice"),
        pytest.param(
            stream(row(a=pa.array([2**62], pa.timestamp("s")))), False, r"value of \$a has the type", id="a far year"
        ),
    ],
)
def test_what_is_not_taken(data: bytes, named: bool, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        from_arrow(data, named=named)


@pytest.mark.parametrize("text", ["9" * 39, f"-0.{'9' * 39}", "1E-38", "1E+38", f"1.{'0' * 38}"])
def test_a_decimal_that_would_become_a_double_is_refused(text: str) -> None:
    given = from_arrow(stream(row(a=pa.array([Decimal(text)]))), named=False)

    with pytest.raises(ParameterError, match=r"value of \$1 contains a decimal with more than 38 digits"):
        bind(["1"], given)
