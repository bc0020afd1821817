"""Datasets and views with a dot in their names: in schemas of the catalog, in SQL and for the scopes of keys."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from queryengine.engine import QueryEngine
from queryengine.errors import SqlError, StatementNotAllowedError
from queryengine.pool.inprocess import InProcessEngine
from tests.queryengine.asking import rows
from tests.queryengine.conftest import config_of
from tests.queryengine.publishing import Publisher
from tests.queryengine.test_scopes import FORMS, LISTS, outcome, share_of

ROW = "SELECT i AS id, 'UA' AS carrier FROM range(3) t(i)"
TABLES = dict.fromkeys(("airlines", "flights", "Taxi.Trips", "taxi.zones", "bus.trips"), ROW)
VIEWS = {"bus.late": "SELECT id FROM taxi.trips WHERE id > 1"}
SCOPES = {
    "one of a schema": frozenset({"airlines", "taxi.trips"}),
    "none of a schema": frozenset({"airlines", "flights"}),
    "a view": frozenset({"airlines", "bus.late", "taxi.trips"}),
}
#: How the relations can be written, rightly or wrongly.
WRITTEN = (
    *("taxi.trips", "TAXI.Trips", 'taxi."TRIPS"', "runtime.taxi.trips", "taxi.zones", "bus.trips", "bus.late"),
    *("trips", '"taxi.trips"', 'main."taxi.trips"', "main.trips", "runtime.trips", "taxi.flights", "taxi.nowhere"),
    *("nowhere.trips", "taxi.main.trips", "runtime.main.taxi.trips", '"runtime.taxi".trips', 'taxi."a.trips"', "taxi"),
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, QueryEngine]]:
    """An engine over everything, and one over each scope."""
    with ExitStack() as running:

        def engine(scope: frozenset[str] | None) -> QueryEngine:
            publisher = Publisher(tmp_path_factory.mktemp("schemas") / "state")
            tables = {name: sql for name, sql in TABLES.items() if scope is None or name.lower() in scope}
            views = {name: sql for name, sql in VIEWS.items() if scope is None or name.lower() in scope}
            publisher.publish(**tables)
            config = config_of(publisher.state_dir, tuple(tables), views)
            return running.enter_context(closing(InProcessEngine(config)))

        yield {"": engine(None), **{name: engine(scope) for name, scope in SCOPES.items()}}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT count(*) AS n FROM taxi.trips", [{"n": 3}]),
        ('SELECT count(*) AS n FROM runtime."TAXI".Trips', [{"n": 3}]),
        ("SELECT taxi.trips.id, runtime.taxi.trips.carrier FROM taxi.trips LIMIT 1", [{"id": 0, "carrier": "UA"}]),
        ("SELECT t.id FROM taxi.trips t JOIN bus.trips b USING (id) WHERE t.id = 2", [{"id": 2}]),
        ("FROM bus.late", [{"id": 2}]),
        ("WITH trips AS (SELECT 7 AS id) SELECT a.id FROM trips a, taxi.trips b WHERE b.id = 0", [{"id": 7}]),
        ("SELECT column_name AS c FROM (DESCRIBE taxi.trips) LIMIT 1", [{"c": "id"}]),
        (
            "SHOW SCHEMAS",
            [{"database_name": "runtime", "schema_name": n, "current": n == "main"} for n in ("Taxi", "bus", "main")],
        ),
        *(
            (
                f"SHOW COLUMNS FROM {name}",
                [
                    {"table_catalog": "runtime", "table_schema": schema, "table_name": name.rpartition(".")[2]}
                    | {"column_name": column, "data_type": type_, "is_nullable": "YES"}
                    for column, type_ in (("id", "BIGINT"), ("carrier", "VARCHAR"))
                ],
            )
            for name, schema in (("bus.trips", "bus"), ("runtime.bus.trips", "bus"), ("runtime.flights", "main"))
        ),
        (
            "SELECT table_schema AS s, table_name AS n, table_type AS t FROM information_schema.tables ORDER BY ALL",
            [
                {"s": "Taxi", "n": "Trips", "t": "BASE TABLE"},
                {"s": "Taxi", "n": "zones", "t": "BASE TABLE"},
                {"s": "bus", "n": "late", "t": "VIEW"},
                {"s": "bus", "n": "trips", "t": "BASE TABLE"},
                {"s": "main", "n": "airlines", "t": "BASE TABLE"},
                {"s": "main", "n": "flights", "t": "BASE TABLE"},
            ],
        ),
        (
            "SELECT schema_name AS s FROM information_schema.schemata ORDER BY ALL",
            [{"s": "Taxi"}, {"s": "bus"}, {"s": "main"}],
        ),
        ("SELECT schema AS s, name AS n FROM (SHOW ALL TABLES) WHERE name = 'late'", [{"s": "bus", "n": "late"}]),
    ],
)
def test_a_dataset_is_in_the_schema_before_its_dot(
    engines: dict[str, QueryEngine], sql: str, expected: list[dict[str, object]]
) -> None:
    assert rows(engines[""], sql) == expected


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("trips", SqlError),
        ("taxi.late", SqlError),
        ("main.trips", SqlError),
        ('"taxi.trips"', StatementNotAllowedError),
        ('main."taxi.trips"', StatementNotAllowedError),
        ('"runtime.taxi".trips', SqlError),
        ("taxi.main.trips", SqlError),
    ],
)
def test_it_is_found_nowhere_else(engines: dict[str, QueryEngine], name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        rows(engines[""], f"FROM {name}")


@pytest.mark.parametrize("share", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("scope", SCOPES)
def test_outside_its_scope_a_key_finds_neither_tables_nor_schemas(
    engines: dict[str, QueryEngine], scope: str, *, share: bool
) -> None:
    forms = [form for form in FORMS if "SAMPLE" not in form and "WITH {}" not in form and "{} AS (" not in form]
    statements = list(dict.fromkeys(form.replace("{}", name) for form in forms for name in WRITTEN))
    asked = share_of(statements, SCOPES, scope) if share else statements

    for sql in (*asked, *LISTS, "SHOW TABLES FROM taxi", "SHOW TABLES FROM runtime.taxi"):
        # A plan of a key with a view in its scope shows the copies in the key's own database.
        if not sql.startswith("EXPLAIN") or "bus.late" not in SCOPES[scope]:
            assert outcome(engines[""], sql, SCOPES[scope]) == outcome(engines[scope], sql, None), sql


def test_a_file_with_such_a_name_is_not_read(engines: dict[str, QueryEngine], tmp_path: Path) -> None:
    (tmp_path / "taxi.csv").write_text("a\n1\n")

    with pytest.raises(StatementNotAllowedError):
        rows(engines[""], f"FROM '{tmp_path}/taxi.csv'")
