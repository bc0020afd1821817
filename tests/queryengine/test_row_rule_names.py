"""Names in the rule of a key do not come to mean something else when the columns of the data change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace

from queryengine.errors import SqlSyntaxError
from queryengine.execution.rule_gate import gate_rule
from queryengine.gate.gate import Gate
from queryengine.manifest import Column, write_manifest
from runtimeconf.model import DatasetRule, MaterializedView, Scope
from tests.queryengine.conftest import KINDS, config_of
from tests.queryengine.publishing import Publisher
from tests.queryengine.test_row_rules import UNAVAILABLE, answer

TABLES = {
    "orders": "SELECT i AS id, if(i % 3 = 0, 'acme', 'X') AS tenant, nullif(i % 3, 1) AS orders,"
    " {'tenant': tenant} AS grants, {'tenant': tenant, 'orders': {'c': id}} AS g FROM range(9) r(i)",
    "grants": "SELECT 1 AS level, 'acme' AS tenant, 2 AS kind",
    "active": "SELECT 1 AS level, 'acme' AS tenant",
}
#: Filters with names that could come to mean something else, which are refused.
REFUSED = (
    "tenant NOT IN (SELECT q.a FROM (SELECT unnest(main.grants) FROM grants) AS q(a, b, c))",
    "EXISTS (FROM MAIN.Grants WHERE to_json(main.GRANTS)::VARCHAR LIKE '%' || orders.tenant || '%')",
    "EXISTS (FROM grants WHERE main.grants.to_json()::VARCHAR LIKE '%' || orders.tenant || '%')",
    "EXISTS (FROM grants AS g WHERE g.level = id)",
    "EXISTS (FROM grants AS g WHERE g.level IN (SELECT b.level FROM active AS b WHERE kind = b.level))",
    "tenant IN (SELECT g.tenant FROM grants AS g NATURAL JOIN active)",
    "tenant IN (SELECT g.tenant FROM grants AS g JOIN active AS b ON g.level = 1 AND kind < 3)",
    "#2 = 'acme'",
    "user <> 'acme'",
    "tenant IN (WITH tenant AS (FROM active) SELECT tenant.tenant FROM tenant)",
    'EXISTS (FROM grants AS "current_date" WHERE to_json("current_date")::VARCHAR <> orders.tenant)',
    "EXISTS (FROM (UNPIVOT (SELECT level, kind FROM grants) ON level, kind INTO NAME n VALUE v) AS p WHERE id = 0)",
    "struct_pack(tenant)::VARCHAR = '{''tenant'': acme}'",
    "tenant.alias() = 'tenant'",
    "EXISTS (FROM (FROM grants ORDER BY 1 LIMIT 1) AS q WHERE q.tenant = orders.tenant)",
    "EXISTS (FROM (SELECT * EXCLUDE (level) FROM grants GROUP BY 1, 2 HAVING sum(level) > 0) AS q WHERE id = 0)",
    "EXISTS (FROM (SELECT * EXCLUDE (q) FROM grants) AS q WHERE q.to_json()::VARCHAR LIKE '%' || orders.tenant || '%')",
    "EXISTS (WITH w AS (FROM grants) FROM w AS q WHERE len(list_filter([q], lambda x: x.tenant = orders.tenant)) > 0)",
    "EXISTS (FROM active AS a WHERE g.tenant = orders.tenant) OR tenant IN (SELECT g.tenant FROM grants AS g)",
    "EXISTS (FROM grants AS h WHERE grants.tenant = orders.tenant)",
    "tenant IN (SELECT grants.tenant FROM active, (FROM grants) AS h)",
    "EXISTS (FROM active AS a SEMI JOIN grants ON grants.level = a.level WHERE grants.tenant = orders.tenant)",
    "EXISTS (FROM (FROM grants) AS h WHERE grants.tenant = orders.tenant)",
    "user.lower() <> 'acme'",
    "tenant IN (SELECT g.b FROM grants AS g(a, b, c))",
    "tenant IN (SELECT g.b FROM (FROM grants) AS g(a, b, c))",
    "tenant IN (WITH g(a, b, c) AS (FROM grants) SELECT g.b FROM g)",
    "list_contains(list_transform([g], lambda orders: orders.tenant), 'acme')",
    "tenant IN (SELECT list_filter(['acme'], lambda a: a.len() > 0)[1] FROM active AS a)",
    "tenant IN (SELECT a.tenant FROM active AS a JOIN grants AS g ON kind = 2)",
    "tenant IN (SELECT kind::VARCHAR FROM grants, active)",
    "tenant IN (SELECT q.tenant FROM (SELECT * FROM grants AS g JOIN active AS t ON g.level <= t.level) AS q)",
    "tenant IN (SELECT q.tenant FROM (grants AS g JOIN active AS t ON g.level <= t.level) AS q)",
    "tenant IN (SELECT q.tenant FROM (SELECT g.*, g.level AS tenant FROM grants AS g) AS q)",
    "tenant IN (WITH q AS (FROM grants AS g, active AS t) SELECT q.tenant FROM q)",
    "NOT EXISTS (FROM (FROM grants UNION ALL BY NAME FROM active) AS q WHERE q.tenant = orders.tenant)",
    "tenant IN (SELECT a.tenant FROM active AS a JOIN grants AS g ON g.level = 1 JOIN active AS b USING (tenant))",
    "tenant IN (SELECT a.tenant FROM active AS a JOIN (active AS b JOIN grants AS g ON g.level = 1) USING (tenant))",
    "tenant IN (SELECT q.tenant FROM (SELECT * RENAME (kind AS tenant) FROM grants) AS q)",
    "tenant NOT IN (FROM active)",
    "(1, tenant) IN (SELECT a.* FROM active AS a)",
    "tenant = ANY(SELECT * EXCLUDE (level) FROM active)",
    "tenant IN (TABLE active)",
    "tenant IN (SELECT COLUMNS('tenant') FROM active)",
    "tenant IN (SELECT max(COLUMNS(*)) FROM active)",
    "concat(*COLUMNS(c -> c LIKE 'ten%')) = 'acme'",
    "tenant IN (SELECT tenant FROM grants UNION ALL FROM active)",
    "tenant IN (WITH b AS (FROM active) FROM b)",
    "tenant IN (SELECT q.tenant FROM (SELECT tenant FROM grants UNION FROM active) AS q)",
    "EXISTS (SELECT DISTINCT * FROM active OFFSET 1)",
    "EXISTS (SELECT *, count(*) FROM active GROUP BY ALL HAVING count(*) > 1)",
    "tenant IN (SELECT tenant FROM active ORDER BY ALL LIMIT 1)",
    'tenant IN (SELECT p.tenant FROM grants PIVOT (sum(level) AS n FOR kind IN (2)) AS p WHERE p."2" < 2)',
)
#: Filters that mean the same after a column has disappeared, or do not fit the data then.
SAME = (
    "tenant IN (WITH orders AS (FROM grants) SELECT orders.tenant FROM orders)",
    'tenant IN (WITH g AS (FROM grants) SELECT x.tenant FROM g AS "Orders", active AS x)',
    "EXISTS (FROM active AS a WHERE a.level IN (SELECT a.level FROM grants AS a))",
    "EXISTS (FROM active AS a, (SELECT a.tenant FROM grants AS a) AS b WHERE b.tenant = orders.tenant)",
    "EXISTS (FROM active AS a JOIN grants AS g ON a.level = (SELECT g.level FROM active AS g))",
    "EXISTS (FROM grants WHERE EXISTS (WITH grants AS (FROM active) SELECT 1 FROM grants WHERE grants.level = 1))",
    "tenant IN (WITH g AS (FROM grants) SELECT g.tenant FROM g)",
    "tenant IN (SELECT g.tenant FROM (FROM grants) AS g)",
)
#: Filters that do not fit the data after one of their columns has disappeared.
FITTING = (
    "tenant IN (SELECT orders.tenant FROM grants AS orders)",
    "tenant IN (SELECT tenant FROM grants)",
    "tenant IN (SELECT tenant FROM grants EXCEPT SELECT Tenant FROM main.active)",
    "tenant IN (SELECT list_transform([1], lambda x: if(x = 1, tenant, ''))[1] FROM main.grants)",
    "EXISTS (FROM grants WHERE grants.level = 1 AND tenant = orders.tenant)",
    "tenant IN (WITH t AS (SELECT tenant FROM grants) SELECT t.tenant FROM t)",
    "tenant = ANY([tenant]) AND tenant IN (FROM orders o JOIN grants USING (tenant) SELECT o.tenant)",
    "tenant IN (SELECT tenant FROM grants SEMI JOIN active USING (level))",
    "tenant NOT IN (SELECT tenant || 'x' FROM grants ANTI JOIN active ON grants.level > active.level)",
    "tenant IN (SELECT tenant FROM (grants SEMI JOIN active USING (level)))",
    "tenant IN (SELECT grants.tenant FROM grants JOIN active AS a USING (level) JOIN active AS b USING (level))",
    "EXISTS (FROM grants WHERE orders.tenant = tenant.lower())",
    "list_contains((SELECT list_transform(list(kind), lambda x: tenant.lower()) FROM grants GROUP BY tenant), tenant)",
    "tenant IN (SELECT tenant.upper().lower() FROM grants)",
    "tenant IN (SELECT grants.tenant FROM grants)",
    "tenant IN (SELECT grants.tenant FROM grants JOIN active USING (level))",
    "EXISTS (FROM grants AS g WHERE g.tenant = orders.tenant)",
    "EXISTS (FROM active AS a WHERE EXISTS (FROM grants AS g WHERE g.tenant.lower() = orders.tenant))",
    "orders.to_json() IS NOT NULL",
    "orders IS NOT NULL",
    "id >= 0 AND (SELECT orders) IS NOT NULL",
)
#: Filters with names of tables that are harmless, and continue to fit.
FIT = (
    "tenant IN (WITH active AS (FROM active) SELECT active.tenant FROM active)",
    "tenant IN (SELECT main.lower(active.tenant.upper()) FROM (FROM active) AS active)",
    "tenant IN (SELECT list_filter([tenant], lambda x: x.len() > 0)[1] FROM active) AND tenant.lower() = 'acme'",
    "tenant IN (SELECT u.a FROM unnest(['acme']) AS u(a), (VALUES (1)) AS v(b), (SELECT 1) AS w(c))",
    "id >= (SELECT min(orders.id) FROM orders) AND id IN (SELECT id FROM orders WHERE id % 3 = 0)",
    "tenant IN (SELECT a.tenant FROM active AS a SEMI JOIN grants ON grants.level = a.level)",
    "id IN (SELECT range.range FROM range(9)) AND id % 3 = 0",
    "g.orders.c % 3 = 0 AND EXISTS (FROM active WHERE main.active.level = 1)",
    "id % 3 = 0 AND EXISTS (FROM active WHERE active.level IN (SELECT active.level FROM active))",
    "tenant IN (SELECT CAST(to_variant(a.tenant) AS VARCHAR) FROM active AS a)",
    f"id % 3 = 0 AND EXISTS (FROM active WHERE active.level = {' + '.join(['level - level'] * 300)} + 1)",
)


#: Values with fields, which names of tables and columns could come to mean.
WITH_FIELDS = (
    "{'tenant': 'acme', 'orders': {'tenant': 'acme'}}",
    """'{"tenant": "acme"}'::JSON""",
    "union_value(tenant := 'acme')",
    "{'tenant': 'acme'}::VARIANT",
)


def scope_of(row_filter: str) -> Scope:
    """Return the scope of a key that sees `orders` with *row_filter*."""
    return Scope(relations=frozenset({"orders"}), rules=(DatasetRule(dataset="orders", row_filter=row_filter),))


@contextmanager
def filtered(directory: Path, row_filter: str) -> Iterator[tuple[Publisher, Callable[[], bytes]]]:
    """Publish the tables. Yield their publisher, and a function that counts what a key with *row_filter* sees."""
    publisher = Publisher(directory / "state")
    publisher.publish(**TABLES)
    with KINDS["in process"](config_of(publisher.state_dir, tuple(TABLES))) as engine:
        yield publisher, lambda: answer(engine, "SELECT count(*) AS n FROM orders", scope_of(row_filter))


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, bytes]]:
    """What keys with each filter see before and after columns of both tables have disappeared."""
    publisher = Publisher(tmp_path_factory.mktemp("names") / "state")
    publisher.publish(**TABLES)
    filters = REFUSED + SAME + FITTING + FIT
    with KINDS["in process"](config_of(publisher.state_dir, tuple(TABLES))) as engine:
        count = "SELECT count(*) AS n FROM orders"
        before = [answer(engine, count, scope_of(row_filter)) for row_filter in filters]
        publisher.publish(
            orders="SELECT * EXCLUDE (orders) FROM (" + TABLES["orders"] + ")",
            grants="SELECT 1 AS level, 'SECRET' AS renamed",
        )
        after = [answer(engine, count, scope_of(row_filter)) for row_filter in filters]
    return dict(zip(filters, zip(before, after, strict=True), strict=True))


@pytest.mark.parametrize("row_filter", REFUSED + SAME + FITTING + FIT)
def test_a_column_that_disappears_does_not_widen_a_filter(
    counts: dict[str, tuple[bytes, bytes]], row_filter: str
) -> None:
    before, after = counts[row_filter]
    if row_filter in REFUSED:
        assert before == UNAVAILABLE
    else:
        assert before.startswith(b'[{"n":')
    if row_filter in SAME:
        assert after in {before, UNAVAILABLE}
    else:
        assert after == (b'[{"n":3}]' if row_filter in FIT else UNAVAILABLE)


@pytest.mark.parametrize(
    ("row_filter", "name"),
    [
        ("EXISTS (FROM grants WHERE grants.tenant = orders.tenant)", "orders"),
        ("NOT EXISTS (FROM grants AS g WHERE g.tenant <> orders.tenant)", "orders"),
        (
            "EXISTS (FROM grants WHERE grants.tenant = orders.tenant AND grants.orders::VARCHAR <> '')",
            "orders",
        ),
        ("EXISTS (FROM active WHERE EXISTS (FROM grants WHERE main.active.tenant = orders.tenant))", "main"),
        ("EXISTS (FROM (FROM grants) AS s WHERE orders.tenant = 'acme')", "orders"),
        ("EXISTS (WITH g AS (FROM grants) SELECT 1 FROM g, active AS a WHERE a.tenant = orders.tenant)", "orders"),
        ("EXISTS (FROM active AS a WHERE EXISTS (FROM grants WHERE a.tenant = orders.tenant))", "a"),
        ('EXISTS (FROM active AS `a"b` WHERE EXISTS (FROM grants WHERE `a"b`.tenant = orders.tenant))', '"a""b"'),
        (
            "tenant = (SELECT max(g.tenant) FROM grants AS g SEMI JOIN active AS a ON a.tenant = orders.tenant)",
            "orders",
        ),
    ],
)
def test_a_column_that_appears_does_not_widen_a_filter(tmp_path: Path, row_filter: str, name: str) -> None:
    with filtered(tmp_path, row_filter) as (publisher, count):
        found = []
        for value in WITH_FIELDS:
            publisher.publish(grants=f"{TABLES['grants']}, {value} AS {name}")
            found.append(count())
        assert UNAVAILABLE in found
        assert {*found} <= {UNAVAILABLE, b'[{"n":3}]'}
        publisher.publish(grants=f"{TABLES['grants']}, 'SECRET' AS {name}")
        assert count() == b'[{"n":3}]'


@pytest.mark.parametrize(
    ("name", "row_filter"),
    [
        ("s", "EXISTS (FROM (SELECT s.* FROM grants) AS q WHERE q.tenant = orders.tenant)"),
        ("s", "tenant IN (WITH q AS (SELECT s.* FROM grants) SELECT q.tenant FROM q)"),
        ("orders", "EXISTS (FROM (SELECT orders.* FROM grants) AS q WHERE q.tenant = 'acme')"),
    ],
)
def test_a_star_of_a_column_that_disappears_is_not_that_of_another(tmp_path: Path, name: str, row_filter: str) -> None:
    with filtered(tmp_path, row_filter) as (publisher, count):
        publisher.publish(
            orders="SELECT i AS id, if(i = 0, 'acme', 'X') AS tenant, {'tenant': tenant} AS s FROM range(3) r(i)",
            grants=f"SELECT {{'tenant': 'acme'}} AS {name}",
        )
        before = count()
        publisher.publish(grants="SELECT {'tenant': 'acme'} AS other")
        assert UNAVAILABLE in {before, count()}
        assert before in {UNAVAILABLE, b'[{"n":1}]'}


def test_a_method_of_a_column_that_disappears_is_no_function_of_a_schema(tmp_path: Path) -> None:
    with filtered(tmp_path, "EXISTS (FROM grants WHERE pg_catalog.starts_with(orders.tenant))") as (publisher, count):
        publisher.publish(grants="SELECT 'acme' AS pg_catalog")
        assert count() == UNAVAILABLE
        publisher.publish(
            orders=f"SELECT *, tenant AS pg_catalog FROM ({TABLES['orders']})", grants="SELECT 1 AS other"
        )
        assert count() == UNAVAILABLE


@pytest.mark.parametrize(
    ("first", "now", "expected"),
    [
        ("'a', 'b'", "unnest(['a', 'bb'])::ENUM('a', 'b', 'bb')", b'[{"n":1}]'),
        ("'b', 'a'", "unnest(['a', 'bb'])::ENUM('a', 'b', 'bb')", UNAVAILABLE),
        ("'a', 'b'", "['a', 'bb']::ENUM('a', 'b', 'bb')[]", UNAVAILABLE),
    ],
)
def test_an_enum_may_gain_values(
    tmp_path: Path, first: str, now: str, expected: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with filtered(tmp_path, "len(tenant) = 1") as (publisher, count):
        found = publisher.publish(orders=f"SELECT {now} AS tenant")
        retyped = (Column(name="tenant", type=f"ENUM({first})"),)
        snapshots = tuple(replace(one, retyped=retyped) for one in found.snapshots)
        write_manifest(publisher.state_dir, replace(found, snapshots=snapshots))

        assert count() == expected
        assert "'b'" not in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize("is_materialized", [False, True])
@pytest.mark.parametrize("row_filter", ["(SELECT count(*) FROM v) > 0", "id IN (SELECT CAST(v.n AS INT) FROM v)"])
def test_all_columns_behind_a_view_count_whatever_the_rule_casts(
    tmp_path: Path, row_filter: str, *, is_materialized: bool
) -> None:
    publisher = Publisher(tmp_path / "state")
    sql = "SELECT 3 AS n FROM grants WHERE level > 0"
    config = config_of(publisher.state_dir, tuple(TABLES), {} if is_materialized else {"v": sql})
    if is_materialized:
        (view,) = config_of(publisher.state_dir, ("v",)).datasets
        view = replace(view, view=MaterializedView(sql=sql, reads=("grants",)))
        config = replace(config, datasets=(*config.datasets, view))
    of_view = {"v": "SELECT 3 AS n"} if is_materialized else {}
    published = publisher.publish(**TABLES, **of_view)
    retyped = (Column(name="level", type="VARCHAR"),)
    changed = (replace(one, retyped=retyped) if one.dataset == "grants" else one for one in published.snapshots)
    write_manifest(publisher.state_dir, replace(published, snapshots=tuple(changed)))
    with KINDS["in process"](config) as engine:
        assert answer(engine, "SELECT count(*) AS n FROM orders", scope_of(row_filter)) == UNAVAILABLE
        publisher.publish(grants=TABLES["grants"], **of_view)
        assert answer(engine, "SELECT count(*) AS n FROM orders", scope_of(row_filter)) != UNAVAILABLE


def test_a_geometry_that_appears_is_not_taken_for_a_dataset(tmp_path: Path) -> None:
    with filtered(tmp_path, "EXISTS (FROM grants WHERE orders.x = grants.kind)") as (publisher, count):
        publisher.publish(orders="SELECT i AS id, i::DOUBLE AS x FROM range(3) r(i)")
        assert count() == b'[{"n":1}]'
        publisher.publish(grants=f"{TABLES['grants']}, 'POINT(2 2)'::GEOMETRY AS orders")
        assert count() == UNAVAILABLE


@pytest.mark.parametrize(
    "row_filter",
    [
        "len(list_filter([tenant], lambda x: x.lower() = 'acme')) > 0",
        "len([X for X in [tenant] if x.lower() = 'acme']) > 0",
        "list_contains(list_transform([g], lambda x: x.tenant), 'acme')",
        "list_contains([x.tenant.lower() for x in [g]], 'acme')",
        "tenant IN (SELECT unnest(list_transform([{'tenant': tenant}], lambda x: x.tenant)) FROM active)",
        "list_contains(list_transform([g], lambda x: x['tenant']), 'acme')",
    ],
)
def test_a_column_that_appears_is_not_taken_for_the_parameter_of_a_lambda(tmp_path: Path, row_filter: str) -> None:
    with filtered(tmp_path, row_filter) as (publisher, count):
        assert count() == b'[{"n":3}]'
        for name, value in product(("orders", "active"), (*WITH_FIELDS, "'acme'")):
            publisher.publish(**{name: f"SELECT *, {value} AS x FROM ({TABLES[name]})"})
            assert count() in (b'[{"n":3}]', UNAVAILABLE)


@pytest.mark.parametrize("field", ["'ORDERS': {'tenant': 'q'}", "'current_date': DATE '1999-01-01'"])
@pytest.mark.parametrize(
    "row_filter",
    [
        "EXISTS (FROM (SELECT unnest(grants.s) FROM grants) AS q WHERE q.tenant = orders.tenant)",
        "EXISTS (FROM (SELECT s.* FROM grants) AS q WHERE q.tenant = orders.tenant)",
        "EXISTS (WITH q AS (SELECT unnest([s], max_depth := 2) FROM grants) FROM q WHERE q.tenant = orders.tenant)",
    ],
)
def test_a_field_that_appears_does_not_widen_a_filter(tmp_path: Path, row_filter: str, field: str) -> None:
    row_filter = row_filter.removesuffix(")") + " AND DATE '2000-01-01' < current_date)"
    with filtered(tmp_path, row_filter) as (publisher, count):
        publisher.publish(grants="SELECT {'tenant': 'acme', 'other': {'orders': 1}} AS s")
        assert count() == b'[{"n":3}]'
        publisher.publish(grants=f"SELECT {{'tenant': 'acme', {field}}} AS s")
        assert count() in {UNAVAILABLE, b'[{"n":3}]'}


@pytest.mark.parametrize(
    ("row_filter", "dataset"),
    [
        ("id >= 0 AND DATE '2000-01-01' < current_date", "orders"),
        ("EXISTS (FROM grants WHERE DATE '2000-01-01' < localtimestamp)", "grants"),
        ("EXISTS (FROM grants WHERE level = 1 AND DATE '2000-01-01' < current_timestamp)", "orders"),
    ],
)
def test_a_column_with_the_name_of_a_time_is_not_taken_for_it(tmp_path: Path, row_filter: str, dataset: str) -> None:
    name = row_filter.rstrip(")").rpartition(" ")[2]
    with filtered(tmp_path, row_filter) as (publisher, count):
        assert count() == b'[{"n":9}]'
        publisher.publish(**{dataset: f"SELECT DATE '1999-01-01' AS {name}, * FROM ({TABLES[dataset]})"})

        assert count() in {UNAVAILABLE, b'[{"n":9}]'}


@pytest.mark.parametrize(
    "sql",
    [
        "WITH orders AS (SELECT 1 AS id) SELECT count(*) AS n FROM runtime.orders",
        "WITH RECURSIVE orders AS (SELECT 1 AS id UNION FROM orders) SELECT count(*) AS n FROM RUNTIME.orders",
        "WITH orders AS (SELECT 1 AS id) SELECT count(runtime.orders.id) AS n FROM runtime.orders",
        "WITH orders AS (SELECT 1 AS id) SELECT count(runtime.main.orders.id) AS n FROM runtime.main.orders",
        'SELECT count(runtime."orders".id) AS n FROM "runtime".orders, (SELECT 1) AS orders_2',
        "SELECT * EXCLUDE (tenant, id) FROM (SELECT id, tenant, count(*) OVER () AS n FROM runtime.orders) LIMIT 1",
        "SELECT max(orders) + 1 AS n FROM runtime.orders.orders",
    ],
)
def test_the_database_of_a_dataset_may_be_written(tmp_path: Path, sql: str) -> None:
    publisher = Publisher(tmp_path / "state")
    names = ("orders", "orders.orders")
    publisher.publish(orders="SELECT range AS id, 'a' AS tenant FROM range(3)")
    publisher.publish(**{"orders.orders": "SELECT 2 AS orders"})
    rules = tuple(DatasetRule(dataset=name, row_filter="true") for name in names)
    scope = Scope(relations=frozenset(names), rules=rules)
    with KINDS["in process"](config_of(publisher.state_dir, names)) as engine:
        for within in (scope, None):
            assert answer(engine, sql, within) == b'[{"n":3}]'
            assert answer(engine, "FROM runtime.orders(3)", within).startswith(b"SqlError: Function 'orders'")


def test_a_plan_does_not_tell_that_another_dataset_was_published(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "state")
    publisher.publish(orders="SELECT 1 AS id", payroll="SELECT 1 AS id")
    scope = Scope(relations=frozenset({"orders"}), rules=(DatasetRule(dataset="orders", row_filter="id = 1"),))
    with KINDS["in process"](config_of(publisher.state_dir, ("orders", "payroll"))) as engine:
        before = answer(engine, "EXPLAIN FROM orders", scope)
        publisher.publish(payroll="SELECT 2 AS id")

        assert b"_copies" in before
        assert answer(engine, "EXPLAIN FROM orders", scope) == before


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("id = ", 'row_filter: Syntax error at or near ")" (line 2, column 1).'),
        ("id = 1 OR\nWHERE", 'row_filter: Syntax error at or near "WHERE" (line 2, column 1).'),
        ("WHERE true", 'row_filter: Syntax error at or near "WHERE" (line 1, column 1).'),
        ("-- x", "row_filter: there is no expression."),
        ("true; true", "row_filter: write one expression, without a semicolon."),
    ],
)
def test_an_error_names_the_line_of_the_expression(sql: str, message: str) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        gate_rule(DatasetRule(dataset="orders", row_filter=sql), frozenset({"orders"}), Gate())
    assert str(caught.value) == message
