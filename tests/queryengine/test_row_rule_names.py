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
#: Filters that do not fit the data after columns have disappeared.
FITTING = (
    "tenant IN (SELECT tenant FROM grants)",
    "tenant IN (SELECT tenant FROM grants EXCEPT SELECT Tenant FROM main.active WHERE level > 1)",
    "tenant IN (SELECT list_transform([1], lambda x: if(x = 1, tenant, ''))[1] FROM main.grants)",
    "EXISTS (FROM grants WHERE grants.level = 1 AND tenant = orders.tenant)",
    "tenant = ANY([tenant]) AND tenant IN (FROM orders o JOIN grants h ON o.tenant = h.tenant SELECT o.tenant)",
    "tenant IN (SELECT orders.tenant FROM grants AS orders)",
    "tenant NOT IN (SELECT a.tenant || 'x' FROM active AS a LEFT JOIN grants ON grants.tenant > a.tenant)",
    "tenant IN (SELECT grants.tenant FROM grants JOIN active USING (tenant, level) WHERE grants.kind = 2)",
    "tenant IN (SELECT grants.tenant FROM grants, active WHERE grants.level = active.level)",
    "EXISTS (FROM active AS a WHERE EXISTS (FROM grants AS g WHERE lower(g.tenant) = orders.tenant))",
    "tenant = (SELECT tenant FROM grants ORDER BY kind LIMIT 1)",
    "list_contains((SELECT list(tenant) FILTER (WHERE kind > 1) FROM grants GROUP BY level), tenant)",
    "orders IS NOT NULL",
    "id >= 0 AND (SELECT orders) IS NOT NULL",
    "id >= (SELECT min(o.orders) FROM orders AS o)",
)
#: Filters that continue to fit.
FIT = (
    "tenant IN (SELECT lower(active.tenant) FROM main.active)",
    "id >= (SELECT min(id) FROM orders) AND id IN (SELECT id FROM orders WHERE id % 3 = 0)",
    "tenant IN (SELECT a.tenant FROM active AS a JOIN grants ON grants.level = a.level)",
    "id >= (SELECT min(orders.id) FROM orders) AND id % 3 = 0",
    "tenant IN (SELECT tenant FROM active QUALIFY row_number() OVER (ORDER BY level) = 1)",
    "g.orders.c % 3 = 0 AND EXISTS (SELECT * FROM active AS a, grants WHERE a.level = 1 LIMIT 1)",
    "g['orders'].c % 3 = 0 AND orders.g.orders.c = orders.id",
    "id % 3 = 0 AND EXISTS (FROM active WHERE level IN (SELECT level FROM active))",
    "tenant IN (SELECT CAST(to_variant(a.tenant) AS VARCHAR) FROM active AS a)",
    "tenant = 'acme' AND (SELECT count(*) FROM grants) = 1 AND id = ANY([id])",
    f"id % 3 = 0 AND EXISTS (FROM active WHERE active.level = {' + '.join(['level - level'] * 30)} + 1)",
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
    """What keys with each filter see before and after columns of two tables have disappeared."""
    publisher = Publisher(tmp_path_factory.mktemp("names") / "state")
    publisher.publish(**TABLES)
    filters = FITTING + FIT
    with KINDS["in process"](config_of(publisher.state_dir, tuple(TABLES))) as engine:
        count = "SELECT count(*) AS n FROM orders"
        before = [answer(engine, count, scope_of(row_filter)) for row_filter in filters]
        publisher.publish(
            orders="SELECT * EXCLUDE (orders) FROM (" + TABLES["orders"] + ")",
            grants="SELECT 1 AS level, 'SECRET' AS renamed",
        )
        after = [answer(engine, count, scope_of(row_filter)) for row_filter in filters]
    return dict(zip(filters, zip(before, after, strict=True), strict=True))


@pytest.mark.parametrize("row_filter", FITTING + FIT)
def test_a_column_that_disappears_does_not_widen_a_filter(
    counts: dict[str, tuple[bytes, bytes]], row_filter: str
) -> None:
    before, after = counts[row_filter]
    assert before.startswith(b'[{"n":')
    assert after == (b'[{"n":3}]' if row_filter in FIT else UNAVAILABLE)


@pytest.mark.parametrize(
    ("row_filter", "name"),
    [
        ("EXISTS (FROM grants WHERE grants.tenant = orders.tenant)", "orders"),
        ("NOT EXISTS (FROM grants AS g WHERE g.tenant <> orders.tenant)", "orders"),
        ("EXISTS (FROM active AS a WHERE EXISTS (FROM grants WHERE a.tenant = orders.tenant))", "a"),
        ('EXISTS (FROM active AS `a"b` WHERE EXISTS (FROM grants WHERE `a"b`.tenant = orders.tenant))', '"a""b"'),
        ("tenant = (SELECT max(g.tenant) FROM grants AS g JOIN active AS a ON a.tenant = orders.tenant)", "orders"),
    ],
)
def test_a_column_that_appears_does_not_widen_a_filter(tmp_path: Path, row_filter: str, name: str) -> None:
    with filtered(tmp_path, row_filter) as (publisher, count):
        assert count() == b'[{"n":3}]'
        for value in WITH_FIELDS:
            publisher.publish(grants=f"{TABLES['grants']}, {value} AS {name}")
            assert count() == b'[{"n":3}]'


def publish_retyped(publisher: Publisher, orders: str, name: str, first: str) -> None:
    """Publish *orders*, in which a column has another type than at *first*."""
    found = publisher.publish(orders=orders)
    retyped = (Column(name=name, type=first),)
    write_manifest(
        publisher.state_dir, replace(found, snapshots=tuple(replace(one, retyped=retyped) for one in found.snapshots))
    )


def test_a_rule_does_not_fit_an_enum_with_other_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with filtered(tmp_path, "tenant <= level") as (publisher, count):
        orders = "SELECT 'a'::ENUM('a', 'b') AS tenant, 'b'::ENUM('a', 'b', 'c') AS level"
        publish_retyped(publisher, orders, "level", "ENUM('a', 'b')")

        assert count() == UNAVAILABLE
        assert "'b'" not in str([vars(record) for record in caplog.records])
        publisher.publish(orders=orders)
        assert count() == b'[{"n":1}]'


@pytest.mark.parametrize(
    ("value", "first", "fits"),
    [
        ("5", "VARCHAR", True),
        ("'acme'", "ENUM('acme')", True),
        ("to_json('acme')", "VARCHAR", False),
        ("['acme']", "VARCHAR", False),
        ("'acme'", "JSON", False),
        ("'acme'", "STRUCT(a VARCHAR)", False),
        ("'acme'", "VARCHAR[]", False),
    ],
)
def test_a_cast_allows_no_other_type_whose_text_has_brackets(
    tmp_path: Path, value: str, first: str, *, fits: bool
) -> None:
    with filtered(tmp_path, "CAST(tenant AS VARCHAR) <> 'other'") as (publisher, count):
        publish_retyped(publisher, f"SELECT {value} AS tenant", "tenant", first)
        assert count() == (b'[{"n":1}]' if fits else UNAVAILABLE)


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
    of_v = DatasetRule(dataset="v", row_filter="CAST(n AS INT) = 3")
    whole = Scope(relations=frozenset({"v"}))
    scopes = {whole: "v", replace(whole, rules=(of_v,)): "v", scope_of(row_filter): "orders"}
    with KINDS["in process"](config) as engine:

        def counts() -> list[bytes]:
            return [answer(engine, f"SELECT count(*) AS n FROM {name}", scope) for scope, name in scopes.items()]

        assert all(b"rules or views do not fit the data" in found for found in counts())
        publisher.publish(grants=TABLES["grants"], **of_view)
        assert all(found.startswith(b'[{"n":') for found in counts())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_view", [False, True])
def test_a_copy_of_a_dataset_depends_on_types_only_if_that_is_a_view(
    tmp_path: Path, kind: str, *, is_view: bool
) -> None:
    publisher = Publisher(tmp_path / "state")
    config = config_of(publisher.state_dir, ("copy", "v", "grants"))
    copy, v, grants = config.datasets
    of = "v" if is_view else "grants"
    copy = replace(copy, view=MaterializedView(sql=f"FROM {of}", reads=(of,), is_copy=True))
    v = replace(v, view=MaterializedView(sql="FROM grants WHERE level > 0", reads=("grants",)))
    published = publisher.publish(grants=TABLES["grants"], v="SELECT 1 AS n", copy="SELECT 1 AS n")
    retyped = (Column(name="level", type="VARCHAR"),)
    changed = (replace(one, retyped=retyped) if one.dataset == "grants" else one for one in published.snapshots)
    write_manifest(publisher.state_dir, replace(published, snapshots=tuple(changed)))
    with KINDS[kind](replace(config, datasets=(copy, v, grants))) as engine:
        found = answer(engine, "FROM copy", Scope(relations=frozenset({"copy"})))
        assert found.startswith(b"DatasetNotLoadedError" if is_view else b'[{"n":1}]')


@pytest.mark.parametrize(
    "row_filter",
    [
        "len(list_filter([tenant], lambda x: lower(x) = 'acme')) > 0",
        "len([X for X in [tenant] if lower(x) = 'acme']) > 0",
        "list_contains(list_transform([g], lambda x: x['tenant']), 'acme')",
        "tenant IN (SELECT unnest(list_transform(['acme'], lambda x: x)) FROM active)",
        "tenant IN (SELECT unnest([x for x in ['acme'] if x <> 'b']) FROM active)",
        "tenant IN (SELECT unnest(list_transform(['acme'], lambda X: {'of': x}))['of'] FROM active)",
    ],
)
def test_a_column_that_appears_is_not_taken_for_the_parameter_of_a_lambda(tmp_path: Path, row_filter: str) -> None:
    with filtered(tmp_path, row_filter) as (publisher, count):
        assert count() == b'[{"n":3}]'
        for name, value in product(("orders", "active"), (*WITH_FIELDS, "'acme'")):
            publisher.publish(**{name: f"SELECT *, {value} AS x FROM ({TABLES[name]})"})
            assert count() == b'[{"n":3}]'


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

        assert count() == b'[{"n":9}]'


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
