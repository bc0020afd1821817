"""
What a rule of a key leaves out is not to be learned, by whatever statement.

An engine with the rule gives the same answers, errors included, as one that has only what the rule leaves.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from queryengine.engine import Encoding, Query, QueryEngine
from queryengine.errors import QueryError
from queryengine.execution import key_catalogs
from queryengine.execution.definitions import Definitions
from queryengine.execution.instance import EngineInstance
from queryengine.execution.key_catalogs import KeyCatalogs
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import MIB, DatasetRule, Scope
from tests.queryengine import hidden_rows
from tests.queryengine.conftest import KINDS, config_of
from tests.queryengine.hidden_rows import LEAK, SCOPES, VIEWS, VISIBLE
from tests.queryengine.publishing import Publisher

ALL = {"orders": hidden_rows.ORDERS, "grants": hidden_rows.GRANTS, "barred": hidden_rows.BARRED}


def start(running: ExitStack, directory: Any, tables: dict[str, str], views: dict[str, str]) -> QueryEngine:
    publisher = Publisher(directory / "state")
    publisher.publish(**tables)
    return running.enter_context(KINDS["in process"](config_of(publisher.state_dir, tuple(tables), views)))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryEngine]:
    """An engine with all rows."""
    with ExitStack() as running:
        yield start(running, tmp_path_factory.mktemp("all"), ALL, VIEWS)


@pytest.fixture(scope="module")
def visible(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryEngine]:
    """An engine that has only what a key with a row filter sees."""
    with ExitStack() as running:
        yield start(running, tmp_path_factory.mktemp("visible"), {"orders": VISIBLE}, {})


def answer(engine: QueryEngine, sql: str, scope: Scope | None, encoding: Encoding = "json") -> bytes:
    """Return the answer, or the error."""
    try:
        with closing(engine.run(Query(sql=sql, scope=scope, encoding=encoding))) as result:
            return b"".join(result)
    except QueryError as error:
        return f"{type(error).__name__}: {error}".encode()


def leaks(engine: QueryEngine, form: str, seeds: range) -> list[str]:
    """Return the statements whose answers hold what is hidden."""
    table = "orders_of_acme" if form == "view" else "orders"
    statements = dict.fromkeys(hidden_rows.statement(seed, table) for seed in seeds)
    return [sql for sql in statements if LEAK.search(answer(engine, sql, SCOPES[form]))]


#: Statements to two of which a view that is not secure shows the text of a mask.
FEW = range(100, 150)


@pytest.mark.parametrize("form", SCOPES)
@pytest.mark.parametrize(
    "seeds",
    [
        FEW,
        pytest.param(range(1_000), marks=pytest.mark.exhaustive),
        pytest.param(range(10_000), marks=pytest.mark.soak),
    ],
    ids=len,
)
def test_no_statement_shows_what_is_hidden(engine: QueryEngine, form: str, seeds: range) -> None:
    assert leaks(engine, form, seeds) == []


def test_a_view_that_is_not_secure_shows_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define_view = Definitions.define_view
    monkeypatch.setattr(KeyCatalogs, "_needs_copy", lambda *_: False)
    monkeypatch.setattr(Definitions, "define_view", lambda *args, **_: define_view(*args))
    with ExitStack() as running:
        bare = start(running, tmp_path, ALL, VIEWS)

        assert len(leaks(bare, "columns and masks", FEW)) == 2


#: Its plan shows values of hidden rows if the engine joins them.
TELLING = "EXPLAIN ANALYZE SELECT 1 AS x FROM {} WHERE (score::DECIMAL(9, 3))::VARCHAR = ANY (SELECT code FROM {})"


@pytest.mark.parametrize(
    ("form", "is_secure"), [("join", False), ("exists", False), ("in", False), ("view", False), ("join", True)]
)
def test_a_view_would_show_what_a_copy_does_not(
    engine: QueryEngine,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    is_secure: bool,
) -> None:
    sql = TELLING.replace("{}", "orders_of_acme" if form == "view" else "orders")
    with_copy = answer(engine, sql, SCOPES[form])
    define_view = Definitions.define_view
    monkeypatch.setattr(KeyCatalogs, "_needs_copy", lambda *_: False)
    monkeypatch.setattr(Definitions, "define_view", lambda *args, **_: define_view(*args, is_secure=is_secure))
    with ExitStack() as running:
        bare = start(running, tmp_path_factory.mktemp("bare"), ALL, VIEWS)

        assert LEAK.search(answer(bare, sql, SCOPES[form]))
    assert not LEAK.search(with_copy)


def test_the_number_of_hidden_rows_decides_nothing(engine: QueryEngine) -> None:
    """With DuckDB's secure views, a plan has the estimate of all rows, and the order of a join depends on it."""
    shown = [answer(engine, f"EXPLAIN FROM orders WHERE id = {number}", SCOPES["constant"]) for number in range(3)]
    assert not any(b"4,200" in one or b"4200" in one for one in shown)
    join = "SELECT id, range FROM orders JOIN range({}) ON id % 10 = range % 10 LIMIT 1"
    firsts = {size: answer(engine, join.format(size), SCOPES["constant"]) for size in (1000, 2000, 5000, 9000)}
    assert len({(b'"id":1,' in first) for first in firsts.values()}) == 1


def test_a_plan_tells_nothing_of_the_engine(engine: QueryEngine) -> None:
    """The memory of the instance, and the bytes and rows that were read, depend on what is hidden."""
    sql = "EXPLAIN (ANALYZE, FORMAT json) SELECT max(email) AS m FROM orders WHERE id % 2 = 0"
    for form in ("constant", "columns and masks"):
        (row,) = json.loads(answer(engine, sql, SCOPES[form]))
        plan = json.loads(row["explain_value"])
        assert plan.keys() == {"operator", "optimizer", "physical_planner", "planner", "query"}
        assert plan["query"].keys() == {"cpu_time", "sql", "total_time"}


@pytest.mark.parametrize(
    ("form", "columns"),
    [
        *(("in", ""), ("exists", ""), ("join", ""), ("view", "id, tenant")),
        *(("view", "id, tenant AS order"), ("view", "id, {'order': tenant}.order")),
    ],
)
def test_hidden_rows_do_not_decide_the_order_of_the_others(tmp_path: Path, form: str, columns: str) -> None:
    """Their number decides which side of a join is read first. A column named `order` is not an ORDER BY."""
    views = {"orders_of_acme": f"SELECT {columns or 'id'} FROM orders SEMI JOIN grants USING (tenant)"}
    scope = SCOPES[form]
    if form != "view":
        rule = DatasetRule(dataset="orders", row_filter=scope.rules[0].row_filter, columns=("id", "tenant"))
        scope = Scope(relations=scope.relations, rules=(rule,))
    shown = set()
    for hidden in (0, 10_000):
        tables = {
            "orders": f"SELECT range AS id, if(range < 500, '', '-') || range AS tenant FROM range({500 + hidden})",
            "grants": "SELECT range::VARCHAR AS tenant, 1 AS level FROM range(3000)",
        }
        with ExitStack() as running:
            one = start(running, tmp_path / str(hidden), tables, views)
            shown.add(answer(one, "FROM orders_of_acme" if form == "view" else "FROM orders", scope))

    assert len(shown) == 1


def test_a_view_keeps_the_order_that_it_fixes(engine: QueryEngine) -> None:
    scope = Scope(relations=frozenset({"latest"}))

    assert answer(engine, "FROM latest", scope) == b'[{"id":199},{"id":197},{"id":196}]'


#: The same rows with other hidden values.
UNLIKE = (
    """
    SELECT i AS id, 'a' || i % 7 AS tenant, 'SECRET' || i AS code, (i % 5)::INTEGER AS amount, DATE '2020-01-01' AS day,
      'x' AS note, 0.5::DOUBLE AS score, 'e' || i AS email, 3 AS margin FROM range(4200) t(i)
    """,
    """
    SELECT i AS id, 'b' AS tenant, repeat('Z', 1 + (i % 50)::INTEGER) AS code,
      if(i % 3 = 0, NULL, 5000000 + i)::INTEGER AS amount, DATE '2090-01-01' + (i % 9)::INTEGER AS day,
      NULL::VARCHAR AS note, 1e30 + i AS score, NULL::VARCHAR AS email, i * 7 AS margin FROM range(4200) t(i)
    """,
)
MASKED = DatasetRule(
    dataset="orders",
    columns=("id", "tenant", "code", "amount", "day", "note", "score", "email"),
    masks=(
        *(("amount", "CASE WHEN amount < 0 THEN amount ELSE (id % 91)::INTEGER END"), ("code", "left(code, 0) || '1'")),
        *(
            ("day", "CASE WHEN day IS NULL THEN day ELSE DATE '2000-01-01' + (id % 40)::INTEGER END"),
            ("email", "'***'"),
        ),
        *(("note", "CASE WHEN note LIKE '%SECRET%' THEN note ELSE '(a|b' || id % 3 || ')' END"),),
        *(("score", "CASE WHEN score < 0 THEN score ELSE id % 3 / 2.0 END"),),
        *(("tenant", "CASE WHEN tenant = 'acme' THEN tenant ELSE 'acme' END"),),
    ),
)


@pytest.mark.parametrize(
    "number", [60, pytest.param(600, marks=pytest.mark.exhaustive), pytest.param(3_000, marks=pytest.mark.soak)]
)
def test_masked_values_decide_nothing(tmp_path: Path, number: int) -> None:
    scope = Scope(relations=frozenset({"orders"}), rules=(MASKED,))
    with ExitStack() as running:
        one, other = (start(running, tmp_path / str(n), {"orders": sql}, {}) for n, sql in enumerate(UNLIKE))
        assert differences(one, other, range(number), scope, scope, plans=True) == []
        # A secure view would reveal how many values a masked column has, as an estimate.
        sql = "EXPLAIN FROM orders WHERE tenant = tenant"
        assert are_alike(answer(one, sql, scope), answer(other, sql, scope), sql)


FILTERED = [form for form in SCOPES if form not in {"view", "columns and masks"}]
ENCODINGS: tuple[Encoding, ...] = ("json", "ndjson", "csv", "arrow", "vnd", "flight")


def are_alike(shown: bytes, expected: bytes, sql: str) -> bool:
    """Compare two answers to *sql*, some of which fix neither the order of their rows nor which error comes first."""
    if b"\n\nLINE " in expected and ("runtime" in sql or "PIVOT" in sql):
        # The excerpt shows the statement without the name of the database, or a name that DuckDB made up.
        shown, expected = (one.partition(b"\n\nLINE ")[0] for one in (shown, expected))
    shown, expected = (re.sub(rb"_copies\.main\.c[0-9a-f]{12}", b"copy", one) for one in (shown, expected))
    return shown == expected


def in_any_order(engine: QueryEngine, sql: str, scope: Scope | None) -> list[str]:
    """Return the rows of a statement that does not fix their order."""
    return sorted(answer(engine, sql, scope, "ndjson").decode().splitlines())


def differences(
    engine: QueryEngine,
    other: QueryEngine,
    seeds: range,
    scope: Scope | None = None,
    other_scope: Scope | None = None,
    *,
    plans: bool = False,
) -> list[object]:
    """Return the statements that *engine*, with a row filter or *scope*, does not answer as the *other* one does."""
    cases: dict[tuple[str, str, Encoding], None] = {}  # Many seeds make the same statement.
    for seed in seeds:
        sql = hidden_rows.statement(seed, "orders", plans=plans)
        if not re.search("ANALYZE|SAMPLE", sql):
            form = "" if scope else FILTERED[seed % len(FILTERED)]
            cases[sql, form, ENCODINGS[seed % len(ENCODINGS)]] = None
    found: list[object] = []
    for sql, form, encoding in cases:
        within = scope or SCOPES[form]
        pairs = ((answer(engine, sql, within, encoding), answer(other, sql, other_scope, encoding)) for _ in range(9))
        if not any(are_alike(*pair, sql) for pair in pairs) and in_any_order(engine, sql, within) != in_any_order(
            other, sql, other_scope
        ):
            found.append((sql, encoding))
    return found


def test_every_answer_is_that_of_an_engine_with_nothing_else(engine: QueryEngine, visible: QueryEngine) -> None:
    assert differences(engine, visible, range(200)) == []


@pytest.mark.exhaustive
def test_every_one_of_many_answers_is_that_of_an_engine_with_nothing_else(
    engine: QueryEngine, visible: QueryEngine
) -> None:
    assert differences(engine, visible, range(6_000)) == []


# Bounds.


@pytest.mark.exhaustive
def test_a_thousand_keys_with_a_thousand_rules(engine: QueryEngine) -> None:
    def scope(number: int) -> Scope:
        rule = DatasetRule(dataset="orders", row_filter=f"id = {number}", columns=("id", "code"))
        return Scope(relations=frozenset({"orders"}), rules=(rule,))

    for number in (*range(1, 1000, 3), 1, 2):
        seen = 1 if answer(engine, f"SELECT 1 AS a FROM orders WHERE id = {number}", None) != b"[]" else 0
        assert answer(engine, "SELECT count(*) AS n FROM orders", scope(number)) == b'[{"n":%d}]' % seen


@pytest.fixture
def bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueryEngine]:
    """An engine that keeps two catalogs, and hardly a copy."""
    monkeypatch.setattr(key_catalogs, "_MOST_CATALOGS", 2)
    monkeypatch.setattr(key_catalogs, "_PART_OF_MEMORY", 2**60)
    with ExitStack() as running:
        yield start(running, tmp_path, ALL, VIEWS)


def test_what_was_dropped_is_made_again(bounded: QueryEngine) -> None:
    expected = {form: b'[{"n":4200}]' if form == "columns and masks" else b'[{"n":133}]' for form in SCOPES}

    for _ in range(3):
        for form, scope in SCOPES.items():
            table = "orders_of_acme" if form == "view" else "orders"
            assert answer(bounded, f"SELECT count(*) AS n FROM {table}", scope) == expected[form]
            assert answer(bounded, "SHOW TABLES", scope) == b'[{"name":"%s"}]' % table.encode()


def test_callers_at_once_get_their_own_rows(bounded: QueryEngine) -> None:
    def ask(number: int) -> bytes:
        form = FILTERED[number % len(FILTERED)]
        return answer(bounded, "SELECT count(*) AS n, max(id) AS id FROM orders", SCOPES[form])

    with ThreadPoolExecutor(8) as callers:
        assert set(callers.map(ask, range(160))) == {b'[{"n":133,"id":199}]'}


def test_a_long_statement_keeps_its_rows_while_its_copy_is_dropped(bounded: QueryEngine) -> None:
    query = Query(sql="SELECT a.id FROM orders a, orders b, range(40)", scope=SCOPES["constant"])
    with closing(bounded.run(query)) as result:
        rows = iter(result)
        first = next(rows)
        for form in FILTERED[1:]:
            answer(bounded, "SELECT count(*) AS n FROM orders", SCOPES[form])
        assert (first + b"".join(rows)).count(b"id") == 133 * 133 * 40


def test_a_copy_larger_than_copies_may_be_takes_no_room_between_statements(tmp_path: Path) -> None:
    """Otherwise, it would stay until another copy is made, which might then not fit."""
    publisher = Publisher(tmp_path / "state")
    publisher.publish(big="SELECT i, hash(i) AS a, hash(i + 1) AS b, md5(i::VARCHAR) AS c FROM range(400_000) t(i)")
    scope = Scope(relations=frozenset({"big"}), rules=(DatasetRule(dataset="big", row_filter="i > 0"),))
    config = config_of(publisher.state_dir, ("big",), memory_limit_bytes=64 * MIB)
    with closing(InProcessEngine(config)) as engine:
        for _ in range(2):
            assert answer(engine, "SELECT count(*) AS n FROM big", scope) == b'[{"n":399999}]'
            session = engine._runner.sessions.lease().session
            assert isinstance(session, EngineInstance)
            used = session._connection.execute(
                "SELECT sum(memory_usage_bytes + temporary_storage_bytes) FROM duckdb_memory() "
                "WHERE tag = 'IN_MEMORY_TABLE'"
            ).fetchone()
            assert used is not None
            assert used[0] <= 64 * MIB // 3


# New data, and data that a rule does not fit.


def test_a_filter_sees_what_its_other_datasets_have_now(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "state")
    publisher.publish(**ALL)
    with KINDS["workers"](config_of(publisher.state_dir, tuple(ALL), VIEWS)) as engine:
        assert answer(engine, "SELECT count(*) AS n FROM orders", SCOPES["in"]) == b'[{"n":133}]'
        publisher.publish(grants="SELECT 'nobody' AS tenant, 1 AS level")
        assert answer(engine, "SELECT count(*) AS n FROM orders", SCOPES["in"]) == b'[{"n":0}]'
        assert answer(engine, "SELECT count(*) AS n FROM orders_of_acme", SCOPES["view"]) == b'[{"n":0}]'


UNAVAILABLE = b"DatasetNotLoadedError: 'orders' is not available to this key: its rules or views do not fit the data."
UNFIT = {
    "a column that is gone": "SELECT id, code, amount, day, note, score, email FROM (" + hidden_rows.ORDERS + ")",
    "a filter that fails": "SELECT * REPLACE ('SECRET ' || id AS amount) FROM (" + hidden_rows.ORDERS + ")",
}


@pytest.mark.parametrize("data", UNFIT)
def test_a_rule_that_does_not_fit_makes_its_dataset_unavailable(
    tmp_path: Path, data: str, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(tmp_path / "state")
    publisher.publish(**ALL)
    rule = DatasetRule(dataset="orders", row_filter="tenant = 'acme' OR amount::INTEGER < 0")
    scope = Scope(relations=frozenset({"orders"}), rules=(rule,))
    with KINDS["in process"](config_of(publisher.state_dir, tuple(ALL), VIEWS)) as engine:
        assert answer(engine, "SELECT count(*) AS n FROM orders", scope) == b'[{"n":133}]'
        publisher.publish(orders=UNFIT[data])

        shown = answer(engine, "SELECT count(*) AS n FROM orders", scope)
        assert shown == UNAVAILABLE
        assert "SECRET" not in caplog.text
        publisher.publish(orders=hidden_rows.ORDERS)
        assert answer(engine, "SELECT count(*) AS n FROM orders", scope) == b'[{"n":133}]'


def test_a_view_that_cannot_be_read_does_not_name_what_the_key_may_not(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "state")
    publisher.publish(hidden="SELECT 1 AS secret")
    views = {"early": "FROM unloaded", "unfit": "SELECT gone FROM hidden"}
    with closing(InProcessEngine(config_of(publisher.state_dir, ("hidden", "unloaded"), views))) as engine:
        for view in views:
            scope = Scope(relations=frozenset({view}))
            shown = answer(engine, f"FROM {view}", scope)
            assert shown == f"DatasetNotLoadedError: View '{view}' cannot be read at the moment.".encode()
            assert answer(engine, "SHOW TABLES", scope) == b"[]"


def test_the_values_of_an_enum_are_not_those_of_hidden_rows(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "state")
    tenants = "ENUM('acme', 'SECRET it''s (', 'other')"
    publisher.publish(
        t=f"SELECT x::{tenants} AS tenant, [x]::{tenants}[] AS l, 1 AS n, "
        f"{{'a b': x, 'ENUM(''b'')': 1}}::STRUCT(\"a b\" {tenants}, \"ENUM('b')\" INTEGER) AS s "
        "FROM (VALUES ('acme'), ('other')) v(x)"
    )
    filtered = DatasetRule(dataset="t", row_filter="tenant = 'acme'")
    masked = DatasetRule(dataset="t", masks=(("l", "l"), ("s", "s"), ("tenant", "tenant")))
    with closing(InProcessEngine(config_of(publisher.state_dir, ("t",), {"v": "FROM t WHERE n = 1"}))) as engine:
        for table, rules in (("t", (filtered,)), ("t", (masked,)), ("v", ())):
            scope = Scope(relations=frozenset({table}), rules=rules)
            for sql in ("DESCRIBE {}", "FROM {}", "SELECT DISTINCT typeof(s) AS t FROM {}", "SHOW ALL TABLES"):
                for encoding in ("json", "arrow", "flight"):
                    shown = answer(engine, sql.format(table), scope, encoding)
                    assert b"Error" not in shown[:40]
                    assert b"SECRET" not in shown


@pytest.mark.parametrize("form", ["constant", "columns and masks", "view"])
def test_a_function_that_calls_another_is_there_for_the_key_that_calls_it_first(tmp_path: Path, form: str) -> None:
    table = "orders_of_acme" if form == "view" else "orders"
    with ExitStack() as running:
        fresh = start(running, tmp_path, ALL, VIEWS)
        shown = answer(
            fresh, f"SELECT arrow_typeof(id) AS t, arrow_typeof([id]) AS l FROM {table} LIMIT 1", SCOPES[form]
        )

    assert shown == b'[{"t":"Int64","l":"List(Int64)"}]'


def test_columns_have_the_names_that_the_engine_tells_apart(tmp_path: Path) -> None:
    """Names are compared in ASCII."""
    publisher = Publisher(tmp_path / "state")
    publisher.publish(t='SELECT 1 AS "Ä", \'SECRET\' AS "ä", 2 AS "A"')
    with closing(InProcessEngine(config_of(publisher.state_dir, ("t",)))) as engine:
        for columns, masks, shown in (
            (("Ä", "a"), (), '[{"Ä":1,"A":2}]'),
            (None, (("ä", "0"),), '[{"Ä":1,"ä":0,"A":2}]'),
            (
                ("Ä",),
                (("ä", "0"),),
                "DatasetNotLoadedError: 't' is not available to this key: its rules or views do not fit the data.",
            ),
        ):
            rule = DatasetRule(dataset="t", columns=columns, masks=masks)
            assert answer(engine, "FROM t", Scope(relations=frozenset({"t"}), rules=(rule,))).decode() == shown


def test_a_rule_that_the_gate_refuses_makes_its_dataset_unavailable(engine: QueryEngine) -> None:
    samples = ("id IN (SELECT id FROM orders TABLESAMPLE 9%)", "id IN (SELECT id FROM orders USING SAMPLE 9 ROWS)")
    refused = ("true) OR (true", "read_csv('/etc/passwd') IS NULL", "id = $1", "random() < 2", "true; SELECT 1")
    for sql in (*refused, *samples):
        scope = Scope(relations=frozenset({"orders"}), rules=(DatasetRule(dataset="orders", row_filter=sql),))

        assert answer(engine, "FROM orders", scope).startswith(b"DatasetNotLoadedError: 'orders' is not available")


def test_a_copy_is_cut_where_its_own_rows_are(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "state")
    publisher.publish(numbers="SELECT range AS n FROM range(1_000_000)")
    rule = DatasetRule(dataset="numbers", row_filter="hash(n) % 10 <> 0")
    scope = Scope(relations=frozenset({"numbers"}), rules=(rule,))
    with closing(InProcessEngine(config_of(publisher.state_dir, ("numbers",)))) as engine:
        assert answer(engine, "SELECT count(*) > 800_000 AS n FROM numbers", scope) == b'[{"n":true}]'
        session = engine._runner.sessions.lease().session
        assert isinstance(session, EngineInstance)
        (copy,) = session._key_catalogs._copies.values()
        groups = session._connection.execute(
            f"SELECT sum(count) FROM pragma_storage_info('_copies.main.{copy.name}') "
            "WHERE segment_type <> 'VALIDITY' GROUP BY row_group_id ORDER BY row_group_id"
        ).fetchall()
    assert {size for (size,) in groups[:-1]} == {122_880}
