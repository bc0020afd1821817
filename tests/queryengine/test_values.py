import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryengine.values import (
    MAX_MEMBERS,
    MAX_NESTING,
    TABLE,
    Carrier,
    exact_type,
    parse_type,
    select_list,
    unique_names,
)
from tests.corpus import each

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "values.md"


def test_the_table_has_every_type_of_the_engine_and_no_other(connection: duckdb.DuckDBPyConnection) -> None:
    rows = connection.execute(
        "SELECT DISTINCT CASE WHEN type_name = 'JSON' THEN 'JSON' ELSE logical_type END FROM duckdb_types()"
    ).fetchall()

    assert {name for (name,) in rows} == set(TABLE)


@each("kind", ["INTEGER", "DECIMAL(18,3)", "TIMESTAMP WITH TIME ZONE", '"NULL"', "STRUCT", "JSON"])
def test_a_type_that_arrow_holds_exactly_is_selected_as_it_is(kind: str) -> None:
    for written in (kind, f"{kind}[]", f"STRUCT(a {kind}, b ENUM('x'))"):
        assert exact_type(parse_type(written)) is None


@each(
    ("kind", "target"),
    [
        ("UHUGEINT", "VARCHAR"),
        ("TIME WITH TIME ZONE[]", "VARCHAR[]"),
        ("INTERVAL[3][]", "VARCHAR[3][]"),
        ("VARIANT", "JSON"),
        ("GEOMETRY('OGC:CRS84')", "VARCHAR"),
        ("STRUCT(a BIT, b DECIMAL(18,3))", 'STRUCT("a" VARCHAR, "b" DECIMAL(18,3))'),
        ('STRUCT("a""b, c)" BIT, "é" STRUCT)', 'STRUCT("a""b, c)" VARCHAR, "é" STRUCT)'),
        ("MAP(VARCHAR, STRUCT(v VARIANT)[])", 'MAP(VARCHAR, STRUCT("v" JSON)[])'),
        ("TUPLE(BIGNUM, TIMESTAMP WITH TIME ZONE)", "TUPLE(VARCHAR, TIMESTAMP WITH TIME ZONE)"),
        ('UNION(a TYPE, b "NULL")', 'UNION("a" VARCHAR, "b" "NULL")'),
        ("TUPLE(ENUM('it''s, (odd)', 'b'), BIT)", "TUPLE(VARCHAR, VARCHAR)"),
        ('STRUCT("" BIGINT, b BIT)', "VARCHAR"),
        ("A TYPE OF TOMORROW", "VARCHAR"),
        ("TOMORROW(3)[]", "VARCHAR[]"),
        ("INTEGER" + "[]" * (MAX_NESTING + 1), "VARCHAR"),
        (f"STRUCT({', '.join(['a INTEGER'] * MAX_MEMBERS)})", "VARCHAR"),
        ("STRUCT(a " * 40 + "INTEGER" + ")" * 40, "VARCHAR"),
        ("STRUCT(a INTEGER", "VARCHAR"),
        ("STRUCT(a)", "VARCHAR"),
        ("INTEGER[3", "VARCHAR"),
        ("INTEGER)", "VARCHAR"),
        ("", "VARCHAR"),
    ],
)
def test_a_type_that_arrow_would_damage_is_cast(kind: str, target: str) -> None:
    assert exact_type(parse_type(kind)) == target


def test_columns_are_selected_by_position_and_cast_where_needed(connection: duckdb.DuckDBPyConnection) -> None:
    relation = connection.sql("""SELECT 1 AS a, {'{}': '01'::BIT} AS "a""b", 2 AS a""")
    selected = select_list(zip(relation.columns, map(str, relation.types), strict=True))

    assert selected == """#1 AS "a", CAST(#2 AS STRUCT("{}" VARCHAR)) AS "a""b", #3 AS "a\""""
    assert relation.project(selected).fetchall() == [(1, {"{}": "01"}, 2)]


def test_the_deepest_value_that_leaves_as_arrow_is_read_by_arrow(connection: duckdb.DuckDBPyConnection) -> None:
    value = "1"
    for _ in range(MAX_NESTING):
        value = f"MAP {{'k': {value}}}"
    relation = connection.sql(f"SELECT {value} AS v")
    assert exact_type(parse_type(str(relation.types[0]))) is None

    table = relation.to_arrow_table()

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert pa.ipc.open_stream(sink.getvalue()).read_all() == table


def test_a_long_type_takes_no_time() -> None:
    doubled = "BIT"
    while len(doubled) < 3_000_000:
        doubled = f"STRUCT(a {doubled}, b {doubled})"
    values = ", ".join(f"'it''s {number}'" for number in range(100_000))

    started = time.process_time()
    found = [exact_type(parse_type(text)) for text in (doubled, f"ENUM({values})[]", f"ENUM({values})[")]

    assert found == ["VARCHAR", None, "VARCHAR"]
    assert time.process_time() - started < 30


def test_a_tree_names_its_members() -> None:
    tree = parse_type('UNION(a INTEGER[], "b c" TUPLE(BIT, MAP(VARCHAR, UHUGEINT)))')

    assert (tree.name, tree.fields) == ("UNION", ("a", "b c"))
    assert [child.name for child in tree.children] == ["LIST", "TUPLE"]
    assert tree.children[0].children[0].carrier is Carrier.ARROW
    assert tree.children[1].children[1].children[1].carrier is Carrier.NUMBER
    assert tree.children[1].sql == "TUPLE(BIT, MAP(VARCHAR, UHUGEINT))"


@each(
    ("names", "unique"),
    [
        pytest.param(["a", "b"], ("a", "b"), id="nothing repeats"),
        pytest.param(["a", "a", "a"], ("a", "a_1", "a_2"), id="in the order of columns"),
        pytest.param(["a", "a", "a_1"], ("a", "a_2", "a_1"), id="a name as written is not taken away"),
        pytest.param(["a_1", "a", "a", "a_1"], ("a_1", "a", "a_2", "a_1_1"), id="nor given twice"),
        pytest.param(["a", "A"], ("a", "A"), id="compared exactly"),
        pytest.param(["", ""], ("", "_1"), id="empty"),
        pytest.param(["a"] * 100_000, ("a", *(f"a_{number}" for number in range(1, 100_000))), id="very many"),
        pytest.param(["__proto__", "__proto__"], ("__proto__", "__proto___1"), id="__proto__"),
    ],
)
def test_names_become_unique(names: list[str], unique: tuple[str, ...]) -> None:
    assert unique_names(names) == unique


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "a_1", "a_2", "a_1_1", "b", ""])))
def test_unique_names_are_unique_and_keep_what_was_first(names: list[str]) -> None:
    unique = unique_names(names)

    assert len(set(unique)) == len(unique) == len(names)
    assert all(new.startswith(old) for new, old in zip(unique, names, strict=True))
    assert all(unique[names.index(name)] == name for name in names)


def test_the_documents_say_how_each_type_looks() -> None:
    shown = [line.split("|")[1] for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]

    assert not [name for name in TABLE if not any(f"`{name}`" in cell for cell in shown)]
