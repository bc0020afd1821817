"""Small results have, to the byte, the encoding that record batches have."""

from collections.abc import Callable, Iterable
from decimal import Context, Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryengine.encoders import small_rows
from queryengine.engine import Encoding
from queryengine.manifest import Column
from queryengine.values import TABLE
from tests.corpus import each
from tests.queryengine.encoders.answers import answer, encode, result

_WIDE = Context(prec=80)

patient = settings(deadline=None, max_examples=12)


def cast(type_: str, text: object) -> str:
    return f"CAST('{text}' AS {type_})"


def integers(type_: str, least: int, most: int) -> st.SearchStrategy[str]:
    edges = st.sampled_from([least, most, 0])
    return (st.integers(least, most) | edges).map(lambda value: cast(type_, value))


def decimals(precision: int, scale: int) -> st.SearchStrategy[str]:
    most = 10**precision - 1
    whole = st.integers(-most, most) | st.integers(-1000, 1000)
    type_ = f"DECIMAL({precision},{scale})"
    return whole.map(lambda value: cast(type_, f"{Decimal(value).scaleb(-scale, _WIDE):f}"))


def since(start: str, unit: str, least: int, most: int) -> st.SearchStrategy[str]:
    """Points in time *unit* after *start*, many of them on whole seconds, milliseconds or days."""
    step = st.sampled_from([1, 1, 1000, 1_000_000, 86_400_000_000]) if unit == "MICROSECOND" else st.just(1)
    counts = st.tuples(st.integers(least, most), step).map(lambda pair: pair[0] // pair[1] * pair[1])
    return counts.map(lambda count: f"{start} + INTERVAL ({count}) {unit}")


def text(value: str) -> str:
    return f"decode(unhex('{value.encode().hex()}'))"


TEXT = (st.text() | st.sampled_from(["", '"', ",", "\r", "\n", "\\", "%s", "\0", "\x7f", "\u2028", "null"])).map(text)
_CENTURIES = 366 * 86_400 * 10**6 * 100
FLOATS = (
    st.floats()
    | st.integers(-(2**54), 2**54).map(float)
    | st.decimals(-10_000, 10_000, places=3).map(float)
    | st.sampled_from([0.0, -0.0, 1e-4, 9.999999999999999e-5, 1e10, 9999999999.5, 1e15, 1e16, 1e17, 5e-324, 1e300])
)

#: How each type that is written here is made; the others are not for here.
LITERALS: dict[str, st.SearchStrategy[str]] = {
    "NULL": st.just("NULL"),
    "BOOLEAN": st.sampled_from(["true", "false"]),
    **{f"{name}": integers(name, -(2**bits), 2**bits - 1) for name, bits in
       (("TINYINT", 7), ("SMALLINT", 15), ("INTEGER", 31), ("BIGINT", 63), ("HUGEINT", 127))},
    **{f"U{name}": integers(f"U{name}", 0, 2**bits - 1) for name, bits in
       (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64), ("HUGEINT", 128))},
    "DOUBLE": FLOATS.map(lambda value: cast("DOUBLE", repr(value))),
    "DECIMAL(4,1)": decimals(4, 1),
    "DECIMAL(18,3)": decimals(18, 3),
    "DECIMAL(38,7)": decimals(38, 7),
    "DECIMAL(38,38)": decimals(38, 38),
    "DECIMAL(38,0)": decimals(38, 0),
    "VARCHAR": TEXT,
    "JSON": st.sampled_from(["'{\"a\": [1, null]}'::JSON", "'\"x,\"'::JSON"]),
    "ENUM": st.sampled_from(['a"', "\n", ""]).map(lambda value: f"{text(value)}::ENUM('a\"', '\n', '')"),
    "UUID": st.uuids().map(lambda value: cast("UUID", value)),
    "BLOB": st.binary(max_size=20).map(lambda value: f"unhex('{value.hex()}')"),
    "DATE": st.integers(-719_600, 2_932_896).map(lambda days: f"DATE '1970-01-01' + ({days})"),
    "TIME": st.integers(0, 86_399_999_999).map(lambda micros: f"make_time(0, 0, 0) + INTERVAL ({micros}) MICROSECOND"),
    "TIMESTAMP": since("TIMESTAMP '2000-01-01'", "MICROSECOND", -19 * _CENTURIES, 79 * _CENTURIES),
    "TIMESTAMP_S": since("TIMESTAMP '2000-01-01'", "SECOND", -(10**9), 10**9).map(lambda sql: f"({sql})::TIMESTAMP_S"),
    "TIMESTAMP_MS": since("TIMESTAMP '2000-01-01'", "MILLISECOND", -(10**12), 10**12).map(
        lambda sql: f"({sql})::TIMESTAMP_MS"
    ),
}  # fmt: skip


def columns(named: Iterable[tuple[str, str]]) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=type_) for name, type_ in named)


def small_result(connection: duckdb.DuckDBPyConnection, sql: str, encoding: Encoding) -> bytes:
    found = connection.execute(sql)
    plan = small_rows.plan(columns((name, str(type_)) for name, type_, *_ in found.description))
    assert plan is not None, found.description
    return plan.encode(encoding, found.fetchall())


def each_result(name: str, check: Callable[[str], None]) -> None:
    """Call *check* with statements that return values of the type *name* and a null."""

    @patient
    @given(st.lists(LITERALS[name], min_size=1, max_size=20))
    def run(values: list[str]) -> None:
        rows = ", ".join(f"({value})" for value in [*values, "NULL"])
        check(f"SELECT v FROM (VALUES {rows}) t(v)" if name != "NULL" else "SELECT NULL AS v")

    run()


@each("name", sorted(LITERALS))
def test_each_type_is_written_as_from_batches(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    def check(sql: str) -> None:
        for encoding in small_rows.ENCODINGS:
            try:
                written = small_result(connection, sql, encoding)
            except small_rows.UnsureError:
                assert name.startswith(("DATE", "TIME"))
            else:
                assert written == answer(connection, sql, encoding)

    each_result(name, check)


@pytest.mark.exhaustive
@each("name", sorted(LITERALS))
def test_each_type_becomes_the_batch_that_duckdb_exports(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    # Others leave results unread on theirs.
    own = connection.cursor()

    def check(sql: str) -> None:
        exported, reader = result(own, sql)
        expected = reader.read_all()
        found = own.execute(sql)
        assert columns((name, str(type_)) for name, type_, *_ in found.description) == exported
        fetched = found.fetchall()
        if not small_rows.fit_batch(expected.schema):
            assert name == "ENUM"
            return
        try:
            batch = small_rows.batch(exported, expected.schema, fetched)
        except small_rows.UnsureError:
            assert name.startswith(("DATE", "TIME", "HUGEINT"))
        else:
            batch.validate(full=True)
            # As bytes, since no NaN is the same as another.
            assert answer_of(exported, pa.Table.from_batches([batch])) == answer_of(exported, expected)

    each_result(name, check)


def answer_of(columns: tuple[Column, ...], table: pa.Table) -> bytes:
    return b"".join(encode("vnd", columns, table.schema, table.to_batches()))


@pytest.mark.parametrize("encoding", sorted(small_rows.ENCODINGS))
def test_names_and_rows_are_written_as_from_batches(connection: duckdb.DuckDBPyConnection, encoding: Encoding) -> None:
    @patient
    @given(st.lists(st.text('ab%s",\\{}é\n', min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 3))
    def check(names: list[str], rows: int) -> None:
        aliases = ['"' + name.replace('"', '""') + '"' for name in names]
        selected = ", ".join(f"nullif(i, {number}) AS {alias}" for number, alias in enumerate(aliases))
        sql = f"SELECT {selected} FROM range({rows}) t(i)"

        assert small_result(connection, sql, encoding) == answer(connection, sql, encoding)

    check()


@each(
    "value",
    [
        "DATE 'infinity'",
        "DATE '-infinity'",
        "DATE '9999-12-31'",
        "DATE '10000-01-01'",
        "TIMESTAMP 'infinity'",
        "TIMESTAMP '-infinity'",
        "TIMESTAMP '0001-01-01' - INTERVAL 1 SECOND",
        "TIMESTAMP '9999-12-31 23:59:59.999999'",
        "TIME '24:00:00'",
    ],
)
@each("encoding", sorted(small_rows.ENCODINGS))
def test_what_python_does_not_tell_apart_is_left_to_batches(
    connection: duckdb.DuckDBPyConnection, value: str, encoding: Encoding
) -> None:
    with pytest.raises(small_rows.UnsureError):
        small_result(connection, f"SELECT {value} AS v", encoding)


def test_every_type_that_has_a_plan_is_in_the_table_and_tested_here() -> None:
    planned = {name for name in TABLE if small_rows.plan(columns([("v", name)])) is not None}

    assert planned == {name.partition("(")[0] for name in LITERALS}
    assert small_rows.plan(columns([("v", "INTEGER"), ("w", "INTEGER[]")])) is None


def test_long_names_are_not_kept() -> None:
    assert small_rows._json(("n" * 3000,)) is not small_rows._json(("n" * 3000,))
    assert small_rows._json(("n", "m")) is small_rows._json(("n", "m"))
