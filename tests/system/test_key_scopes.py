"""
Keys with scopes in a whole runtime: every answer equals that of a runtime which declares nothing but the scope.

The answers of that runtime are the expected ones, errors included, on every protocol and in every format. Both are
asked with the results cache on, the keys with every right first.
"""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.system.harness import K1
from tests.system.scopes import CHANNELS, KEYS, Channel, Key, Runtimes, Scopes, started

SCOPES: Scopes = {"one": ("customers",), "view": ("guests",), "two": ("customers", "Orders")}

#: The notes on orders of customers are for nobody who may see only those of guests.
TABLES = {
    "Orders": """
        SELECT i AS id, 'c' || i % 6 AS customer, i * 7 % 100 AS amount,
          if(i % 6 < 4, 'hidden-' || i, (i * 3)::VARCHAR) AS note FROM range(24) t(i)
    """,
    "customers": "SELECT 'c' || i AS customer, ['Ann', 'Bo', 'Cy', 'Di'][i + 1] AS name FROM range(4) t(i)",
}
GUESTS = "SELECT id, amount, note FROM Orders ANTI JOIN customers USING (customer)"


def declared(directory: Path, name: str, sql: str) -> dict[str, Any]:
    """Write the rows of a dataset, and return its declaration."""
    with duckdb.connect() as connection:
        for other, rows in TABLES.items():
            connection.execute(f"CREATE TABLE {other} AS {rows}")
        connection.execute(f"COPY ({sql}) TO '{directory / name}.parquet' (FORMAT parquet)")
    return {"from": f"file:{name}.parquet", "name": name, "acceleration": {"enabled": True}}


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtimes]:
    cached = {"results_cache": {"enabled": True}, "query": {"workers": 2}}
    views = [{"name": "guests", "sql": GUESTS, "materialized": True}, {"name": "plain", "sql": GUESTS}]

    def changes(name: Key | None, directory: Path) -> dict[str, Any]:
        names = SCOPES[name] if name else tuple(TABLES)
        datasets = [declared(directory, one, TABLES.get(one, GUESTS)) for one in names]
        return {"runtime": cached, "views": [] if name else views, "datasets": datasets}

    with started(SCOPES, changes, lambda: tmp_path_factory.mktemp("scope")) as found:
        yield found


# Statements.

NAMES = st.sampled_from(["Orders", "orders", "CUSTOMERS", "customers", "guests", "plain", "Guests", "nowhere", "order"])
COLUMNS = st.sampled_from(["id", "customer", "amount", "name", "*", "COLUMNS('.*m.*')", "orders.id", "guests.amount"])
QUALIFIERS = st.sampled_from(["", "", "", "main.", "runtime.main.", 'RUNTIME."main".', "runtime.", "memory.main."])
LISTS = ["information_schema.tables", "runtime.information_schema.columns", "(SHOW TABLES)", "(SHOW ALL TABLES)"]


@st.composite
def references(draw: st.DrawFn) -> str:
    """Ways to write a name."""
    name = draw(NAMES)
    return draw(QUALIFIERS) + draw(st.sampled_from([name, f'"{name}"', f"/**/{name}"]))


def relations(queries: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """What may follow FROM."""
    names = references()
    return st.one_of(
        names,
        names,
        st.builds("{} AS a".format, names),
        st.builds("({})".format, queries),
        st.builds("{}, {}".format, names, names),
        st.builds("{} JOIN {} USING (customer)".format, names, names),
        st.builds("{} NATURAL LEFT JOIN {}".format, names, names),
        st.builds("{} AS a SEMI JOIN {} AS b ON a.amount = b.amount".format, names, names),
        st.builds("{} POSITIONAL JOIN {}".format, names, names),
        st.builds("{}, LATERAL ({})".format, names, queries),
        st.builds("(DESCRIBE {})".format, names),
        st.builds("(SUMMARIZE {})".format, names),
        st.builds("(PIVOT {} ON customer IN ('c1') USING count(*))".format, names),
        st.builds("query_table('{}')".format, NAMES),
        st.sampled_from([*LISTS, "(VALUES (1, 'c1')) AS v(id, customer)"]),
    )


def selects(queries: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Queries over relations; each fixes the order of its rows."""
    sources, names = relations(queries), references()
    return st.one_of(
        st.builds("SELECT {} FROM {} ORDER BY ALL".format, COLUMNS, sources),
        st.builds("FROM {} ORDER BY ALL LIMIT 5".format, sources),
        st.builds("SELECT count(*) AS n FROM {}".format, sources),
        st.builds("SELECT ({}) AS n".format, queries),
        st.builds("SELECT 1 AS a WHERE EXISTS ({})".format, queries),
        st.builds("SELECT id FROM {} WHERE customer IN (SELECT customer FROM {}) ORDER BY ALL".format, names, names),
        st.builds("WITH {} AS ({}) SELECT count(*) AS n FROM {}".format, NAMES, queries, sources),
        st.builds("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, {} WHERE n < 3) FROM r "
                  "ORDER BY ALL".format, names),
        st.builds("(SELECT {} FROM {}) UNION (SELECT {} FROM {}) ORDER BY ALL".format, COLUMNS, names, COLUMNS, names),
        st.builds("SELECT customer::INTEGER AS c FROM {} ORDER BY ALL".format, names),
        st.builds("SELECT table_name, column_name FROM information_schema.columns WHERE table_name ILIKE '{}' "
                  "ORDER BY ALL".format, NAMES),
    )  # fmt: skip


QUERIES = st.recursive(st.builds("SELECT count(*) AS n FROM {}".format, references()), selects, max_leaves=4)
STATEMENTS = st.one_of(
    QUERIES,
    selects(QUERIES),
    st.builds("{} {}".format, st.sampled_from(["DESCRIBE", "SHOW", "SUMMARIZE", "TABLE", "DESC"]), references()),
    st.builds("{} {}".format, st.sampled_from(["EXPLAIN", "EXPLAIN (FORMAT json)", "DESCRIBE", "SUMMARIZE"]), QUERIES),
    st.builds("PIVOT {} ON {} USING count(*) ORDER BY ALL".format, references(), COLUMNS),
    st.builds("UNPIVOT {} ON COLUMNS(*) ORDER BY ALL".format, references()),
    st.sampled_from(["SHOW TABLES", "SHOW ALL TABLES", "DESCRIBE", "SHOW TABLES FROM main", "SHOW DATABASES"]),
    st.builds("INSERT INTO {} VALUES (1)".format, references()),
    st.builds("SELECT nextval('{}')".format, NAMES),
)


#: Each asks with six keys: 1,500 cases in `make test-all`, 360 where the file is run by itself.
MATRIX = settings(
    max_examples=60 if settings().max_examples == 20 else 250, suppress_health_check=list(HealthCheck), deadline=None
)


@MATRIX
@given(sql=STATEMENTS, channel=st.sampled_from(CHANNELS))
def test_every_answer_is_that_of_a_runtime_with_the_scope_alone(runtimes: Runtimes, sql: str, channel: Channel) -> None:
    runtimes.compare(sql, channel)


# What a materialized view leaves out.

#: Ways to compute with a note; many fail on one that is no number, with a message that quotes it.
EXPRESSIONS = (
    *(f"note::{kind}" for kind in ("INTEGER", "DATE", "DOUBLE", "UUID", "JSON", "INTEGER[]", "BOOLEAN", "INTERVAL")),
    *(f"note::{kind}" for kind in ("DECIMAL(4,2)", "TIMESTAMPTZ", "STRUCT(a INTEGER)", "HUGEINT", "TIME", "BIT")),
    "error(note)",
    "strptime(note, '%d')",
    "1 // (length(note) - 2)",
    "json_extract(note, '$.a')",
    "regexp_full_match('a', note || '(')",
    "if(note LIKE 'h%', error(note), 1)",
    "chr(note::INTEGER)",
    "make_date(note::INTEGER, 1, 1)",
    "from_hex(note)",
    "TRY_CAST(note AS INTEGER)",
    "list_transform([note], lambda x: x::INTEGER)",
)
PLACES = (
    "SELECT {e} AS e FROM {v} ORDER BY ALL",
    "SELECT id FROM {v} WHERE {e} IS NOT NULL ORDER BY ALL",
    "SELECT id FROM {v} WHERE amount < 50 AND ({e}) IS NULL ORDER BY ALL",
    "SELECT count(*) AS n FROM {v} GROUP BY {e} ORDER BY ALL",
    "SELECT max({e}) AS e FROM {v}",
    "SELECT count({e}) FILTER ({e} IS NOT NULL) AS n FROM {v}",
    "SELECT id FROM {v} ORDER BY {e} IS NULL, id",
    "SELECT a.id FROM {v} AS a JOIN {v} AS b ON a.id = b.id AND (b.{e}) IS NOT NULL ORDER BY ALL",
    "SELECT a.id FROM range(30) t(i) JOIN {v} AS a ON a.id = i AND {e} IS NOT NULL ORDER BY ALL",
    "SELECT id FROM {v} QUALIFY row_number() OVER (PARTITION BY {e} IS NULL ORDER BY id) = 1 ORDER BY ALL",
    "SELECT (SELECT any_value({e}) FROM {v} AS b WHERE b.id = a.id) AS e FROM {v} AS a ORDER BY ALL",
    "WITH m AS MATERIALIZED (SELECT id, {e} AS e FROM {v}) SELECT id FROM m WHERE e IS NOT NULL ORDER BY ALL",
    "SELECT DISTINCT ON ({e} IS NULL) amount FROM {v} ORDER BY ALL",
    "SELECT 1 AS a WHERE EXISTS (SELECT 1 FROM {v} WHERE {e} IS NULL)",
    "SELECT e FROM {v}, LATERAL (SELECT {e} AS e) ORDER BY ALL",
    "SELECT amount FROM {v} WHERE CASE WHEN amount > 0 THEN {e} IS NOT NULL ELSE false END ORDER BY ALL",
    "SUMMARIZE (SELECT {e} AS e FROM {v})",
    "EXPLAIN SELECT id FROM {v} WHERE {e} IS NOT NULL",
    "SELECT list(note ORDER BY id) AS l, histogram({e} IS NULL) AS h FROM {v}",
    "(SELECT {e} IS NULL AS e FROM {v}) EXCEPT (SELECT true) ORDER BY ALL",
)
PROBES = tuple((expression, place) for expression in EXPRESSIONS for place in PLACES)


def written(expression: str, place: str, view: str) -> str:
    """Return a probe. A qualifier before an expression goes to its column."""
    return place.replace("b.{e}", expression.replace("note", "b.note")).format(e=expression, v=view)


def assert_nothing_leaks(runtimes: Runtimes, probes: tuple[tuple[str, str], ...], channels: tuple[Channel, ...]) -> int:
    """
    Ask for what the view leaves out, by one of *channels* after the other.

    Return how many answers of the plain view with the same SQL tell of it.
    """
    told = 0
    for (expression, place), channel in zip(probes, cycle(channels), strict=False):
        sql = written(expression, place, "guests")
        answer = runtimes.whole.answer(channel, sql, KEYS["view"])
        assert "hidden" not in repr(answer), (channel, sql)
        expected = runtimes.scoped["view"].answer(channel, sql, K1)
        # Which of the visible rows an error quotes, and in which call, is up to the engine.
        is_error = "sql_error" in repr(expected)
        assert ("sql_error" in repr(answer)) if is_error else (answer == expected), (channel, sql)
        plain = written(expression, place, "plain")
        told += "hidden" in repr(runtimes.whole.answer("json", plain, K1))
    return told


def test_no_expression_reaches_a_row_that_a_materialized_view_leaves_out(runtimes: Runtimes) -> None:
    assert_nothing_leaks(runtimes, PROBES[::13], ("json",))
    # The engine does not keep these off the rows that a plain view leaves out.
    leaking = tuple(("note::INTEGER", place) for place in PLACES[1:3])
    assert assert_nothing_leaks(runtimes, leaking, ("json",)) == 2
    files = list((runtimes.whole.server.directory / ".runtime" / "snapshots").glob("*guests*"))
    assert files
    assert not any(b"hidden" in file.read_bytes() for file in files)


@pytest.mark.exhaustive
def test_no_expression_reaches_it_on_any_channel(runtimes: Runtimes) -> None:
    probes = PROBES[::2]

    told = assert_nothing_leaks(runtimes, probes, ("json", "csv", "arrow", "flight", "prepared"))

    assert told > len(probes) // 20
