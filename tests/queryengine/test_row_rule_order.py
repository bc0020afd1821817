"""The order of the rows that a key with rules sees, and names of columns in its rules."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from queryengine.manifest import write_manifest
from runtimeconf.model import DatasetRule, Scope
from tests.queryengine.conftest import KINDS, config_of
from tests.queryengine.publishing import Publisher
from tests.queryengine.test_row_rules import answer, start


def within(dataset: str, **rule: object) -> Scope:
    return Scope(relations=frozenset({dataset}), rules=(DatasetRule(dataset=dataset, **rule),))  # type: ignore[arg-type]


#: Pairs of values that compare as equal, but are not shown alike.
EQUAL = {
    "zeros": ("DOUBLE '-0.0'", "DOUBLE '0.0'"),
    "lists of zeros": ("[DOUBLE '-0.0']", "[DOUBLE '0.0']"),
    "intervals": ("INTERVAL '1 month'", "INTERVAL '30 days'"),
    "a collation": ("'a' COLLATE nocase", "'A' COLLATE nocase"),
    "numbers in a VARIANT": ("[1::TINYINT]::VARIANT", "[1::BIGINT]::VARIANT"),
}


@pytest.mark.parametrize("values", EQUAL)
def test_hidden_values_do_not_decide_the_order_of_values_that_compare_as_equal(tmp_path: Path, values: str) -> None:
    one, other = EQUAL[values]
    shown = set()
    for number, (even, odd) in enumerate(((one, other), (other, one))):
        sql = f"SELECT CASE WHEN i % 2 = 0 THEN {even} ELSE {odd} END AS v, i AS hidden FROM range(6) t(i)"
        with ExitStack() as running:
            engine = start(running, tmp_path / str(number), {"t": sql}, {"seen": "SELECT v FROM t"})
            query = "SELECT v::VARCHAR AS v, hash(v) AS h FROM seen"
            shown.add(answer(engine, query, Scope(relations=frozenset({"seen"}))))
    (rows,) = shown
    assert rows.count(b'"v"') == 6


def test_no_name_of_a_column_stands_for_the_position_of_a_row(tmp_path: Path) -> None:
    position = "position of the row"
    sql = f"SELECT 9 - i AS \"{position}\", i % 2 AS a, {{'rowid': -i}} AS p FROM range(6) t(i)"
    view = f'SELECT a, "{position}" FROM p ORDER BY 2'
    with ExitStack() as running:
        engine = start(running, tmp_path, {"p": sql}, {"sorted": view})
        query = f'SELECT string_agg("{position}") AS s, count(COLUMNS(*)) FROM {{}}'
        for dataset, scope, expected in (
            ("p", within("p", row_filter="a = 1"), b'[{"s":"8,6,4","position of the row":3,"a":3,"p":3}]'),
            ("p", within("p", masks=(("a", "5"),)), b'[{"s":"9,8,7,6,5,4","position of the row":6,"a":6,"p":6}]'),
            ("sorted", within("sorted", row_filter="a = 1"), b'[{"s":"4,6,8","a":3,"position of the row":3}]'),
        ):
            assert answer(engine, query.format(dataset), scope) == expected


@pytest.mark.parametrize("has_setting", [True, False], ids=["upserts", "former upserts"])
@pytest.mark.parametrize("rule", [{"columns": ("id",)}, {"row_filter": "id > 0"}, {"masks": (("hidden", "0"),)}])
def test_an_upsert_of_hidden_values_does_not_move_a_row(
    tmp_path: Path, rule: dict[str, Any], *, has_setting: bool
) -> None:
    publisher = Publisher(tmp_path / "state")
    published = publisher.publish(t="SELECT unnest([1, 3, 2]) AS id, 0 AS hidden")  # 2 was loaded again
    moved = tuple(replace(one, is_reordered=not has_setting) for one in published.snapshots)
    write_manifest(publisher.state_dir, replace(published, snapshots=moved))
    config = config_of(publisher.state_dir, ("t",))
    (dataset,) = config.datasets
    acceleration = replace(dataset.acceleration, on_conflict="upsert" if has_setting else "drop")
    with KINDS["in process"](replace(config, datasets=(replace(dataset, acceleration=acceleration),))) as engine:
        assert answer(engine, "SELECT id FROM t", within("t", **rule)) == b'[{"id":1},{"id":2},{"id":3}]'


def test_a_rule_may_name_columns_and_types_that_are_called_like_a_function(tmp_path: Path) -> None:
    sql = "SELECT UUID '00000000-0000-0000-0000-000000000001' AS uuid, 1 AS random, 2 AS rand"
    with ExitStack() as running:
        engine = start(running, tmp_path, {"t": sql}, {})
        rule = {"row_filter": "uuid = UUID '00000000-0000-0000-0000-000000000001' AND t.random = 1"}
        assert answer(engine, "SELECT rand FROM t", within("t", masks=(("rand", "rand + random"),), **rule)) == (
            b'[{"rand":3}]'
        )
        one = "rand < (SELECT reservoir_quantile(rand, 0.5) FROM t)"
        for call in ("random() < 2", "random /**/ () < 2", '"random"() < 2', "uuid() <> uuid", "t.rand < rand()", one):
            assert b"DatasetNotLoadedError" in answer(engine, "SELECT rand FROM t", within("t", row_filter=call))


@pytest.mark.parametrize(
    "rule",
    [
        {"row_filter": "v.id IN (SELECT g.id FROM g)"},
        {"row_filter": "EXISTS (FROM g WHERE g.id = v.id)", "masks": (("hidden", "0"),)},
    ],
)
def test_a_subquery_in_a_rule_keeps_the_order_of_a_view(tmp_path: Path, rule: dict[str, Any]) -> None:
    tables = {
        "o": "SELECT i AS id, i * 7919 % 100003 AS place, i AS hidden FROM range(50000) t(i)",
        "g": "SELECT i * 2 AS id FROM range(400000) t(i)",
    }
    with ExitStack() as running:
        engine = start(running, tmp_path, tables, {"v": "FROM o ORDER BY place DESC"})
        query = "SELECT list(place) = list_reverse_sort(list(place)) AS sorted, count(*) AS n FROM v"
        assert answer(engine, query, within("v", **rule)) == b'[{"sorted":true,"n":25000}]'


def test_a_view_in_brackets_keeps_its_order(tmp_path: Path) -> None:
    views = {
        "one": "((SELECT i FROM t ORDER BY i DESC))",
        "two": "(SELECT i FROM t ORDER BY i DESC) UNION ALL (SELECT i FROM t ORDER BY i DESC)",
        "three": "SELECT i FROM (SELECT i FROM t ORDER BY i DESC)",
    }
    with ExitStack() as running:
        engine = start(running, tmp_path, {"t": "SELECT i FROM range(3) t(i)"}, views)
        found = {
            name: answer(engine, f"SELECT string_agg(i) AS i FROM {name}", Scope(relations=frozenset({name})))
            for name in views
        }
    assert found == {"one": b'[{"i":"2,1,0"}]', "two": b'[{"i":"0,0,1,1,2,2"}]', "three": b'[{"i":"0,1,2"}]'}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT runtime.t AS a FROM (SELECT {'t': 5} AS runtime, 6 AS t) x", b'[{"a":5}]'),
        ("SELECT runtime.t AS a FROM runtime.t AS runtime JOIN (SELECT 7 AS t) y ON true", b'[{"a":1}]'),
        ("SELECT runtime.t.t AS a FROM runtime.main.t", b'[{"a":1}]'),
    ],
)
def test_the_name_of_the_database_may_mean_something_else(tmp_path: Path, sql: str, expected: bytes) -> None:
    with ExitStack() as running:
        engine = start(running, tmp_path, {"t": "SELECT 1 AS t"}, {})
        assert answer(engine, sql, None) == answer(engine, sql, within("t", row_filter="t.t = 1")) == expected


#: The engine calls this a syntax error, and TRY does not catch it.
_FAILING = "name LIKE 'x' ESCAPE sign"


@pytest.mark.parametrize("rule", [{"row_filter": _FAILING}, {"masks": (("a", _FAILING),)}])
def test_no_kind_of_error_in_a_rule_is_shown_as_one_of_the_statement(tmp_path: Path, rule: dict[str, Any]) -> None:
    sql = "SELECT i AS a, 'x' AS name, CASE WHEN i = 2 THEN 'long' ELSE '!' END AS sign FROM range(3) t(i)"
    with ExitStack() as running:
        engine = start(running, tmp_path, {"t": sql}, {"v": f"SELECT a FROM t WHERE {_FAILING}"})
        found = answer(engine, "FROM t", within("t", **rule)), answer(engine, "FROM v", Scope(relations=frozenset("v")))
    for one in found:
        assert one.startswith(b"DatasetNotLoadedError")
