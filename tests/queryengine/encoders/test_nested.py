"""Types that hold nothing or next to nothing, in each other, in every format."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from tests.queryengine.encoders.answers import answer, connect, strict_json

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
NESTINGS = (
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

ROWS = 3


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with connect() as opened:
        yield opened


def nested(value: str, token: str, levels: int) -> Iterator[tuple[str, str]]:
    """Give *value* and its JSON in up to *levels* of nestings."""
    yield value, token
    if levels:
        for around, json_around in NESTINGS:
            inside = json_around % token if "%s" in json_around else json_around
            yield from nested(around % value, inside, levels - 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("value", ODD)
def test_odd_types_in_each_other(connection: duckdb.DuckDBPyConnection, value: str) -> None:
    columns = list(nested(value, ODD[value], 2))
    selected = [f"CASE WHEN i <> 1 THEN {sql} END AS c{position}" for position, (sql, _) in enumerate(columns)]
    sql = f"SELECT {', '.join(selected)} FROM range({ROWS}) t(i)"
    row = "{" + ",".join(f'"c{position}":{token}' for position, (_, token) in enumerate(columns)) + "}"
    empty = "{" + ",".join(f'"c{position}":null' for position in range(len(columns))) + "}"
    expected = f"[{row},{empty},{row}]"

    assert answer(connection, sql).decode() == expected

    header, *records = csv.reader(io.StringIO(answer(connection, sql, "csv").decode()), strict=True)
    texts = ["" if token == "null" else token for _, token in columns]
    assert header == [f"c{position}" for position in range(len(columns))]
    assert [[_json_of(field) for field in record] for record in records] == [
        [_json_of(text) for text in texts],
        [""] * len(columns),
        [_json_of(text) for text in texts],
    ]

    table = pa.ipc.open_stream(answer(connection, sql, "arrow")).read_all()
    table.validate(full=True)
    assert table.num_rows == ROWS

    assert json.loads(answer(connection, sql, "vnd"))["data"] == json.loads(expected)
    assert answer(connection, sql, "flight")


def _json_of(field: str) -> str:
    """Return the bare text of what may be a JSON string."""
    return str(json.loads(field)) if field.startswith('"') else field


@pytest.mark.parametrize(
    "key", ["row()", "struct_pack()", "[]", "MAP {}", "MAP {'k': MAP {}}", "{'a': union_value(u := 1)}"]
)
def test_odd_types_as_keys(connection: duckdb.DuckDBPyConnection, key: str) -> None:
    ((row,), (own,)) = (strict_json(answer(connection, f"SELECT {sql} AS v")) for sql in (f"MAP {{{key}: 1}}", key))

    assert [json.loads(text) for text in row["v"]] == [json.loads(json.dumps(own["v"], default=int))]


def test_a_struct_that_holds_a_union_in_slices_of_a_batch(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT {'u': union_value(a := i), 'm': MAP {i: MAP {}}, 't': repeat('x', 2000)} AS v FROM range(5000) t(i)"

    rows = json.loads(answer(connection, sql))

    assert [row["v"]["u"] for row in rows] == list(range(5000))
    assert [row["v"]["m"] for row in rows] == [{str(number): {}} for number in range(5000)]
