import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest

from queryengine.engine import GatedStatement
from queryengine.errors import (
    EmptyStatementError,
    EngineUnavailableError,
    ParameterError,
    QueryError,
    SqlError,
    SqlSyntaxError,
    StatementError,
    StatementNotAllowedError,
)
from queryengine.gate.functions import CALLED_BY_NAME, NONDETERMINISTIC
from queryengine.gate.gate import Gate
from queryengine.gate.parse_tree import catalog_schema
from queryengine.pool.inprocess import InProcessEngine
from tests.corpus import each
from tests.queryengine.asking import rows
from tests.queryengine.conftest import MakeEngine
from tests.queryengine.publishing import Publisher
from tests.queryengine.statements import DECLARED, READS, REFUSED, TABLES, VIEWS, lines


@pytest.fixture
def engine(publisher: Publisher, make_engine: MakeEngine) -> InProcessEngine:
    publisher.publish(**TABLES)
    return make_engine(tuple(TABLES), views=VIEWS)


def admit(gate: Gate, sql: str) -> GatedStatement:
    return gate.admit(sql, DECLARED)


@each("sql", READS)
def test_statements_that_read_are_admitted(gate: Gate, sql: str) -> None:
    statement = admit(gate, sql)

    assert statement.relations <= DECLARED
    assert not statement.sql.endswith(";")


@each(("check", "sql"), REFUSED)
def test_statements_that_do_more_than_read_are_refused_with_a_sentence(gate: Gate, check: str, sql: str) -> None:
    with pytest.raises((StatementNotAllowedError, SqlSyntaxError, SqlError)) as raised:
        admit(gate, sql)

    assert check
    assert str(raised.value).endswith((".", "?"))
    assert "v2." not in str(raised.value)


def test_no_engine_table_can_be_read_by_name(gate: Gate) -> None:
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT DISTINCT schema_name, view_name FROM duckdb_views() WHERE internal"
            " UNION SELECT DISTINCT schema_name, table_name FROM duckdb_tables()"
        ).fetchall()
    assert len(found) > 40

    passed = set()
    for schema, name in found:
        for written in (name, f"{schema}.{name}", f"system.{schema}.{name}", f"runtime.{schema}.{name}"):
            with contextlib.suppress(StatementError):
                passed.add(admit(gate, f"FROM {written}").sql)

    assert passed == {f"FROM _catalog.{catalog_schema(DECLARED)}.{name}" for name in ("tables", "columns", "schemata")}


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", lines("subqueries.txt"))
def test_s24_a_common_table_expression_hides_a_table_of_the_engine_for_both(
    gate: Gate, engine: InProcessEngine, place: str
) -> None:
    query = "(SELECT max(zz) AS zz FROM duckdb_schemas)"  # a view of the engine as well

    with pytest.raises(StatementNotAllowedError, match="it belongs to the engine"):
        admit(gate, place.format(query, query))
    if place.startswith(("SUMMARIZE", "DESCRIBE")):
        sql = f"SELECT * FROM (WITH duckdb_schemas AS (SELECT 7 AS zz) FROM ({place.format(query)}))"
    elif place.startswith("WITH "):
        sql = f"WITH duckdb_schemas AS (SELECT 7 AS zz), {place.format(query)[5:]}"
    else:
        sql = f"WITH duckdb_schemas AS (SELECT 7 AS zz) {place.format(query, query)}"
    rows(engine, sql)  # The engine's own view has no column zz: this would fail if it were read.


@each(
    ("sql", "relations", "parameters"),
    [
        ("SELECT 1", set(), set()),
        ("SELECT " + ", ".join(["list_transform([1], lambda x: x)"] * 9), set(), set()),
        ("SELECT * FROM Flights f JOIN runtime.AIRLINES USING (carrier)", {"flights", "airlines"}, set()),
        ("WITH planes AS (FROM flights) FROM planes", {"flights"}, set()),  # hidden by the CTE
        ("WITH planes AS (FROM planes) FROM planes", {"planes"}, set()),  # inside the CTE that hides it
        ("DESCRIBE delays", {"delays"}, set()),
        ("SHOW flights", {"flights"}, set()),
        ("EXPLAIN FROM flights", {"flights"}, set()),
        ("PIVOT flights ON carrier USING count(*)", {"flights"}, set()),
        ("WITH planes AS (SELECT 1 AS id) PIVOT planes ON id", set(), set()),
        ("WITH planes AS (SELECT 1 AS id), a AS (PIVOT planes ON id) FROM a", {"planes"}, set()),  # its columns
        ("WITH planes AS (SELECT 1 AS id) FROM (WITH a AS (FROM planes) PIVOT a ON id)", {"planes"}, set()),
        (
            "WITH planes AS (SELECT 1), a AS (WITH b AS (FROM planes) FROM b, (PIVOT flights ON id)) FROM a",
            {"flights"},
            set(),
        ),
        ("SELECT 'flights', flights.x FROM (SELECT 1 AS x) flights", set(), set()),
        ("SELECT ?, ?", set(), {"1", "2"}),
        ("SELECT $2, $1, $1", set(), {"1", "2"}),
        ("SELECT $name, $other FROM flights WHERE id = $name", {"flights"}, {"name", "other"}),
        ("EXPLAIN SELECT $x", set(), {"x"}),
        ("EXPLAIN SELECT :x", set(), {"x"}),
        ("PIVOT flights ON carrier USING sum(id + :x)", {"flights"}, {"x"}),
        ("PIVOT flights ON carrier USING sum(id + $x)", {"flights"}, {"x"}),
        ('SELECT \'$1\', "$2" FROM (SELECT 1 AS "$2")', set(), set()),
    ],
)
def test_what_a_statement_reads_and_takes(gate: Gate, sql: str, relations: set[str], parameters: set[str]) -> None:
    statement = admit(gate, sql)

    assert (set(statement.relations), set(statement.parameters)) == (relations, parameters)


@each("sql", ["", "  \n", ";;;", " ; ; ", "-- only a comment", "/* c */ ; /* d */", "\u00a0", "\ufeff;"])
def test_s23_blank_text_is_an_empty_statement(gate: Gate, sql: str) -> None:
    with pytest.raises(EmptyStatementError, match="empty"):
        admit(gate, sql)


@each(
    ("sql", "kind", "text"),
    [
        ("  SELECT 1 ; -- c", "select", "SELECT 1"),
        ("/* c */ SELECT ';' ;;", "select", "SELECT ';'"),
        ("explain analyze SELECT 1;", "explain", "EXPLAIN (ANALYZE)\nSELECT 1"),
        ("EXPLAIN (analyze ON, format 'JSON') SELECT 1", "explain", "EXPLAIN (ANALYZE, FORMAT json)\nSELECT 1"),
        ("EXPLAIN (ANALYZE false) SELECT 1", "explain", "EXPLAIN\nSELECT 1"),
        ("EXPLAIN (ANALYZE 0, FORMAT yaml)(SELECT 1)", "explain", "EXPLAIN (FORMAT yaml)\n(SELECT 1)"),
        ("EXPLAIN\n(SELECT 1)", "explain", "EXPLAIN\n(SELECT 1)"),
        ("PIVOT flights ON carrier", "pivot", "PIVOT flights ON carrier"),
        ("SHOW DATABASES", "show", "SELECT 'runtime' AS database_name"),
        ("SELECT\u00a01", "select", "SELECT 1"),
    ],
)
def test_the_text_to_run_is_one_statement_and_nothing_else(gate: Gate, sql: str, kind: str, text: str) -> None:
    statement = admit(gate, sql)

    assert (statement.kind, statement.sql) == (kind, text)


@each(
    ("sql", "error", "message"),
    [
        ("\n  SELEC 1", SqlSyntaxError, r'Syntax error at or near "SELEC" \(line 2, column 3\)\.'),
        ("EXPLAIN ANALYZE\n SELECT FROM", SqlSyntaxError, r'near "FROM" \(line 2, column 9\)'),
        ("SELECT 'ä', 1 1", SqlSyntaxError, r"line 1, column 15"),
        ("SELECT " + "a" * 2000 + " b c", SqlSyntaxError, r"near \"c\""),
        ("SELECT 1 " + "x" * 400 + " " + "y" * 400, SqlSyntaxError, "y…"),
        ("CREATE TABLE x AS PIVOT flights ON id", StatementNotAllowedError, "^CREATE statements are not allowed"),
        ("PIVOT flights ON (id, carrier AS c)", SqlSyntaxError, "near"),
        ("PIVOT flights ON lambda a, b: a", StatementNotAllowedError, "This form of PIVOT"),
        (
            "WITH a AS (SELECT 1 AS id) (WITH a AS (FROM nowhere) (PIVOT flights ON id))",
            StatementNotAllowedError,
            r"^WITH a AS .* is not allowed together with a PIVOT",
        ),
        ("SELECT $x, ?", ParameterError, "cannot mix named parameters"),
        ("EXPLAIN", SqlSyntaxError, "followed by the query"),
        ("EXPLAIN ANALYZE", SqlSyntaxError, "followed by the query"),
        ("EXPLAIN (FORMAT x) SELECT 1", SqlSyntaxError, "accepts only the options"),
        ("EXPLAIN (ANALYZE maybe) SELECT 1", SqlSyntaxError, "accepts only the options"),
        ("EXPLAIN (FORMAT) SELECT 1", SqlSyntaxError, "accepts only the options"),
        ("EXPLAIN (ANALYZE,) SELECT 1", SqlSyntaxError, "accepts only the options"),
        ("INSERT INTO flights VALUES (1)", StatementNotAllowedError, "^INSERT statements are not allowed"),
        ("with a as (select 1) delete from flights", StatementNotAllowedError, "^DELETE statements are not allowed"),
        ("WITH x AS (COPY flights TO 'x') SELECT 1", StatementNotAllowedError, "^COPY statements are not allowed"),
        ("FROM read_csv('x')", StatementNotAllowedError, "^Function 'read_csv' is not allowed: it reads files"),
        ("SELECT range(1) OVER ()", SqlError, "not a window function"),
        ("FROM Fligths", SqlError, r"^Table 'Fligths' does not exist. Did you mean 'flights'\?"),
        ("FROM zzz", SqlError, "^Table 'zzz' does not exist.$"),
        ("FROM x.flights", SqlError, "write it alone"),
        ("WITH zzz AS (SELECT 1) FROM main.zzz", SqlError, "'main.zzz' does not exist"),
        ("WITH zzz AS (SELECT 1) FROM runtime.main.zzz", SqlError, "'runtime.main.zzz' does not exist"),
        ("EXPLAIN EXPLAIN SELECT 1", StatementNotAllowedError, "^EXPLAIN of an EXPLAIN is not allowed"),
        ("FROM flights, flights.codes", SqlError, r"use unnest\(...\)"),
        ("FROM '" + "x" * 200 + "'", SqlError, "x…' does not exist"),
        ("FROM 'a.csv'", StatementNotAllowedError, "files cannot be read"),
        ("SHOW threads", SqlError, "Table 'threads' does not exist"),
        ("SHOW VARIABLES", StatementNotAllowedError, "SHOW accepts"),
        ("SELECT * FROM (SHOW DATABASES)", StatementNotAllowedError, "SHOW accepts"),
        ("SELECT 1::main.integer", StatementNotAllowedError, "without a schema"),
        ("SELECT sum(1) EXPORT_STATE", StatementNotAllowedError, "EXPORT_STATE"),
        ("SELECT codes.list_aggregate('sum_no_overflow') FROM flights", StatementNotAllowedError, "sum_no_overflow"),
        ("SELECT codes.list_aggr('reservoir_quantile', 0.5) FROM flights", StatementNotAllowedError, "takes a sample"),
        ("SELECT flights.codes.list_aggr(carrier) FROM flights", StatementNotAllowedError, "string literal"),
        ("FROM flights AT (VERSION => 1)", StatementNotAllowedError, "no history"),
        ("PIVOT flights ON nosuch(carrier) USING count(*)", SqlError, "Function 'nosuch' does not exist"),
        ("PIVOT flights ON carrier USING count(*) 1", SqlSyntaxError, 'near "1"'),
    ],
)
def test_messages_name_the_cause(gate: Gate, sql: str, error: type[QueryError], message: str) -> None:
    with pytest.raises(error, match=message):
        admit(gate, sql)


@each(
    ("sql", "plain"),
    [
        ("SELECT 1", True),
        ("SELECT sum(id), $1 FROM flights f JOIN airlines USING (carrier) WHERE f.id IN (SELECT 2) ORDER BY 1", True),
        ("SELECT age, f.now FROM (SELECT 1 AS age, 2 AS now) f", True),
        ("SELECT random()", False),
        ("SELECT list_transform([1], lambda x: SETSEED(x))", False),
        ("SELECT 1 FROM flights WHERE id > (SELECT random())", False),
        ("SELECT sum(random()) OVER () FROM flights", False),
        ('SELECT 1 FROM (SELECT "UUID"())', False),
        ("SELECT (0.5).setseed()", False),
        ("SELECT now()", False),
        ("SELECT Current_Timestamp", False),
        ("SELECT Current_Timestamp.epoch()", False),
        ("SELECT list_transform([1], lambda x: current_date.year()) FROM flights", False),
        ("SELECT carrier.lower(), main.upper(carrier), codes.list_aggregate('sum') FROM flights", True),
        ("SELECT age(day) FROM flights", False),
        ("SELECT ago(INTERVAL 1 DAY)", False),
        ("SELECT TIMETZ '12:00:00+00' AT TIME ZONE 'Europe/London'", False),
        ("FROM flights USING SAMPLE 10", False),
        ("SELECT 1 FROM flights TABLESAMPLE 10%", False),
        ("FROM pg_timezone_names()", False),
        ("FROM information_schema.tables", False),
        ("SHOW TABLES", False),
        ("SHOW DATABASES", False),
        ("DESCRIBE flights", False),
        ("SUMMARIZE flights", False),
        ("SELECT 1 FROM (DESCRIBE flights)", False),
        ("EXPLAIN SELECT 1", False),
        ("EXPLAIN ANALYZE SELECT 1", False),
        ("PIVOT flights ON carrier", False),
        ("WITH a AS (SELECT current_user) SELECT 1", False),
    ],
)
def test_a_deterministic_query_depends_on_data_alone(gate: Gate, sql: str, plain: bool) -> None:
    assert admit(gate, sql).deterministic is plain


@each("name", sorted(NONDETERMINISTIC))
def test_no_call_of_a_nondeterministic_function_is_deterministic(gate: Gate, name: str) -> None:
    found = []
    for sql in (f"SELECT {name}(id) FROM flights", f"FROM {name}()", *[f"SELECT {name}"] * (name in CALLED_BY_NAME)):
        with contextlib.suppress(SqlError, SqlSyntaxError):
            found.append(admit(gate, sql).deterministic)

    assert set(found) == {False}


def test_a_closed_gate_refuses_statements() -> None:
    gate = Gate()
    gate.admit("SELECT 1", frozenset())
    gate.close()

    assert gate.admit("SELECT 1", frozenset()).sql == "SELECT 1"
    with pytest.raises(EngineUnavailableError):
        gate.admit("SELECT 'x'", frozenset())


@pytest.mark.parametrize("sql", ["FROM flights", "FROM flights LIMIT {}"], ids=["by text", "by fingerprint"])
def test_a_verdict_is_for_the_relations_it_was_given_for(gate: Gate, sql: str) -> None:
    assert gate.admit(sql.format(1), frozenset({"flights"})).relations == {"flights"}
    with pytest.raises(SqlError, match="does not exist"):
        gate.admit(sql.format(2), frozenset({"airlines"}))


_OPENINGS = {
    "brackets": ("(", ")"),
    "subqueries": ("(SELECT ", ")"),
    "tables": ("(SELECT (FROM ", "))"),
    "functions": ("abs(", ")"),
    "CASE": ("CASE WHEN true THEN ", " END"),
    "NOT": ("NOT ", ""),
    "minus": ("- ", ""),
    "other operators": ("@ ", ""),
    "lists": ("[", "]"),
    "structs": ("{a: ", "}"),
    "casts": ("CAST(", " AS INTEGER)"),
    "lambdas": ("list_transform([1], lambda x: ", ")"),
    "common table expressions": ("(WITH a AS (SELECT 1) SELECT ", ")"),
    "bodies": ("(WITH a AS (SELECT ", ") SELECT 1)"),
    "failing bodies": ("(WITH a AS (", ") SELECT 1)"),
    "unbalanced": ("(", ""),
}


@pytest.mark.parametrize("levels", [200, 600, 1500, 5000, 50_000])
@pytest.mark.parametrize("shape", [*_OPENINGS, "types", "explained"])
def test_l05_nesting_is_admitted_or_refused_at_once(gate: Gate, shape: str, levels: int) -> None:
    if shape == "types":
        sql = "SELECT NULL::INTEGER" + "[]" * levels
    elif shape == "explained":
        sql = "DESCRIBE " * levels + "SELECT 1"
    else:
        opening, closing = _OPENINGS[shape]
        sql = "SELECT " + opening * levels + "1" + closing * levels

    started = time.thread_time()
    try:
        admit(gate, sql)
    except SqlSyntaxError as exc:
        assert any(word in str(exc) for word in ("deep", "row", "long", "brackets"))  # noqa: PT017 - or it is admitted
    else:
        assert levels <= 200 or shape in ("NOT", "minus", "CASE", "types")
    assert time.thread_time() - started < 30


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("sql", "passes"),
    [
        pytest.param("SELECT 1" + "+1" * 900, True, id="1+1 900 times"),
        pytest.param("SELECT 1" + "+1" * 10_000, False, id="L06 1+1 10,000 times"),
        pytest.param("SELECT 1" + "+1" * 100_000, False, id="L06 1+1 100,000 times"),
        pytest.param("SELECT true" + " OR true" * 20_000, True, id="L06 OR 20,000 times"),
        pytest.param("SELECT 1" + " UNION ALL SELECT 1" * 3000, True, id="L06 UNION ALL 3,000 times"),
        pytest.param("SELECT 'a'" + "||'a'" * 300, True, id="|| 300 times"),
        pytest.param("SELECT 1 IN (0" + ", 1" * 20_000 + ")", True, id="IN with 20,000 values"),
        pytest.param("SELECT 1" + "::INTEGER" * 2000, False, id="casts 2,000 times"),
        pytest.param("SELECT 1 FROM range(1)" + " JOIN range(1) ON true" * 4000, False, id="JOIN 4,000 times"),
        pytest.param(
            "WITH a0 AS (SELECT 1)" + "".join(f", a{i + 1} AS (FROM a{i})" for i in range(3000)) + " FROM a9",
            True,
            id="3,000 common table expressions",
        ),
    ],
)
def test_flat_chains_are_admitted_or_refused_at_once(gate: Gate, sql: str, passes: bool) -> None:
    started = time.thread_time()
    if passes:
        admit(gate, sql)
    else:
        with pytest.raises(SqlSyntaxError, match=r"deep|long"):
            admit(gate, sql)
    assert time.thread_time() - started < 30


def test_threads_share_a_gate(gate: Gate) -> None:
    def work(number: int) -> None:
        for turn in range(20):
            sql = f"SELECT {number} + {turn} AS b{turn % 7} FROM flights"
            statement = admit(gate, sql)
            assert statement.sql == sql
            assert statement.relations == {"flights"}
            with pytest.raises(StatementNotAllowedError):
                admit(gate, f"SELECT {turn} FROM read_csv('{number}')")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
