"""Whatever the values, what is written reads back the same."""

import csv
import io
import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.queryengine.encoders.answers import from_arrow, strict_json

TEXT = st.text()
INT64 = st.integers(-(2**63), 2**63 - 1)
_WIDE = Context(prec=80)  # the default would round decimals of 38 digits

patient = settings(deadline=None)


@dataclass(frozen=True)
class Kind:
    """A type: in DuckDB's words, in Arrow, a strategy for (value for Arrow, value as JSON)."""

    duckdb: str
    arrow: pa.DataType
    values: st.SearchStrategy[tuple[Any, Any]]


def same(value: Any) -> tuple[Any, Any]:
    return value, Decimal(value) if type(value) is int else value


def finite(value: float) -> tuple[float, Any]:
    return value, Decimal(repr(value)) if math.isfinite(value) else None


LEAVES = st.sampled_from(
    [
        Kind("BIGINT", pa.int64(), INT64.map(same)),
        Kind("UTINYINT", pa.uint8(), st.integers(0, 255).map(same)),
        Kind("BOOLEAN", pa.bool_(), st.booleans().map(same)),
        Kind("VARCHAR", pa.string(), TEXT.map(same)),
        Kind("DOUBLE", pa.float64(), st.floats().map(finite)),
        Kind("BLOB", pa.binary(), st.binary().map(lambda value: (value, value.hex()))),
        Kind("UHUGEINT", pa.string(), st.integers(0, 2**128 - 1).map(lambda value: (str(value), Decimal(value)))),
        Kind("ENUM('a', '\"b\n')", pa.dictionary(pa.uint8(), pa.string()), st.sampled_from(['a"', "\n"]).map(same)),
        Kind(
            "DECIMAL(38,7)",
            pa.decimal128(38, 7),
            st.integers(1 - 10**38, 10**38 - 1).map(lambda value: (Decimal(value).scaleb(-7, _WIDE),) * 2),
        ),
    ]
)


def nullable(kind: Kind) -> st.SearchStrategy[tuple[Any, Any]]:
    return st.none().map(lambda _: (None, None)) | kind.values


def lists(element: Kind) -> Kind:
    values = st.lists(nullable(element), max_size=4).map(unzipped)
    return Kind(f"{element.duckdb}[]", pa.list_(element.arrow), values)


def arrays(element: Kind) -> Kind:
    values = st.lists(nullable(element), min_size=2, max_size=2).map(unzipped)
    return Kind(f"{element.duckdb}[2]", pa.list_(element.arrow, 2), values)


def structs(members: list[Kind]) -> Kind:
    names = [f'n"{position}' for position in range(len(members))]
    quoted = ", ".join(f'"n""{position}" {kind.duckdb}' for position, kind in enumerate(members))
    values = st.tuples(*map(nullable, members)).map(
        lambda pairs: (
            {name: pair[0] for name, pair in zip(names, pairs, strict=True)},
            {name: pair[1] for name, pair in zip(names, pairs, strict=True)},
        )
    )
    return Kind(f"STRUCT({quoted})", pa.struct(list(zip(names, (kind.arrow for kind in members), strict=True))), values)


def maps(value: Kind) -> Kind:
    values = st.dictionaries(TEXT, nullable(value), max_size=3).map(
        lambda entries: (
            [(key, pair[0]) for key, pair in entries.items()],
            {key: pair[1] for key, pair in entries.items()},
        )
    )
    return Kind(f"MAP(VARCHAR, {value.duckdb})", pa.map_(pa.string(), value.arrow), values)


def unzipped(pairs: Iterable[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [value for value, _ in pairs], [expected for _, expected in pairs]


KINDS = st.recursive(
    LEAVES,
    lambda inner: (
        inner.map(lists) | inner.map(arrays) | inner.map(maps) | st.lists(inner, min_size=1, max_size=3).map(structs)
    ),
    max_leaves=5,
)


@patient
@given(st.data())
def test_nested_values_in_slices_of_batches(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    pairs = data.draw(st.lists(nullable(kind), max_size=6))
    first = data.draw(st.integers(0, len(pairs)))
    array = pa.array([value for value, _ in pairs], kind.arrow)

    body = from_arrow({"v": kind.duckdb}, pa.record_batch({"v": array}).slice(first))

    assert strict_json(body) == [{"v": expected} for _, expected in pairs[first:]]


@patient
@given(st.lists(st.none() | TEXT, min_size=1), st.lists(TEXT, min_size=1, max_size=4, unique=True))
def test_any_text_in_any_column(values: list[str | None], names: list[str]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.string())] * len(names), names)
    columns = dict.fromkeys(names, "VARCHAR")

    assert strict_json(from_arrow(columns, batch)) == [dict.fromkeys(names, value) for value in values]

    header, *rows = csv.reader(io.StringIO(from_arrow(columns, batch, encoding="csv").decode(), newline=""))
    assert header == names
    if len(names) > 1:  # a null alone is an empty line, which the reader of Python skips over as a row of no fields
        assert rows == [[value or ""] * len(names) for value in values]


@patient
@given(st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))), st.data())
def test_every_precision_and_scale(shape: tuple[int, int], data: st.DataObject) -> None:
    precision, scale = shape
    unscaled = data.draw(st.lists(st.integers(1 - 10**precision, 10**precision - 1), min_size=1))
    values = [Decimal(number).scaleb(-scale, _WIDE) for number in unscaled]
    batch = pa.record_batch({"v": pa.array(values, pa.decimal128(precision, scale))})

    body = from_arrow({"v": f"DECIMAL({precision},{scale})"}, batch)

    assert [row["v"] for row in strict_json(body)] == values
    assert json.loads(body, parse_float=str, parse_int=str) == [{"v": f"{value:.{scale}f}"} for value in values]


@pytest.mark.parametrize(("kind", "arrow", "form"), [("DOUBLE", pa.float64(), "d"), ("FLOAT", pa.float32(), "f")])
def test_every_floating_point_number(kind: str, arrow: pa.DataType, form: str) -> None:
    @patient
    @given(st.lists(st.floats(width=arrow.bit_width), min_size=1))
    def check(values: list[float]) -> None:
        batch = pa.record_batch({"v": pa.array(values, arrow)})

        for row, value in zip(json.loads(from_arrow({"v": kind}, batch)), values, strict=True):
            if math.isfinite(value):
                assert isinstance(row["v"], float)
                assert struct.pack(form, row["v"]) == struct.pack(form, value)
            else:
                assert row["v"] is None
        words = from_arrow({"v": kind}, batch, encoding="csv").decode().split()[1:]
        expected = [math.nan if math.isnan(value) else value for value in values]  # text has only one NaN
        assert [struct.pack(form, float(word)) for word in words] == [struct.pack(form, value) for value in expected]

    check()


INSTANTS = INT64 | st.integers(-(10**17), 10**17) | st.integers(-(10**12), 10**12).map(lambda value: value * 10**3)


def iso_year(year: int) -> str:
    return f"{year:04}" if 0 <= year <= 9999 else f"{year:+07}"


@patient
@given(values=st.lists(INSTANTS.filter(lambda value: abs(value) < 2**63 - 1 and value > -9.2233720224e18), min_size=1))
def test_every_instant(connection: duckdb.DuckDBPyConnection, values: list[int]) -> None:
    batch = pa.record_batch({"v": pa.array(values, pa.int64()).view(pa.timestamp("us"))})
    sql = """
        SELECT year(t), strftime(t, '-%m-%dT%H:%M:%S'), epoch_us(t) % 1000000
        FROM (SELECT make_timestamp(unnest(?::BIGINT[])) AS t)
    """

    expected = []
    for year, rest, micros in connection.execute(sql, [values]).fetchall():
        fraction = micros % 10**6
        digits = f".{fraction:06}" if fraction % 1000 else f".{fraction // 1000:03}" if fraction else ""
        expected.append({"v": iso_year(year) + rest + digits})
    assert strict_json(from_arrow({"v": "TIMESTAMP"}, batch)) == expected


@patient
@given(values=st.lists(st.integers(-(2**31) + 2, 2**31 - 2) | st.integers(-800_000, 3_000_000), min_size=1))
def test_every_day(connection: duckdb.DuckDBPyConnection, values: list[int]) -> None:
    batch = pa.record_batch({"v": pa.array(values, pa.int32()).view(pa.date32())})
    sql = "SELECT year(d), strftime(d, '-%m-%d') FROM (SELECT DATE '1970-01-01' + unnest(?::INTEGER[]) AS d)"

    expected = [{"v": iso_year(year) + rest} for year, rest in connection.execute(sql, [values]).fetchall()]

    assert strict_json(from_arrow({"v": "DATE"}, batch)) == expected
