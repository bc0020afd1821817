"""
What is outside the scope of a key does not exist for its statements.

Every answer, errors included, equals that of an engine whose configuration declares nothing but the scope.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import cycle
from pathlib import Path

import duckdb
import pytest
from msgspec.structs import replace

from queryengine.engine import Encoding, Query, QueryEngine
from queryengine.errors import QueryError, SqlError
from queryengine.execution.definitions import _attachment
from queryengine.execution.views import with_materialized_views
from queryengine.gate.gate import Gate
from runtimeconf.model import DatasetRule, MaterializedView, NamedKey, Scope, SnapshotsConfig
from tests.queryengine.asking import rows
from tests.queryengine.conftest import KINDS, StartEngine, config_of
from tests.queryengine.publishing import Publisher
from tests.queryengine.statements import FAILING, READS, REFUSED, TABLES
from tests.queryengine.statements import VIEWS as UNORDERED

VIEWS = {name: f"{sql} ORDER BY ALL" for name, sql in UNORDERED.items()}

SCOPES = {
    "one": frozenset({"planes"}),
    "two": frozenset({"airlines", "flights"}),
    "with a view": frozenset({"flights", "delays"}),
}

#: Ways to name a relation; `{}` is the name.
FORMS = (
    "FROM {}",
    'SELECT count(*) FROM "{}"',
    "FROM main.{} LIMIT 1",
    "FROM RUNTIME.MAIN.{} LIMIT 1",
    "SELECT 1 AS a FROM airlines, {} LIMIT 1",
    "SELECT * FROM {} AS a LEFT JOIN {} AS b ON a.carrier = b.carrier ORDER BY ALL LIMIT 2",
    "WITH {} AS (SELECT 1 AS a) FROM {}",
    "WITH a AS (FROM {}), {} AS (SELECT 1 AS b) FROM a, {}",
    "WITH RECURSIVE a AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM a, {} WHERE n < 3) FROM a",
    "SELECT (SELECT count(*) FROM {}) AS n",
    "SELECT 1 AS a WHERE EXISTS (FROM {})",
    "SELECT 1 AS a WHERE 'x' IN (SELECT carrier FROM {})",
    "SELECT {}.carrier FROM {} ORDER BY 1 LIMIT 1",
    "SELECT {} FROM {} LIMIT 1",
    "TABLE {}",
    "DESCRIBE {}",
    "DESC main.{}",
    "SHOW {}",
    "SUMMARIZE {}",
    "SELECT column_name FROM (DESCRIBE {})",
    "SELECT column_name FROM (SUMMARIZE {})",
    "EXPLAIN FROM {}",
    "EXPLAIN (FORMAT json) SELECT count(*) FROM {}",
    "PIVOT {} ON carrier USING count(*) ORDER BY ALL",
    "UNPIVOT {} ON COLUMNS('carrier') ORDER BY ALL",
    "FROM (PIVOT {} ON carrier IN ('UA') USING count(*)) ORDER BY ALL",
    "PIVOT airlines ON carrier IN (SELECT carrier FROM {}) USING count(*) ORDER BY ALL",
    # The query for the columns of a PIVOT does not see these common table expressions.
    "WITH {} AS (SELECT 1 AS id, 'x' AS carrier), b AS (PIVOT {} ON carrier USING count(*)) FROM b",
    "WITH {} AS (SELECT 1 AS id, 'x' AS carrier) FROM (WITH b AS (FROM {}) PIVOT b ON carrier USING count(*))",
    "WITH RECURSIVE {} AS (SELECT 'x' AS a UNION SELECT max(x) FROM (PIVOT {} ON carrier USING max(carrier))) FROM {}",
    # The tree of these has only one of the two definitions of a name.
    "WITH a AS (FROM airlines) (WITH a AS (FROM {}) PIVOT a ON carrier USING count(*))",
    "WITH a AS (SELECT 1 AS a) ((WITH a AS (PIVOT airlines ON carrier IN (SELECT carrier FROM {})) SELECT 1 AS a))",
    "SELECT count(*) FROM {} TABLESAMPLE 1 ROWS",
    "FROM {} SELECT count(*) UNION ALL SELECT 1 ORDER BY 1",
    "FROM flights ASOF JOIN {} USING (carrier, id)",
    "FROM airlines, LATERAL (SELECT * FROM {} LIMIT 1)",
    "SELECT carrier FROM airlines ORDER BY (SELECT min(carrier) FROM {}), 1",
    "FROM query_table('{}')",
    "SHOW COLUMNS FROM {}",
    "SELECT carrier FROM airlines LEFT SEMI JOIN {} USING (carrier) ORDER BY 1",
    "SELECT make_array(nvl((SELECT min(carrier) FROM {}), 'x')) AS a FROM {} LIMIT 1",
    "FROM query('FROM {}')",
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_name = '{}' ORDER BY ALL",
    "SELECT nextval('{}')",
    "FROM {}x",
)
LISTS = (
    "SHOW TABLES",
    "SHOW TABLES FROM main",
    "SHOW TABLES FROM runtime.main",
    "SHOW ALL TABLES",
    "DESCRIBE",
    "FROM (SHOW TABLES) SELECT count(*) AS n",
    "SELECT s.name FROM (SHOW ALL TABLES) AS s",
    "SUMMARIZE (SHOW TABLES)",
    "SHOW DATABASES",
    "SHOW SCHEMAS",
    "SELECT * FROM information_schema.tables",
    "SELECT tables.table_name FROM information_schema.tables",
    "SELECT * FROM runtime.information_schema.columns ORDER BY ALL",
    "FROM information_schema.schemata",
    "DESCRIBE information_schema.tables",
    "EXPLAIN FROM information_schema.tables",
    "EXPLAIN SHOW ALL TABLES",
    "EXPLAIN (FORMAT json) SELECT * FROM information_schema.columns",
    "FROM _catalog.main.tables",
    "FROM duckdb_views()",
)
NAMES = (*TABLES, *VIEWS, "Planes", "nowhere")
#: The engine's names for snapshots, as qualifiers of functions.
QUALIFIED = tuple(f"SELECT {_attachment(name)}.abs(1)" for name in NAMES)
WRITTEN = tuple(dict.fromkeys(form.replace("{}", name) for form in FORMS for name in NAMES)) + LISTS + QUALIFIED
REST = tuple(dict.fromkeys((*READS, *FAILING, *(sql for _, sql in REFUSED))))

Engines = tuple[QueryEngine, dict[str, QueryEngine]]


#: All statements run where the answers are made; the workers get a share of them.
WHOLE = pytest.mark.parametrize(
    "engines", [pytest.param("in process", marks=pytest.mark.exhaustive)], indirect=True, scope="module"
)


@pytest.fixture(scope="module", params=["workers"])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """An engine over everything, and one over each scope."""
    start = KINDS[request.param]
    with ExitStack() as running:

        def engine(scope: frozenset[str]) -> QueryEngine:
            publisher = Publisher(tmp_path_factory.mktemp("scope") / "state")
            publisher.publish(**{name: sql for name, sql in TABLES.items() if name in scope})
            datasets = tuple(name for name in TABLES if name in scope)
            views = {name: sql for name, sql in VIEWS.items() if name in scope}
            return running.enter_context(start(config_of(publisher.state_dir, datasets, views)))

        yield engine(frozenset({*TABLES, *VIEWS})), {name: engine(scope) for name, scope in SCOPES.items()}


def outcome(engine: QueryEngine, sql: str, scope: frozenset[str] | None, encoding: Encoding = "json") -> object:
    within = None if scope is None else Scope(relations=scope)
    try:
        with closing(engine.run(Query(sql=sql, scope=within, encoding=encoding))) as result:
            return b"".join(result)
    except QueryError as error:
        return type(error), str(error)


def assert_alike(engines: Engines, scope: str, sql: str, encoding: Encoding = "json") -> None:
    everything, within = engines[0], engines[1][scope]
    answers: list[object] = []
    expected: list[object] = []
    while not any(answer in expected for answer in answers):
        if len(answers) == 20:  # Some statements fix neither the order of their rows nor the time.
            assert isinstance(answers[0], bytes), (sql, answers[0], expected[0])
            assert len(set(expected)) > 1, (sql, answers[0], expected[0])
            return
        answers.append(outcome(everything, sql, SCOPES[scope], encoding))
        expected.append(outcome(within, sql, None, encoding))


def is_comparable(sql: str, scope: str) -> bool:
    """Say whether *sql* shows no plan: with a view in its scope, a key has a database of its own, with copies."""
    return not sql.startswith("EXPLAIN") or SCOPES[scope].isdisjoint(VIEWS)


def share_of(statements: Sequence[str], scopes: Iterable[str], scope: str) -> Sequence[str]:
    """Return every n-th of *statements*, so that all *scopes* together have each once."""
    names = list(scopes)
    return statements[names.index(scope) :: len(names)]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_share_of_the_ways_to_name_a_relation(engines: Engines, scope: str) -> None:
    for sql in share_of(WRITTEN, SCOPES, scope):
        if is_comparable(sql, scope):
            assert_alike(engines, scope, sql)


@WHOLE
@pytest.mark.parametrize("scope", SCOPES)
def test_every_way_to_name_a_relation(engines: Engines, scope: str) -> None:
    for sql in WRITTEN:
        if is_comparable(sql, scope):
            assert_alike(engines, scope, sql)


@WHOLE
@pytest.mark.parametrize("scope", SCOPES)
def test_every_format(engines: Engines, scope: str) -> None:
    formats: tuple[Encoding, ...] = ("csv", "arrow", "flight")
    for sql, encoding in zip(WRITTEN, cycle(formats), strict=False):
        if is_comparable(sql, scope):
            assert_alike(engines, scope, sql, encoding)


@WHOLE
@pytest.mark.parametrize("scope", SCOPES)
def test_every_statement_of_the_other_tests(engines: Engines, scope: str) -> None:
    for sql in REST:
        if is_comparable(sql, scope):
            assert_alike(engines, scope, sql)


def test_a_scope_of_nothing_that_is_declared_sees_nothing(engines: Engines) -> None:
    assert outcome(engines[0], "SHOW TABLES", frozenset({"nowhere"})) == b"[]"


# What a view leaves out.


def test_a_plain_view_keeps_a_callers_expression_off_the_rows_that_it_leaves_out_for_a_key_with_a_scope(
    publisher: Publisher, start_engine: StartEngine
) -> None:
    publisher.publish(
        people="SELECT * FROM (VALUES (1, '17'), (2, 'secret of 2')) t(tenant, note)", others="SELECT 2 AS tenant"
    )
    engine = start_engine(("people", "others"), {"notes": "SELECT note FROM people ANTI JOIN others USING (tenant)"})
    sql = "SELECT note FROM notes WHERE note::INTEGER = 17"

    with pytest.raises(SqlError, match="secret of 2"):
        rows(engine, sql)
    assert outcome(engine, sql, frozenset({"notes"})) == b'[{"note":"17"}]'


PAY = "SELECT hash(i) % 100 AS salary, 'n' || i AS name FROM range(100) t(i)"
BY_NAME = [{"name": name} for name in sorted(f"n{i}" for i in range(100))]


@pytest.mark.parametrize(("order", "is_by_name"), [("", True), (" ORDER BY salary", False)])
@pytest.mark.parametrize(
    "rule",
    [
        DatasetRule(dataset="pay", columns=("name",)),
        DatasetRule(dataset="pay", masks=(("salary", "0"),)),
        DatasetRule(dataset="pay", row_filter="true", columns=("name",)),
    ],
)
def test_rows_of_a_materialized_view_without_order_do_not_have_that_of_a_hidden_column(
    tmp_path: Path, rule: DatasetRule, order: str, *, is_by_name: bool
) -> None:
    scope = Scope(relations=frozenset({"pay"}), rules=(rule,))
    publisher = Publisher(tmp_path / "state")
    publisher.publish(staff=PAY)
    view = MaterializedView(sql=f"SELECT salary, name FROM staff{order}")
    config = config_of(publisher.state_dir, ("staff", "pay"))
    config = replace(
        config,
        datasets=(config.datasets[0], replace(config.datasets[1], view=view)),
        auth=replace(config.auth, named_keys=(NamedKey(name="some", scope=scope),)),
    )
    with closing(Gate()) as gate:
        config = with_materialized_views(config, gate)
    assert config.datasets[1].view is not None
    publisher.publish(pay=config.datasets[1].view.sql.replace("staff", f"({PAY})"))
    query = Query(sql="SELECT name FROM pay", scope=scope)
    with KINDS["in process"](config) as engine, closing(engine.run(query)) as result:
        names = json.loads(b"".join(result))

    assert (names == BY_NAME) is is_by_name


@pytest.mark.parametrize("is_shared", [False, True], ids=["a key of this node", "a key of another node"])
def test_rows_of_a_materialized_view_do_not_have_the_order_of_its_source(tmp_path: Path, *, is_shared: bool) -> None:
    scope = Scope(relations=frozenset({"pay"}))
    config = config_of(tmp_path / "state", ("staff", "pay"))
    staff, pay = config.datasets
    config = replace(
        config,
        datasets=(staff, replace(pay, view=MaterializedView(sql="SELECT name FROM staff"))),
        auth=replace(config.auth, named_keys=() if is_shared else (NamedKey(name="some", scope=scope),)),
        snapshots=SnapshotsConfig(location="s3://bucket", role="publisher") if is_shared else None,
    )
    with closing(Gate()) as gate:
        view = with_materialized_views(config, gate).datasets[1].view
    assert view is not None
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE staff AS {PAY} ORDER BY salary")
        names = [{"name": name} for (name,) in connection.sql(view.sql).fetchall()]

    assert names == BY_NAME
