import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryengine.errors import SqlError, SqlSyntaxError, StatementNotAllowedError
from queryengine.gate.node_kinds import EXPRESSIONS, NODES
from queryengine.gate.parse_tree import MAX_NAME_PARTS, Reading, decode
from tests.corpus import each
from tests.queryengine.execution.instances import gate
from tests.queryengine.statements import DECLARED


def tree(sql: str) -> Any:
    answer = json.loads(gate()._serialized(sql))
    assert not answer["error"], answer
    return answer["statements"][0]


def replaced(value: Any, kind: str, new: dict[str, Any]) -> Any:
    """Give the tree with *new* put into each node of *kind*."""
    if isinstance(value, list):
        return [replaced(item, kind, new) for item in value]
    if isinstance(value, dict):
        inner = {key: replaced(item, kind, new) for key, item in value.items()}
        return inner | new if kind in (value.get("class"), value.get("type")) else inner
    return value


SAMPLE = (
    "WITH RECURSIVE a AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM a WHERE x BETWEEN 1 AND 3), b AS (VALUES (1))"
    " SELECT *, sum(CASE WHEN x IS NULL THEN 1 END) OVER (ORDER BY x DESC), (SELECT max(x::INTEGER COLLATE nocase)),"
    " list_filter([1], lambda y: y > $p), x = 1 AND x = 2, #1 FROM a JOIN b ON true, range(3), (SHOW TABLES),"
    " (FROM flights PIVOT (count(*) FOR id IN (1))) ORDER BY x LIMIT 1"
)


KINDS = sorted({*EXPRESSIONS, *NODES} - {"ASCENDING", "DEFAULT", "DISTINCT_MODIFIER", "EMPTY"})


@each("kind", KINDS)
def test_a_part_that_nobody_has_judged_is_refused(kind: str) -> None:
    sample = tree(SAMPLE + " -- and what the sample leaves out")
    Reading(DECLARED).judge(sample)
    changed = replaced(sample, kind, {"a_new_part": [1]})
    if changed == sample:
        changed = replaced(tree("SELECT DISTINCT a.id + 1 FROM flights a UNION SELECT 1"), kind, {"a_new_part": [1]})

    with pytest.raises(StatementNotAllowedError, match=r"not allowed here .* with a new part"):
        Reading(DECLARED).judge(changed)


@each(
    ("kind", "new", "message"),
    [
        *(
            pytest.param("BASE_TABLE", {"alias": value}, "base table with alias", id="a name that has become a tree")
            for value in ({"class": "FUNCTION"}, [{"class": "FUNCTION"}], [["x"]])
        ),
        pytest.param("COLUMN_REF", {"class": "NEW_THING"}, "new thing", id="a class"),
        *(
            pytest.param(kind, {"type": "NEW_THING"}, "new thing", id=f"a type in place of {kind}")
            for kind in ("BASE_TABLE", "SELECT_NODE", "ORDER_DEFAULT")
        ),
        pytest.param("SELECT_NODE", {"having": {"something": 1}}, "having", id="an untyped part"),
    ],
)
def test_what_nobody_has_judged_is_refused(kind: str, new: dict[str, Any], message: str) -> None:
    changed = replaced(tree("SELECT id FROM flights ORDER BY id"), kind, new)

    with pytest.raises(StatementNotAllowedError, match=message):
        Reading(DECLARED).judge(changed)


@each(
    ("new", "passes"),
    [
        ({"show_type": "SHOW_SPECIAL", "qualified_name": {"path": ['"tables"']}}, True),
        ({"show_type": "SHOW_SPECIAL", "qualified_name": {"path": ['"variables"']}}, False),
        ({"show_type": "SHOW_NEW", "qualified_name": {"path": ["flights"]}}, False),
        ({"show_type": "DESCRIBE", "qualified_name": {"path": []}}, False),
        ({"show_type": "SHOW_FROM", "qualified_name": {"path": ["Main", ""]}}, True),
        ({"show_type": "SHOW_FROM", "qualified_name": {"path": ["", ""]}}, False),
        ({"show_type": "SHOW_FROM", "qualified_name": {"path": ["main", "x"]}}, False),
        ({"show_type": "SHOW_FROM", "qualified_name": {"path": ["main", ""]}, "query": {"type": "SELECT_NODE"}}, False),
    ],
)
def test_what_show_shows(new: dict[str, Any], passes: bool) -> None:
    shown = replaced(tree("SHOW TABLES"), "SHOW_REF", new)

    if passes:
        Reading(DECLARED).judge(shown)
    else:
        with pytest.raises(StatementNotAllowedError, match="SHOW accepts"):
            Reading(DECLARED).judge(shown)


def test_a_rewritten_text_may_read_the_hidden_catalog_and_nothing_else_of_it() -> None:
    Reading(DECLARED, catalog="s1").judge(tree("FROM _catalog.s1.tables, flights"))

    for sql in ("FROM _catalog.s1.other", "FROM _catalog.tables", "FROM information_schema.tables"):
        with pytest.raises(StatementNotAllowedError):
            Reading(DECLARED, catalog="s1").judge(tree(sql))


def test_beside_a_pivot_common_table_expressions_have_no_names_of_the_engine() -> None:
    reading = Reading(DECLARED, engine_tables=frozenset({"pg_class"}))
    reading.judge(tree("WITH x AS (SELECT 1) FROM x"))

    for name in ("PG_CLASS", '"data.csv"'):
        with pytest.raises(StatementNotAllowedError, match="cannot be the name"):
            reading.judge(tree(f"WITH {name} AS (SELECT 1) SELECT 2"))


def test_values_of_a_pivot_see_no_common_table_expression() -> None:
    with pytest.raises(SqlError, match="Table 'x' does not exist"):
        Reading(DECLARED).judge(tree("WITH x AS (SELECT 1) PIVOT flights ON id IN (0, abs((FROM x))) USING count(*)"))


def test_the_parts_of_a_name_are_bounded() -> None:
    Reading(DECLARED).judge(tree("SELECT id" + ".b" * (MAX_NAME_PARTS - 1) + " FROM flights"))

    with pytest.raises(SqlSyntaxError, match="A name cannot have more than 100 parts"):
        Reading(DECLARED).judge(tree("SELECT id" + ".b" * MAX_NAME_PARTS + " FROM flights"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), json_values) | st.lists(json_values))
def test_deep_json_is_read_as_any_other(value: Any) -> None:
    deep = '{"a":' * 1200 + json.dumps(value) + "}" * 1200
    found = decode(deep)
    for _ in range(1200):
        found = found["a"]

    assert found == json.loads(json.dumps(value))


@each(
    ("make", "limit"),
    [
        pytest.param(
            lambda count: "SELECT " + "list_transform([1], lambda x: " * count + "x" + ")" * count, 8, id="lambdas"
        ),
        pytest.param(lambda count: "FROM flights" + " JOIN flights USING (id)" * count, 100, id="joins"),
        pytest.param(lambda count: "FROM flights" + ", flights" * count, 100, id="joins by comma"),
        pytest.param(lambda count: "FROM flights" + ", LATERAL (SELECT 1)" * count, 100, id="laterals"),
        pytest.param(lambda count: "FROM flights" + " PIVOT (count(*) FOR id IN (1))" * count, 50, id="pivots"),
        pytest.param(lambda count: "SELECT 1" + " UNION ALL SELECT 1" * (count - 1), 5000, id="union branches"),
    ],
)
def test_what_the_planner_takes_long_for_is_bounded(make: Callable[[int], str], limit: int) -> None:
    Reading(DECLARED).judge(tree(make(limit)))

    with pytest.raises(SqlSyntaxError, match=f"More than {limit:,} "):
        Reading(DECLARED).judge(tree(make(limit + 1)))


def test_a_nearest_join_counts_as_five() -> None:
    nearest = "FROM flights" + " JOIN flights NEAREST 1 BY DISTANCE 1" * 10
    Reading(DECLARED).judge(tree(nearest + ", flights" * 50))

    with pytest.raises(SqlSyntaxError, match=r"More than 100 joins \(NEAREST counts as five\)"):
        Reading(DECLARED).judge(tree(nearest + ", flights" * 51))
