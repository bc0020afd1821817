"""Every DuckDB type in every format, against DuckDB's own text of the value and against pyarrow."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet

from queryengine.encoders import CONTENT_TYPES, encode
from queryengine.encoders.arrow import answer_schema
from queryengine.engine import Encoding
from queryengine.errors import SqlError
from queryengine.manifest import Column
from queryengine.values import TABLE, Carrier, arrow_projection
from tests.queryengine.answers import answer, connect, from_arrow, result, strict_json

Oracle = Callable[[str], Any]


def number(text: str) -> Any:
    return Decimal(text)


def floating(text: str) -> Any:
    return float(text) if math.isfinite(float(text)) else None


def moment(text: str) -> Any:
    """DuckDB's text of a date, time or timestamp as ISO 8601."""
    if "infinity" in text:
        return None
    match = re.fullmatch(r"(?:(\d+)-(\d\d-\d\d)( \(BC\))?)?(.*)", text)
    assert match
    year_text, day, _, rest = match.groups()
    bc = " (BC)" in text
    rest = rest.replace(" (BC)", "")
    clock = re.fullmatch(r" ?(?:(\d\d:\d\d:\d\d)(?:\.(\d+))?(\+00)?)?", rest)
    assert clock, rest
    time, fraction, zone = clock.groups()
    if fraction:
        time += "." + fraction.ljust(-(-len(fraction) // 3) * 3, "0")
    if year_text is None:
        return time
    year = 1 - int(year_text) if bc else int(year_text)
    years = f"{year:04}" if 0 <= year <= 9999 else f"{year:+07}"
    return f"{years}-{day}" + (f"T{time}" if time else "") + ("Z" if zone else "")


def text(value: str) -> Any:
    return value


INTEGERS = {
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "HUGEINT": (-(2**127), 2**127 - 1),
    "UTINYINT": (0, 2**8 - 1),
    "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1),
    "UBIGINT": (0, 2**64 - 1),
    "UHUGEINT": (0, 2**128 - 1),
    "BIGNUM": (-(10**400), 10**400),
}
DATES = ["2024-01-31", "0001-01-01", "9999-12-31", "10000-01-01", "0001-12-31 (BC)", "0002-01-01 (BC)", "1969-12-31"]
DATES += ["5877642-06-25 (BC)", "5881580-07-10", "32768-01-01", "2000-02-29", "1900-03-01", "infinity", "-infinity"]
CLOCKS = ["00:00:00", "12:34:56", "12:34:56.5", "12:34:56.789", "12:34:56.000001", "23:59:59.999999"]
STAMPS = [f"2024-01-31 {clock}" for clock in CLOCKS] + ["1969-12-31 23:59:59.999999", "infinity", "-infinity"]
FAR_STAMPS = [
    "290309-12-22 (BC) 00:00:00",
    "294247-01-10 04:00:54.775806",
    "0001-01-01 (BC) 00:00:00.5",
    "0002-01-01 (BC) 00:00:00.5",
]
DOUBLES = ["0.1", "1", "-0.0", "12345678901", "123456789012345.5", "9007199254740993", "1e15", "1e16", "1e300"]
DOUBLES += ["5e-324", "1.7976931348623157e308", "0.00001"]
TEXTS = ["", "x", 'a "quoted" \\ b', "line\nbreak\r\ttab", "comma, semicolon;", "\x00\x01\x1f\x7f", "\u2028é🦆", "null"]

#: For each type of the table: SQL literals to be cast to it, and what JSON holds for DuckDB's text of the value.
SAMPLES: dict[str, tuple[str, list[str], Oracle]] = {
    "BOOLEAN": ("BOOLEAN", ["true", "false"], lambda value: value == "true"),
    **{name: (name, [str(low), "0", "42", str(high)], number) for name, (low, high) in INTEGERS.items()},
    "FLOAT": ("FLOAT", ["0.1", "1", "-0.0", "3.4028235e38", "1e-45", "nan", "inf", "-inf"], floating),
    "DOUBLE": (
        "DOUBLE",
        [*DOUBLES, "nan", "inf", "-inf"],
        floating,
    ),
    "DECIMAL": (
        "DECIMAL(38,10)",
        ["0", "0.0000000001", "-0.0000000001", "1.5", "-9999999999999999999999999999.9999999999"],
        number,
    ),
    "VARCHAR": ("VARCHAR", TEXTS, text),
    "JSON": ("JSON", ['{"a": [1,  2.50]}', '"x"', "[NaN]", "null"], text),
    "UUID": ("UUID", ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"], text),
    "ENUM": ("ENUM('plain', 'with \"quotes\", and a comma')", ["plain", 'with "quotes", and a comma'], text),
    "BLOB": ("BLOB", ["", "\\x00\\xFF", "plain"], text),
    "BIT": ("BIT", ["0", "1", "0101", "1" * 70], text),
    "DATE": ("DATE", DATES, moment),
    "TIME": ("TIME", [*CLOCKS, "24:00:00"], moment),
    "TIME_NS": ("TIME_NS", [*CLOCKS, "12:34:56.123456789", "24:00:00"], moment),
    "TIME WITH TIME ZONE": ("TIMETZ", ["12:34:56+02", "00:00:00+15:59:59", "24:00:00-15:59:59", "01:02:03.5"], text),
    "TIMESTAMP": ("TIMESTAMP", STAMPS + FAR_STAMPS, moment),
    "TIMESTAMP_S": ("TIMESTAMP_S", ["2024-01-31 12:34:56", "290309-12-22 (BC) 00:00:00", "infinity"], moment),
    "TIMESTAMP_MS": ("TIMESTAMP_MS", ["2024-01-31 12:34:56", "2024-01-31 12:34:56.7", "infinity", "-infinity"], moment),
    "TIMESTAMP_NS": (
        "TIMESTAMP_NS",
        [*STAMPS, "2024-01-31 12:34:56.123456789", "1677-09-22 00:00:00", "2262-04-11 23:47:16.854775806"],
        moment,
    ),
    "TIMESTAMP WITH TIME ZONE": ("TIMESTAMPTZ", [f"{stamp}+00" for stamp in FAR_STAMPS] + STAMPS, moment),
    "TIMESTAMPTZ_NS": ("TIMESTAMPTZ_NS", ["2024-01-31 12:34:56.123456789+00", "infinity"], moment),
    "INTERVAL": (
        "INTERVAL",
        ["0", "1 year 2 months 3 days 04:05:06.789", "-1 day -00:00:01", "3000000 hours", "2147483647 months"],
        text,
    ),
    "GEOMETRY": ("GEOMETRY", ["POINT (1 2)", "LINESTRING (0.1 0, 1 1)", "POINT EMPTY"], text),
    "NULL": ('"NULL"', [], text),
}

#: Built from the others.
COMPOSITES = {"LIST", "ARRAY", "STRUCT", "TUPLE", "MAP", "UNION", "VARIANT", "TYPE"}

#: How a value of another type is nested, and the JSON around its token.
NESTINGS = {
    "LIST": ("[v, NULL]", "[%s,null]"),
    "ARRAY": ("array_value(v, v)", "[%s,%s]"),
    "STRUCT": ("{'a': v, 'q\"\n': v}", '{"a":%s,"q\\"\\n":%s}'),
    "TUPLE": ("row(v, 1)", "[%s,1]"),
    "MAP": ("MAP {'k': v}", '{"k":%s}'),
    "UNION": ("union_value(m := v)", "%s"),
    "deep": (
        "[{'m': MAP {'k': [union_value(u := row(v, NULL))]}}, NULL]",
        '[{"m":{"k":[[%s,null]]}},null]',
    ),
}


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with connect() as opened:
        yield opened


def values_of(name: str) -> str:
    """SQL of the samples of a type in one column `v`, a null among them."""
    kind, literals, _ = SAMPLES[name]
    rows = ", ".join(f"({position}, {sql_text(literal)})" for position, literal in enumerate(literals))
    numbered = f"(VALUES {rows}, (998, NULL))" if rows else "(VALUES (998, NULL))"
    return f"SELECT CAST(s AS {kind}) AS v FROM {numbered} t(n, s) ORDER BY n"


def sql_text(value: str) -> str:
    """A literal; an expression where the value has a NUL."""
    return "(" + " || chr(0) || ".join("'" + part.replace("'", "''") + "'" for part in value.split("\0")) + ")"


def engine_texts(connection: duckdb.DuckDBPyConnection, name: str) -> list[str | None]:
    how = "lower(hex(v))" if name == "BLOB" else "CAST(v AS VARCHAR)"
    return [value for (value,) in connection.execute(f"SELECT {how} FROM ({values_of(name)})").fetchall()]


def tokens(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """The JSON of each value of a result with the one column `v`."""
    body = answer(connection, sql).decode()
    strict_json(body.encode())
    assert body.startswith('[{"v":')
    assert body.endswith("}]")
    return body[len('[{"v":') : -len("}]")].split('},{"v":')


def test_every_type_of_the_table_has_samples() -> None:
    assert set(SAMPLES) | COMPOSITES == set(TABLE)


@pytest.mark.parametrize("name", SAMPLES)
def test_json_says_what_the_engine_says(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    oracle = SAMPLES[name][2]

    rows = strict_json(answer(connection, values_of(name)))

    expected = [None if value is None else oracle(value) for value in engine_texts(connection, name)]
    assert [row["v"] for row in rows] == [Decimal(repr(v)) if isinstance(v, float) else v for v in expected]


def test_a_negative_zero_stays_negative(connection: duckdb.DuckDBPyConnection) -> None:
    assert tokens(connection, "SELECT unnest(['-0.0', '0.0']::DOUBLE[]) AS v") == ["-0.0", "0.0"]


def test_a_decimal_keeps_the_digits_of_its_scale(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT CAST(s AS DECIMAL({})) AS v FROM (VALUES ('1.5'), ('0'), ('-0.01')) t(s)"

    assert tokens(connection, sql.format("18,3")) == ["1.500", "0.000", "-0.010"]
    assert tokens(connection, sql.format("38,9")) == ["1.500000000", "0.000000000", "-0.010000000"]


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_nested_value_is_written_like_one_that_is_not(
    connection: duckdb.DuckDBPyConnection, name: str, nesting: str
) -> None:
    expression, around = NESTINGS[nesting]
    alone = tokens(connection, values_of(name))

    # No literals for constant folding: the values come from a table.
    inside = tokens(connection, f"SELECT {expression} AS v FROM ({values_of(name)})")

    assert inside == [around.replace("%s", token) for token in alone]


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - {"NULL"}))
def test_a_value_is_a_key_by_its_plain_text(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    where = "v IS NOT NULL"
    fields = csv_rows(answer(connection, f"SELECT v FROM ({values_of(name)}) WHERE {where}", "csv"))[1:]

    rows = strict_json(answer(connection, f"SELECT MAP {{v: 1}} AS m FROM ({values_of(name)}) WHERE {where}"))

    assert [row["m"] for row in rows] == [{field[0]: 1} for field in fields]


@pytest.mark.parametrize(
    ("sql", "token"),
    [
        pytest.param("[]::INTEGER[]", "[]", id="empty list"),
        pytest.param("[]::BLOB[]", "[]", id="empty list of bytes"),
        pytest.param("[]::TIMESTAMP[]", "[]", id="empty list of timestamps"),
        pytest.param("NULL::INTEGER[]", "null", id="null list"),
        pytest.param("NULL::STRUCT(a INTEGER)", "null", id="null struct"),
        pytest.param("NULL::INTEGER[3]", "null", id="null array"),
        pytest.param("NULL::MAP(VARCHAR, INTEGER)", "null", id="null map"),
        pytest.param("MAP {}", "{}", id="empty map"),
        pytest.param("MAP {{'a': 1}: 2, {'a': NULL}: 3}", r'{"{\"a\":1}":2,"{\"a\":null}":3}', id="keys of a struct"),
        pytest.param("MAP {[1, 2]: 'x'}", '{"[1,2]":"x"}', id="keys of a list"),
        pytest.param("MAP {'nan'::DOUBLE: 1}", '{"NaN":1}', id="key NaN"),
        pytest.param("MAP {true: 1}", '{"true":1}', id="key of a boolean"),
        pytest.param("NULL::TUPLE(INTEGER, BIT)", "null", id="null tuple"),
        pytest.param("union_value(a := NULL)", "null", id="null member"),
        pytest.param("NULL::UNION(a INTEGER, b VARCHAR)", "null", id="null union"),
        pytest.param("get_type([1])", '"INTEGER[]"', id="type"),
        pytest.param("{'a': {'b': {'c': [[[1]]]}}}", '{"a":{"b":{"c":[[[1]]]}}}', id="deep"),
    ],
)
def test_nested_shapes(connection: duckdb.DuckDBPyConnection, sql: str, token: str) -> None:
    assert tokens(connection, f"SELECT {sql} AS v") == [token]


@pytest.mark.parametrize(
    ("sql", "token"),
    [
        pytest.param("1::VARIANT", "1", id="number"),
        pytest.param("340282366920938463463374607431768211455::UHUGEINT::VARIANT", f"{2**128 - 1}", id="large number"),
        pytest.param("1.50::DECIMAL(5,2)::VARIANT", "1.50", id="decimal"),
        pytest.param("'nan'::DOUBLE::VARIANT", "null", id="NaN"),
        pytest.param(
            "{'a': '-inf'::DOUBLE, 'b': 'NaN \"Infinity'}::VARIANT", '{"a":null,"b":"NaN \\"Infinity"}', id="words"
        ),
        pytest.param("'[1,  {\"a\": 2.5}]'::JSON::VARIANT", '[1,{"a":2.5}]', id="from JSON"),
        pytest.param("[{'a': 1::VARIANT}, NULL]", '[{"a":1},null]', id="inside others"),
        pytest.param("NULL::VARIANT", "null", id="null"),
    ],
)
def test_a_variant_is_embedded(connection: duckdb.DuckDBPyConnection, sql: str, token: str) -> None:
    assert tokens(connection, f"SELECT {sql} AS v") == [token]


def test_a_variant_with_and_without_words(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT v::DOUBLE::VARIANT AS v FROM (VALUES ('nan'), (NULL), ('1.5')) t(v)"

    assert tokens(connection, sql) == ["null", "null", "1.5"]
    assert answer(connection, sql, "csv") == b"v\nnull\n\n1.5\n"


def test_keys_that_look_alike_stay_apart(connection: duckdb.DuckDBPyConnection) -> None:
    keys = "[union_value(a := 1), union_value(b := '1')::UNION(a INTEGER, b VARCHAR)]"

    assert tokens(connection, f"SELECT map({keys}, ['x', 'y']) AS v") == ['{"1":"x","1_1":"y"}']


def test_a_key_that_a_file_repeats_is_kept(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    repeated = pa.array([[("a", 1), ("a", 2)], [("a", 3)], None, []], pa.map_(pa.string(), pa.int32()))
    parquet.write_table(pa.table({"v": repeated}), tmp_path / "map.parquet")

    assert tokens(connection, f"SELECT v FROM '{tmp_path}/map.parquet'") == ['{"a":1,"a_1":2}', '{"a":3}', "null", "{}"]


def test_a_member_that_a_file_leaves_unnamed_has_a_name(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    parquet.write_table(pa.table({"v": [{"": 1, "x": 2}]}), tmp_path / "struct.parquet")

    assert tokens(connection, f"SELECT v FROM '{tmp_path}/struct.parquet'") == ['{"element1":1,"x":2}']


def test_a_value_too_deep_for_arrow_is_text(connection: duckdb.DuckDBPyConnection) -> None:
    depth = 100

    assert tokens(connection, f"SELECT {'[' * depth}1{']' * depth} AS v") == [f'"{"[" * depth}1{"]" * depth}"']


# The named check and its siblings.

S30 = {
    "NaN and infinities": ("SELECT unnest(['nan', 'inf', '-inf']::FLOAT[]) AS v", '[{"v":null},{"v":null},{"v":null}]'),
    "negative zero": ("SELECT -0.0::DOUBLE AS v", '[{"v":-0.0}]'),
    "2^63": ("SELECT 9223372036854775808 AS v", '[{"v":9223372036854775808}]'),
    "38 digits": (
        f"SELECT {'9' * 38}::DECIMAL(38,0) AS v, '.{'9' * 38}'::DECIMAL(38,38) AS w",
        f'[{{"v":{"9" * 38},"w":0.{"9" * 38}}}]',
    ),
    "BLOB": ("SELECT '\\x00\\xAB'::BLOB AS v", '[{"v":"00ab"}]'),
    "INTERVAL": ("SELECT INTERVAL '1 month 2 days' AS v", '[{"v":"1 month 2 days"}]'),
    "TIMESTAMPTZ": ("SELECT TIMESTAMPTZ '2024-01-31 12:00:00+02' AS v", '[{"v":"2024-01-31T10:00:00Z"}]'),
    "nested": ("SELECT [{'a': [1.5, NULL]}] AS v", '[{"v":[{"a":[1.5,null]}]}]'),
    "union": ("SELECT union_value(a := 1.50) AS v", '[{"v":1.50}]'),
    "map": ("SELECT MAP {1: DATE '2024-01-31'} AS v", '[{"v":{"1":"2024-01-31"}}]'),
    "duplicate names": ("SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS A", '[{"a":1,"a_2":2,"a_1":3,"A":4}]'),
    "__proto__": ("SELECT 1 AS __proto__, 2 AS __proto__", '[{"__proto__":1,"__proto___1":2}]'),
    "U+0000": ("SELECT 'a' || chr(0) || 'b' AS v", '[{"v":"a\\u0000b"}]'),
    "every control character": (
        "SELECT string_agg(chr(i::INTEGER), '' ORDER BY i) AS v FROM range(32) t(i)",
        json.dumps([{"v": "".join(map(chr, range(32)))}], separators=(",", ":")),
    ),
    "lone surrogate source": ("SELECT '\"\\ud83e\\udd86\"'::JSON->>'$' AS v", '[{"v":"🦆"}]'),
    "names with quotes and controls": ('SELECT 1 AS "a""b\n\\", 2 AS " "', r'[{"a\"b\n\\":1," ":2}]'),
    "UHUGEINT": (f"SELECT [{2**128 - 1}::UHUGEINT] AS v", f'[{{"v":[{2**128 - 1}]}}]'),
    "BIGNUM": (f"SELECT '{10**60}'::BIGNUM AS v", f'[{{"v":{10**60}}}]'),
    "before the common era": ("SELECT DATE '0044-03-15 (BC)' AS v", '[{"v":"-000043-03-15"}]'),
    "TIMETZ": ("SELECT TIMETZ '12:00:00+02:30' AS v", '[{"v":"12:00:00+02:30"}]'),
    "text that looks like JSON": ("SELECT 'null' AS v, '{\"a\":1}' AS w", '[{"v":"null","w":"{\\"a\\":1}"}]'),
}


@pytest.mark.parametrize(("sql", "expected"), [pytest.param(*case, id=f"S30 {name}") for name, case in S30.items()])
def test_s30_json_is_valid(connection: duckdb.DuckDBPyConnection, sql: str, expected: str) -> None:
    body = answer(connection, sql)

    assert body.decode() == expected
    strict_json(body)


def test_s30_a_lone_surrogate_never_gets_in(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.ConversionException, match="surrogate"):
        connection.execute("""SELECT '"\\ud800"'::JSON""")


def test_s30_every_type_at_once_with_its_extremes(connection: duckdb.DuckDBPyConnection) -> None:
    for encoding in CONTENT_TYPES:
        body = answer(connection, "SELECT * FROM test_all_types()", encoding)
        assert body
        if encoding in {"json", "vnd"}:
            strict_json(body)


# CSV


def csv_rows(body: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(body.decode(), newline=""), strict=True))


@pytest.mark.parametrize("name", SAMPLES)
def test_csv_has_the_texts_of_json(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    sql = f"SELECT 1 AS n, v FROM ({values_of(name)})"
    found = [json.loads(token, parse_int=str, parse_float=str) for token in tokens(connection, values_of(name))]

    rows = csv_rows(answer(connection, sql, "csv"))

    assert rows[0] == ["n", "v"]
    expected = [csv_text(*pair) for pair in zip(found, engine_texts(connection, name), strict=True)]
    assert rows[1:] == [["1", text] for text in expected]


def csv_text(value: str | bool | None, engine_text: str | None) -> str:
    """What CSV has where JSON has *value*: JSON has no words for NaN and infinities."""
    if value is None and engine_text is not None:
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(engine_text, engine_text)
    if isinstance(value, bool):
        return json.dumps(value)
    return value or ""


def test_csv_tells_a_null_from_an_empty_string(connection: duckdb.DuckDBPyConnection) -> None:
    body = answer(connection, "SELECT unnest(['', NULL, 'x', ' y ']) AS a, NULL AS b", "csv")

    assert body == b'a,b\n"",\n,\nx,\n y ,\n'


def test_csv_quotes_what_needs_it_and_nothing_else(connection: duckdb.DuckDBPyConnection) -> None:
    values = """'a,b', 'say "hi"', 'l1' || chr(10) || 'l2', chr(13), 'it''s; \\ $'"""
    sql = f'SELECT * FROM (SELECT {values}) t("x,y", "q""", n, r, p)'

    assert answer(connection, sql, "csv") == b'"x,y","q""",n,r,p\n"a,b","say ""hi""","l1\nl2","\r",it\'s; \\ $\n'


def test_csv_holds_nested_values_as_json(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT {'a': ['x,y', NULL]} AS s, [1] AS l, union_value(u := 'x,y') AS u, 'e,f'::ENUM('e,f') AS e"

    assert csv_rows(answer(connection, sql, "csv"))[1] == ['{"a":["x,y",null]}', "[1]", "x,y", "e,f"]


def test_csv_repeated_names_are_those_of_json(connection: duckdb.DuckDBPyConnection) -> None:
    assert answer(connection, "SELECT 1 AS a, 2 AS a", "csv") == b"a,a_1\n1,2\n"


# Arrow


@pytest.mark.parametrize("name", SAMPLES)
def test_arrow_is_what_the_engine_exports_or_its_text(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    table = pa.ipc.open_stream(answer(connection, values_of(name), "arrow")).read_all()

    column = table.column("v").combine_chunks()
    if TABLE[name] is Carrier.ARROW:
        exported = connection.sql(values_of(name)).to_arrow_table().column(0).combine_chunks()
        assert (column.type, str(column)) == (exported.type, str(exported))  # by text: NaN is no equal of NaN
    else:
        assert column.to_pylist() == engine_texts(connection, name)


def test_arrow_keeps_39_digits_of_a_hugeint(connection: duckdb.DuckDBPyConnection) -> None:
    body = answer(connection, f"SELECT {2**127 - 1}::HUGEINT AS v, -{2**127 - 1}::HUGEINT AS w", "arrow")

    sent = pa.ipc.open_stream(body).read_all()
    assert sent.to_pylist() == [{"v": Decimal(2**127 - 1), "w": Decimal(1 - 2**127)}]
    assert connection.sql("SELECT v::VARCHAR FROM sent").fetchall() == [(str(2**127 - 1),)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT i, 'n' || i AS s, [i] AS l, {'a': i} AS t, MAP {i: 'x'} AS m, NULL AS n FROM range(5000) r(i)",
        "SELECT ['b', 'a']::ENUM('a', 'b')[] AS e, i FROM range(5000) r(i)",
        "SELECT 1 AS a WHERE false",
        "SELECT 'x'::ENUM('x') AS a WHERE false",
    ],
    ids=["plain", "a dictionary in a list", "empty", "an empty dictionary"],
)
def test_the_stream_is_what_a_writer_of_arrow_writes(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    body = answer(connection, sql, "arrow")

    columns, reader = result(connection, sql)
    schema = answer_schema(columns, reader.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in reader:
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    assert body == sink.getvalue().to_pybytes()


def test_arrow_repeated_names_are_those_of_json(connection: duckdb.DuckDBPyConnection) -> None:
    table = pa.ipc.open_stream(answer(connection, "SELECT 1 AS a, 2 AS a", "arrow")).read_all()

    assert table.to_pylist() == [{"a": 1, "a_1": 2}]


# vnd


@pytest.mark.parametrize(
    ("kind", "data_type"),
    [
        ("BOOLEAN", "Boolean"),
        ("TINYINT", "Int8"),
        ("SMALLINT", "Int16"),
        ("INTEGER", "Int32"),
        ("BIGINT", "Int64"),
        ("HUGEINT", {"Decimal128": [38, 0]}),
        ("UTINYINT", "UInt8"),
        ("USMALLINT", "UInt16"),
        ("UINTEGER", "UInt32"),
        ("UBIGINT", "UInt64"),
        ("UHUGEINT", "Utf8"),
        ("BIGNUM", "Utf8"),
        ("FLOAT", "Float32"),
        ("DOUBLE", "Float64"),
        ("DECIMAL(18,3)", {"Decimal128": [18, 3]}),
        ("VARCHAR", "Utf8"),
        ("JSON", "Utf8"),
        ("UUID", "Utf8"),
        ("ENUM('x')", {"Dictionary": ["UInt8", "Utf8"]}),
        ("BLOB", "Binary"),
        ("BIT", "Utf8"),
        ("DATE", "Date32"),
        ("TIME", {"Time64": "Microsecond"}),
        ("TIME_NS", {"Time64": "Nanosecond"}),
        ("TIMETZ", "Utf8"),
        ("TIMESTAMP", {"Timestamp": ["Microsecond", None]}),
        ("TIMESTAMP_S", {"Timestamp": ["Second", None]}),
        ("TIMESTAMP_MS", {"Timestamp": ["Millisecond", None]}),
        ("TIMESTAMP_NS", {"Timestamp": ["Nanosecond", None]}),
        ("TIMESTAMPTZ", {"Timestamp": ["Microsecond", "UTC"]}),
        ("TIMESTAMPTZ_NS", {"Timestamp": ["Nanosecond", "UTC"]}),
        ("INTERVAL", "Utf8"),
        ("GEOMETRY", "Utf8"),
        ("VARIANT", "Utf8"),
        ('"NULL"', "Null"),
    ],
)
def test_vnd_names_the_type_and_has_the_rows_of_json(
    connection: duckdb.DuckDBPyConnection, kind: str, data_type: object
) -> None:
    sql = f"SELECT NULL::{kind} AS v FROM range(3)"

    body = strict_json(answer(connection, sql, "vnd"))

    field = {"name": "v", "data_type": data_type, "nullable": True, "dict_id": 0, "dict_is_ordered": False}
    assert body == {"schema": {"fields": [field], "metadata": {}}, "data": [{"v": None}] * 3, "row_count": 3}
    assert list(body) == ["schema", "data", "row_count"]


def test_vnd_names_nested_types(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT [1] AS l, [1]::INTEGER[1] AS f, {'a': 'x'} AS s, MAP {'k': 1} AS m, union_value(u := 1) AS u"

    fields = json.loads(answer(connection, sql, "vnd"))["schema"]["fields"]

    def field(name: str, data_type: object, *, nullable: bool = True) -> dict[str, object]:
        return {"name": name, "data_type": data_type, "nullable": nullable, "dict_id": 0, "dict_is_ordered": False}

    entries = field(
        "entries", {"Struct": [field("key", "Utf8", nullable=False), field("value", "Int32")]}, nullable=False
    )
    assert fields == [
        field("l", {"List": field("l", "Int32")}),
        field("f", {"FixedSizeList": [field("", "Int32"), 1]}),
        field("s", {"Struct": [field("a", "Utf8")]}),
        field("m", {"Map": [entries, False]}),
        field("u", {"Union": [[[0, field("u", "Int32")]], "Sparse"]}),
    ]


# All formats


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("json", b"[]"),
        ("csv", b"a,b,a_1\n"),
        (
            "vnd",
            b'{"schema":{"fields":[%s,%s,%s],"metadata":{}},"data":[],"row_count":0}'
            % tuple(
                b'{"name":"%s","data_type":"%s","nullable":true,"dict_id":0,"dict_is_ordered":false}' % field
                for field in ((b"a", b"Int32"), (b"b", b"Utf8"), (b"a_1", b"Utf8"))
            ),
        ),
    ],
)
def test_an_empty_result(connection: duckdb.DuckDBPyConnection, encoding: Encoding, expected: bytes) -> None:
    sql = "SELECT 1 AS a, INTERVAL 1 DAY AS b, 'x' AS a WHERE false"

    assert answer(connection, sql, encoding) == expected


def test_an_empty_result_in_arrow_has_its_schema(connection: duckdb.DuckDBPyConnection) -> None:
    body = answer(connection, "SELECT 1 AS a, 'x'::ENUM('x') AS a WHERE false", "arrow")

    schema = pa.schema([("a", pa.int32()), ("a_1", pa.dictionary(pa.uint8(), pa.string()))])
    assert pa.ipc.open_stream(body).read_all().equals(schema.empty_table())


@pytest.mark.parametrize("encoding", CONTENT_TYPES)
def test_every_format_has_a_content_type_and_an_encoder(encoding: Encoding) -> None:
    batch = pa.record_batch({"a": pa.array([], pa.int32())})

    assert from_arrow({"a": "INTEGER"}, batch, encoding=encoding)
    assert "/" in CONTENT_TYPES[encoding]


@pytest.mark.parametrize("encoding", CONTENT_TYPES)
@pytest.mark.parametrize("kind", ["UHUGEINT", "TIMETZ", "BIT", "BIGNUM", "INTERVAL", "VARIANT", "STRUCT(a UHUGEINT)"])
def test_a_value_that_arrow_has_damaged_is_refused(
    connection: duckdb.DuckDBPyConnection, kind: str, encoding: Encoding
) -> None:
    relation = connection.sql(f"SELECT NULL::{kind} AS v")  # as a statement comes that cannot be projected
    columns = (Column(name="v", type=str(relation.types[0])),)
    reader = relation.to_arrow_reader(10)

    with pytest.raises(SqlError, match=r'Column "v" has the type .*: cast it to VARCHAR'):
        next(encode(encoding, columns, reader.schema, reader))


@pytest.mark.parametrize(
    ("declared", "array"),
    [
        pytest.param("INTEGER", pa.array([None], pa.duration("s")), id="an Arrow type that the engine does not export"),
        pytest.param("INTEGER", pa.array([[1]]), id="another shape than declared"),
        pytest.param("INTEGER[]", pa.array([[[1]]]), id="another depth than declared"),
    ],
)
def test_what_does_not_fit_its_declaration_is_refused(declared: str, array: pa.Array) -> None:
    with pytest.raises(SqlError, match="cast it to VARCHAR"):
        from_arrow({"v": declared}, pa.record_batch({"v": array}))


@pytest.mark.parametrize(
    ("declared", "array", "token"),
    [
        pytest.param("VARCHAR", pa.array(["é"], pa.large_string()), '"é"', id="large string"),
        pytest.param("VARCHAR", pa.array(["é"], pa.string_view()), '"é"', id="string view"),
        pytest.param("BLOB", pa.array([b"\xff"], pa.large_binary()), '"ff"', id="large binary"),
        pytest.param("INTEGER[]", pa.array([[1, None]], pa.large_list(pa.int32())), "[1,null]", id="large list"),
    ],
)
def test_the_wide_forms_of_arrow_are_taken(declared: str, array: pa.Array, token: str) -> None:
    assert from_arrow({"v": declared}, pa.record_batch({"v": array})).decode() == f'[{{"v":{token}}}]'


def test_results_of_statements_that_are_not_projected(connection: duckdb.DuckDBPyConnection) -> None:
    for sql in ("DESCRIBE SELECT 1 AS a", "SUMMARIZE SELECT 1 AS a", "EXPLAIN SELECT 1"):
        relation = connection.sql(sql)
        columns = tuple(Column(name=n, type=str(t)) for n, t in zip(relation.columns, relation.types, strict=True))
        assert not any(arrow_projection(column.type) for column in columns)
        reader = relation.to_arrow_reader(100)
        assert strict_json(b"".join(encode("json", columns, reader.schema, reader)))


def test_batches_of_many_columns(connection: duckdb.DuckDBPyConnection) -> None:
    columns, reader = result(connection, f"SELECT {', '.join(f'{i} AS c{i}' for i in range(2000))} FROM range(3)")

    rows = strict_json(b"".join(encode("json", columns, reader.schema, reader)))

    assert rows == [{f"c{i}": i for i in range(2000)}] * 3
