"""Every DuckDB type in JSON and CSV, against DuckDB's own text of the value."""

import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet

from queryengine.encoders import ENCODERS
from queryengine.values import TABLE
from tests.corpus import each
from tests.queryengine.encoders.answers import answer, strict_json
from tests.queryengine.encoders.value_samples import COMPOSITES, NESTINGS, SAMPLES, engine_texts, tokens, values_of


def test_every_type_of_the_table_has_samples() -> None:
    assert set(SAMPLES) | COMPOSITES == set(TABLE)


@each("name", SAMPLES)
def test_json_has_the_text_of_the_engine(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    oracle = SAMPLES[name][2]

    rows = strict_json(answer(connection, values_of(name)))

    expected = [None if value is None else oracle(value) for value in engine_texts(connection, name)]
    assert [row["v"] for row in rows] == [Decimal(repr(v)) if isinstance(v, float) else v for v in expected]


@each("nesting", NESTINGS)
@each("name", SAMPLES)
def test_a_nested_value_is_written_like_any_other(
    connection: duckdb.DuckDBPyConnection, name: str, nesting: str
) -> None:
    expression, around = NESTINGS[nesting]
    alone = tokens(connection, values_of(name))

    # No literals for constant folding: the values come from a table.
    inside = tokens(connection, f"SELECT {expression} AS v FROM ({values_of(name)})")

    assert inside == [around.replace("%s", token) for token in alone]


@each("name", sorted(set(SAMPLES) - {"NULL"}))
def test_a_value_is_a_key_by_its_plain_text(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    where = "v IS NOT NULL"
    fields = csv_rows(answer(connection, f"SELECT v FROM ({values_of(name)}) WHERE {where}", "csv"))[1:]

    rows = strict_json(answer(connection, f"SELECT MAP {{v: 1}} AS m FROM ({values_of(name)}) WHERE {where}"))

    assert [row["m"] for row in rows] == [{field[0]: 1} for field in fields]


@each(
    ("sql", "token"),
    [
        pytest.param("[]::INTEGER[]", "[]", id="empty list"),
        pytest.param("[]::BLOB[]", "[]", id="empty list of bytes"),
        pytest.param("[]::TIMESTAMP[]", "[]", id="empty list of timestamps"),
        pytest.param("NULL::INTEGER[]", "null", id="null list"),
        pytest.param("MAP {{'a': 1}: 2, {'a': NULL}: 3}", r'{"{\"a\":1}":2,"{\"a\":null}":3}', id="keys of a struct"),
        pytest.param("MAP {[1, 2]: 'x'}", '{"[1,2]":"x"}', id="keys of a list"),
        pytest.param("MAP {'nan'::DOUBLE: 1}", '{"NaN":1}', id="key NaN"),
        pytest.param("MAP {true: 1}", '{"true":1}', id="key of a boolean"),
        pytest.param("NULL::TUPLE(INTEGER, BIT)", "null", id="null tuple"),
        pytest.param("get_type([1])", '"INTEGER[]"', id="type"),
        pytest.param("{'a': {'b': {'c': [[[1]]]}}}", '{"a":{"b":{"c":[[[1]]]}}}', id="deep"),
        pytest.param("[" * 100 + "1" + "]" * 100, f'"{"[" * 100}1{"]" * 100}"', id="too deep for Arrow: text"),
        pytest.param(
            "map([union_value(a := 1), union_value(b := '1')::UNION(a INTEGER, b VARCHAR)], ['x', 'y'])",
            '{"1":"x","1_1":"y"}',
            id="keys that look alike",
        ),
        pytest.param("[1.5, 0, -0.01]::DECIMAL(18,3)[]", "[1.500,0.000,-0.010]", id="digits of a scale"),
        pytest.param(
            "[1.5, 0, -0.01]::DECIMAL(38,9)[]", "[1.500000000,0.000000000,-0.010000000]", id="digits of a large scale"
        ),
        pytest.param("1::VARIANT", "1", id="variant of a number"),
        pytest.param(f"{2**128 - 1}::UHUGEINT::VARIANT", f"{2**128 - 1}", id="variant of a large number"),
        pytest.param("1.50::DECIMAL(5,2)::VARIANT", "1.50", id="variant of a decimal"),
        pytest.param("'nan'::DOUBLE::VARIANT", "null", id="variant of a NaN"),
        pytest.param(
            "{'a': '-inf'::DOUBLE, 'b': 'NaN \"Infinity'}::VARIANT",
            '{"a":null,"b":"NaN \\"Infinity"}',
            id="variant of words",
        ),
        pytest.param("'[1,  {\"a\": 2.5}]'::JSON::VARIANT", '[1,{"a":2.5}]', id="variant from JSON"),
        pytest.param("[{'a': 1::VARIANT}, NULL]", '[{"a":1},null]', id="variant inside others"),
        pytest.param("NULL::VARIANT", "null", id="variant that is null"),
    ],
)
def test_nested_and_embedded_values(connection: duckdb.DuckDBPyConnection, sql: str, token: str) -> None:
    assert tokens(connection, f"SELECT {sql} AS v") == [token]


def test_a_variant_with_and_without_words(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT v::DOUBLE::VARIANT AS v FROM (VALUES ('nan'), (NULL), ('1.5')) t(v)"

    assert tokens(connection, sql) == ["null", "null", "1.5"]
    assert answer(connection, sql, "csv") == b"v\nnull\n\n1.5\n"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(
            pa.array([[("a", 1), ("a", 2)], [("a", 3)], None, []], pa.map_(pa.string(), pa.int32())),
            ['{"a":1,"a_1":2}', '{"a":3}', "null", "{}"],
            id="a key that is repeated",
        ),
        pytest.param([{"": 1, "x": 2}], ['{"element1":1,"x":2}'], id="a member without a name"),
    ],
)
def test_what_only_a_file_can_hold(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection, values: object, expected: list[str]
) -> None:
    parquet.write_table(pa.table({"v": values}), tmp_path / "values.parquet")

    assert tokens(connection, f"SELECT v FROM '{tmp_path}/values.parquet'") == expected


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


@each(("sql", "expected"), [pytest.param(*case, id=f"S30 {name}") for name, case in S30.items()])
def test_s30_json_is_valid(connection: duckdb.DuckDBPyConnection, sql: str, expected: str) -> None:
    body = answer(connection, sql)

    assert body.decode() == expected
    strict_json(body)


def test_s30_a_lone_surrogate_never_gets_in(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.ConversionException, match="surrogate"):
        connection.execute("""SELECT '"\\ud800"'::JSON""")


def test_s30_every_type_at_once_with_its_extremes(connection: duckdb.DuckDBPyConnection) -> None:
    for encoding in ENCODERS:
        body = answer(connection, "SELECT * FROM test_all_types()", encoding)
        assert body
        if encoding in {"json", "vnd"}:
            strict_json(body)


def test_ndjson_has_the_objects_of_json_on_a_line_each(connection: duckdb.DuckDBPyConnection) -> None:
    texts = r"""SELECT * FROM (VALUES ('{"a":' || chr(10) || '1}', chr(13)), (NULL, '')) t("line\nbreak", v)"""
    for sql in (
        "SELECT * FROM test_all_types()",
        texts,
        "SELECT range AS i FROM range(100000)",
        "SELECT 1 AS a LIMIT 0",
    ):
        lines = answer(connection, sql, "ndjson").decode().split("\n")

        assert lines.pop() == ""
        assert "[" + ",".join(lines) + "]" == answer(connection, sql, "json").decode()


# CSV


def csv_rows(body: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(body.decode(), newline=""), strict=True))


@each("name", SAMPLES)
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


def test_csv_quotes_what_needs_it_and_nothing_else(connection: duckdb.DuckDBPyConnection) -> None:
    values = """'a,b', 'say "hi"', 'l1' || chr(10) || 'l2', chr(13), 'it''s; \\ $'"""
    sql = f'SELECT * FROM (SELECT {values}) t("x,y", "q""", n, r, p)'

    assert answer(connection, sql, "csv") == b'"x,y","q""",n,r,p\n"a,b","say ""hi""","l1\nl2","\r",it\'s; \\ $\n'
    nested = "SELECT {'a': ['x,y', NULL]} AS s, [1] AS l, union_value(u := 'x,y') AS u, 'e,f'::ENUM('e,f') AS e"
    assert csv_rows(answer(connection, nested, "csv"))[1] == ['{"a":["x,y",null]}', "[1]", "x,y", "e,f"]
    empty = answer(connection, "SELECT unnest(['', NULL, 'x', ' y ']) AS a, NULL AS b", "csv")
    assert empty == b'a,b\n"",\n,\nx,\n y ,\n', "an empty string is not a null"


# Types that hold nothing or next to nothing, in each other, in every format.

#: Values of odd types, and their JSON.
ODD = {
    "row()": "[]",
    "struct_pack()": "{}",
    "[]": "[]",
    "MAP {}": "{}",
    "NULL": "null",
    "row(NULL)": "[null]",
    "[NULL]": "[null]",
    "NULL::INTEGER[2]": "null",
    "NULL::STRUCT(a INTEGER)": "null",
    "NULL::MAP(INTEGER, INTEGER)": "null",
    "NULL::UNION(a INTEGER, b VARCHAR)": "null",
    "union_value(a := NULL)": "null",
    "union_value(a := row())": "[]",
    "union_value(a := MAP {})": "{}",
    "'101'::BIT": '"101"',
    "'a'::ENUM('a', 'b')": '"a"',
    "NULL::VARIANT": "null",
}

#: How a value is nested, and the JSON around its own.
ODD_NESTINGS = (
    ("[%s]", "[%s]"),
    ("[%s, NULL]", "[%s,null]"),
    ("array_value(%s)", "[%s]"),
    ("list_filter([%s], lambda x: false)", "[]"),
    ("{'a': %s}", '{"a":%s}'),
    ("{'a': %s, 'b': 1}", '{"a":%s,"b":1}'),
    ("row(%s)", "[%s]"),
    ("MAP {'k': %s}", '{"k":%s}'),
    ("union_value(u := %s)", "%s"),
)


def nested(value: str, token: str, levels: int) -> Iterator[tuple[str, str]]:
    """Give *value* and its JSON in up to *levels* of nestings."""
    yield value, token
    if levels:
        for around, json_around in ODD_NESTINGS:
            inside = json_around % token if "%s" in json_around else json_around
            yield from nested(around % value, inside, levels - 1)


@pytest.mark.exhaustive
@each("value", ODD)
def test_odd_types_in_each_other(connection: duckdb.DuckDBPyConnection, value: str) -> None:
    columns = list(nested(value, ODD[value], 2))
    selected = [f"CASE WHEN i <> 1 THEN {sql} END AS c{position}" for position, (sql, _) in enumerate(columns)]
    sql = f"SELECT {', '.join(selected)} FROM range(3) t(i)"
    row = "{" + ",".join(f'"c{position}":{token}' for position, (_, token) in enumerate(columns)) + "}"
    empty = "{" + ",".join(f'"c{position}":null' for position in range(len(columns))) + "}"
    expected = f"[{row},{empty},{row}]"

    assert answer(connection, sql).decode() == expected

    header, *records = csv_rows(answer(connection, sql, "csv"))
    texts = ["" if token == "null" else token for _, token in columns]
    assert header == [f"c{position}" for position in range(len(columns))]
    assert [[_json_of(field) for field in record] for record in records] == [
        [_json_of(text) for text in texts],
        [""] * len(columns),
        [_json_of(text) for text in texts],
    ]

    table = pa.ipc.open_stream(answer(connection, sql, "arrow")).read_all()
    table.validate(full=True)
    assert table.num_rows == 3

    assert json.loads(answer(connection, sql, "vnd"))["data"] == json.loads(expected)
    assert answer(connection, sql, "flight")


def _json_of(field: str) -> str:
    """Return the bare text of what may be a JSON string."""
    return str(json.loads(field)) if field.startswith('"') else field


@each("key", ["row()", "struct_pack()", "[]", "MAP {}", "MAP {'k': MAP {}}", "{'a': union_value(u := 1)}"])
def test_odd_types_as_keys(connection: duckdb.DuckDBPyConnection, key: str) -> None:
    ((row,), (own,)) = (strict_json(answer(connection, f"SELECT {sql} AS v")) for sql in (f"MAP {{{key}: 1}}", key))

    assert [json.loads(text) for text in row["v"]] == [json.loads(json.dumps(own["v"], default=int))]


def test_a_struct_that_holds_a_union_in_slices_of_a_batch(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT {'u': union_value(a := i), 'm': MAP {i: MAP {}}, 't': repeat('x', 2000)} AS v FROM range(5000) t(i)"

    rows = json.loads(answer(connection, sql))

    assert [row["v"]["u"] for row in rows] == list(range(5000))
    assert [row["v"]["m"] for row in rows] == [{str(number): {}} for number in range(5000)]


def test_a_union_of_several_members_in_slices_of_a_batch(connection: duckdb.DuckDBPyConnection) -> None:
    kind = "UNION(a BIGINT, b VARCHAR)"
    value = f"CASE WHEN i % 3 = 0 THEN i::{kind} ELSE ('x' || i)::{kind} END"
    sql = f"SELECT {value} AS u, [{value}] AS l, repeat('x', 3000) AS t FROM range(5000) t(i)"

    rows = json.loads(answer(connection, sql))

    expected = [number if number % 3 == 0 else f"x{number}" for number in range(5000)]
    assert [row["u"] for row in rows] == expected
    assert [row["l"] for row in rows] == [[value] for value in expected]


@pytest.mark.parametrize(("members", "expected"), [(128, 1), (129, "1"), (255, "1")])
def test_a_union_of_many_members(connection: duckdb.DuckDBPyConnection, members: int, expected: object) -> None:
    kind = f"UNION({', '.join(f'm{number} BIGINT' for number in range(members))})"
    sql = f"SELECT union_value(m0 := 1)::{kind} AS v"

    assert json.loads(answer(connection, sql)) == [{"v": expected}]
    assert answer(connection, sql, "csv") == b"v\n1\n"
    with pa.ipc.open_stream(answer(connection, sql, "arrow")) as reader:
        assert reader.read_all().to_pylist() == [{"v": expected}]
