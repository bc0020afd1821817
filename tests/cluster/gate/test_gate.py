import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.gate.gate import SparkGate
from cluster.gate.text import with_markers_replaced
from queryengine.errors import (
    EmptyStatementError,
    ParameterError,
    QueryError,
    SqlError,
    SqlSyntaxError,
    StatementError,
    StatementNotAllowedError,
)
from tests.cluster.clusters import ClusterEngine
from tests.cluster.gate.statements import DECLARED, harmless, hostile

HOSTILE = hostile()


def text_of(gate: SparkGate, sql: str) -> str:
    """Return the text for the cluster, with <name> for a relation."""
    return with_markers_replaced(gate.admit(sql, DECLARED).sql, lambda kind, name: f"<{name or kind}>")


@pytest.mark.parametrize(("theme", "sql"), HOSTILE)
def test_hostile_statements_are_refused_with_a_sentence(gate: SparkGate, theme: str, sql: str) -> None:
    with pytest.raises((StatementNotAllowedError, SqlSyntaxError, SqlError, ParameterError)) as raised:
        gate.admit(sql, DECLARED)

    assert theme
    assert str(raised.value).endswith(".")


def test_there_are_enough_hostile_statements() -> None:
    assert len({sql for _, sql in HOSTILE}) > 450


def test_what_only_looks_hostile_means_to_the_cluster_what_it_means_to_the_gate(engine: ClusterEngine) -> None:
    answers = harmless()

    assert len(answers) > 40
    assert [(sql, engine.run(sql, relations={"flights"}).decode()) for sql, _ in answers] == answers


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT id FROM flights", "SELECT `id` FROM <flights> AS `flights`"),
        ("SELECT f.id FROM Main.FLIGHTS f", "SELECT `f`.`id` FROM <flights> AS `f`"),
        ("FROM flights", "SELECT * FROM <flights> AS `flights`"),
        ("SELECT 'it''s' -- c", r"SELECT 'it\u0027s'"),
        ("SELECT 1 AS `a b`;", "SELECT 1 AS `a b`"),
        (
            "SELECT * FROM few TABLESAMPLE (5 PERCENT) REPEATABLE (7)",
            "SELECT * FROM <few> TABLESAMPLE (5 PERCENT) REPEATABLE (7) AS `few`",
        ),
        ("SELECT /*+ COALESCE(1) */ Upper(x) FROM few", "SELECT upper(`x`) FROM <few> AS `few`"),
        (
            "WITH few AS (SELECT * FROM few) SELECT few.id FROM few",
            "WITH `_cte_1` AS (SELECT * FROM <few> AS `few`) SELECT `few`.`id` FROM `_cte_1` AS `few`",
        ),
        (
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n FROM r) SELECT 1",
            "WITH RECURSIVE `_cte_1`(`n`) AS (SELECT 1 UNION SELECT `n` FROM `_cte_1` AS `r`) SELECT 1",
        ),
        ("SELECT * FROM information_schema.tables", "SELECT * FROM <tables> AS `tables`"),
        ("SHOW TABLES", "SELECT * FROM <shown_tables>"),
        ("show tables in runtime.main;", "SELECT * FROM <shown_tables>"),
        ("SHOW COLUMNS IN main.flights", "SELECT * FROM <flights>"),
        ("DESC TABLE flights", "SELECT * FROM <flights>"),
        ("SHOW DATABASES", "SELECT 'main' AS `namespace`"),
        ("explain formatted SELECT 1", "EXPLAIN FORMATTED SELECT 1"),
        ("EXPLAIN (SELECT 1)", "EXPLAIN (SELECT 1)"),
        ("VALUES (1, 'a')", "VALUES (1, 'a')"),
        ("SELECT :x_1, $y FROM flights", "SELECT :_x_1, :_y FROM <flights> AS `flights`"),
        ("SELECT ? LIMIT ? OFFSET ?", "SELECT :_1 LIMIT :_2 OFFSET :_3"),
        ("SELECT $2, $1", "SELECT :_2, :_1"),
    ],
)
def test_the_text_for_the_cluster_has_no_name_of_a_table_that_the_caller_wrote(
    gate: SparkGate, sql: str, text: str
) -> None:
    assert text_of(gate, sql) == text


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT 1", ("select", set(), set(), None)),
        ("SELECT * FROM flights f JOIN few g ON f.id = g.id AND f.id = ?", ("select", {"flights", "few"}, {"1"}, None)),
        ("WITH few AS (SELECT 1 AS x) SELECT x, :name FROM few", ("select", set(), {"name"}, None)),
        ("EXPLAIN SELECT * FROM few", ("explain", {"few"}, set(), None)),
        ("DESCRIBE flights", ("show", {"flights"}, set(), None)),
        ("SHOW TABLES", ("show", set(), set(), DECLARED)),
        ("SELECT * FROM information_schema.columns, few", ("select", {"few"}, set(), DECLARED)),
    ],
)
def test_what_a_statement_reads_and_takes(gate: SparkGate, sql: str, found: tuple[object, ...]) -> None:
    statement = gate.admit(sql, DECLARED)

    assert (statement.kind, statement.relations, statement.parameters, statement.catalog) == found


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT t.id FROM taxi.trips AS t", None),
        ("SELECT taxi.trips.id, runtime.taxi.trips.id FROM runtime.TAXI.Trips", None),
        ("SELECT * FROM trips", "Table 'trips' does not exist."),
        ("SELECT * FROM main.trips", "Table 'main.trips' does not exist."),
        ("SELECT * FROM `taxi.trips`", "Table 'taxi.trips' is not allowed: files cannot be read, "),
        ("SELECT * FROM other.taxi.trips", "Table 'other.taxi.trips' does not exist."),
        ("SELECT * FROM taxi.flights", "Table 'taxi.flights' does not exist."),
        ("DESCRIBE trips", "Table 'trips' does not exist."),
    ],
)
def test_a_name_with_a_dot_is_found_in_its_schema_alone(gate: SparkGate, sql: str, error: str | None) -> None:
    declared = frozenset({"flights", "taxi.trips"})
    if error is None:
        assert gate.admit(sql, declared).relations == {"taxi.trips"}
        assert "taxi" not in with_markers_replaced(gate.admit(sql, declared).sql, lambda _kind, _name: "x")
        return
    with pytest.raises(StatementError, match=f"^{re.escape(error)}"):
        gate.admit(sql, declared)


@pytest.mark.parametrize("sql", ["", "  \n", ";;;", "-- only a comment", "/* c */ ;"])
def test_blank_text_is_an_empty_statement(gate: SparkGate, sql: str) -> None:
    with pytest.raises(EmptyStatementError, match="empty"):
        gate.admit(sql, DECLARED)


@pytest.mark.parametrize(
    ("sql", "error", "message"),
    [
        ("\n  SELEC 1", SqlSyntaxError, r'^Syntax error at or near "SELEC" \(line 2, column 3\)\.$'),
        ("EXPLAIN\nSELECT 1 1", SqlSyntaxError, r'near "1" \(line 2'),
        ("SELECT id+\n FROM u", SqlSyntaxError, r'near "FROM" \(line 2, column 2\)'),
        ("SELECT 'a", SqlSyntaxError, "not closed"),
        ("SELECT 1\0", SqlSyntaxError, "NUL"),
        ("SELECT '\ud800'", SqlSyntaxError, "surrogate"),
        ("SELECT * FROM hidden", SqlError, "^Table 'hidden' does not exist.$"),
        ("SELECT * FROM nowhere", SqlError, "^Table 'nowhere' does not exist.$"),
        ("SELECT * FROM x.flights", SqlError, "^Table 'x.flights' does not exist.$"),
        ("SELECT * FROM " + "x" * 200, SqlError, "x…' does not exist"),
        ("SELECT * FROM text.`/x`", StatementNotAllowedError, "^Table 'text./x' is not allowed: files cannot be read"),
        ("SELECT * FROM information_schema.views", StatementNotAllowedError, "tables, columns and schemata"),
        ("SELECT reflect('a', 'b')", StatementNotAllowedError, "^Function 'reflect' is not allowed: it calls any"),
        ("SELECT nosuch(1)", SqlError, "^Function 'nosuch' does not exist.$"),
        ("SELECT make_array(1)", SqlError, "^Function 'make_array' does not exist.$"),  # a macro of DuckDB
        ("SELECT range(3)", SqlError, "returns a table: call it after FROM"),
        ("SELECT * FROM upper('a')", SqlError, "returns a value, not a table"),
        (
            "INSERT INTO flights VALUES (1)",
            StatementNotAllowedError,
            "^INSERT statements are not allowed: this endpoin",
        ),
        ("WITH a AS (SELECT 1) INSERT INTO b SELECT 1", StatementNotAllowedError, "^INSERT statements are not allowed"),
        ("WITH a AS (DELETE FROM b) SELECT 1", StatementNotAllowedError, "^DELETE statements .* even in a WITH"),
        ("FROM a INSERT INTO b SELECT 1 INSERT INTO c SELECT 2", StatementNotAllowedError, "^This statement is not"),
        ("TABLE flights", StatementNotAllowedError, r"write SELECT \* FROM name"),
        ("SELECT 1; SELECT 2", StatementNotAllowedError, "Only one statement"),
        ("SHOW FUNCTIONS", StatementNotAllowedError, "SHOW accepts"),
        ("DESCRIBE EXTENDED flights", StatementNotAllowedError, "DESCRIBE accepts"),
        ("EXPLAIN", SqlSyntaxError, "followed by the query"),
        ("EXPLAIN ANALYZE SELECT 1", SqlSyntaxError, "EXTENDED, FORMATTED and COST"),
        ("SELECT $x, ?", ParameterError, "cannot mix named parameters"),
        ("SELECT :`a b`", SqlSyntaxError, "A parameter must be"),
        ("SELECT CAST(1 AS JSONB)", SqlError, "^Type 'JSONB' does not exist"),
        ("SELECT X'0'", SqlSyntaxError, "hexadecimal"),
        ("SELECT 1 AS `a``b`", SqlSyntaxError, "backtick"),
        ("SELECT a FROM flights AS f TABLESAMPLE (1 ROWS)", StatementNotAllowedError, "not allowed here"),
    ],
)
def test_messages_name_the_cause(gate: SparkGate, sql: str, error: type[QueryError], message: str) -> None:
    with pytest.raises(error, match=message):
        gate.admit(sql, DECLARED)


@pytest.mark.parametrize(
    ("sql", "plain"),
    [
        ("SELECT sum(id), $1 FROM flights WHERE id IN (SELECT 2) ORDER BY 1", True),
        ("SELECT rand()", False),
        ("SELECT transform(array(1), x -> uuid())", False),
        ("SELECT now()", False),
        ("SELECT CURRENT_DATE", False),
        ("SELECT current_timestamp", False),
        ("SELECT `current_date`", False),
        ("SELECT f.current_date FROM (SELECT 1 AS current_date) f", True),
        ("SELECT * FROM flights TABLESAMPLE (10 PERCENT)", False),
        ("SELECT * FROM information_schema.tables", False),
        ("SHOW TABLES", False),
        ("EXPLAIN SELECT 1", False),
    ],
)
def test_a_deterministic_query_depends_on_data_alone(gate: SparkGate, sql: str, plain: bool) -> None:
    assert gate.admit(sql, DECLARED).deterministic is plain


def test_statements_that_differ_in_values_have_one_digest(gate: SparkGate) -> None:
    texts = ["SELECT id FROM flights WHERE name IN ('a')", "select id  from Flights where name in ('it''s', 'x') -- c"]

    digests = {gate.admit(sql, DECLARED).digest for sql in texts}

    assert len(digests) == 1
    assert digests.isdisjoint({gate.admit("SELECT id FROM few WHERE name IN ('a')", DECLARED).digest})


def test_a_verdict_is_for_the_relations_it_was_given_for(gate: SparkGate) -> None:
    assert gate.admit("SELECT * FROM flights", frozenset({"flights"})).relations == {"flights"}
    with pytest.raises(SqlError, match="does not exist"):
        gate.admit("SELECT * FROM flights", frozenset({"few"}))
    gate.close()


_OPENINGS = {
    "brackets": ("(", ")"),
    "subqueries": ("(SELECT ", ")"),
    "tables": ("* FROM (SELECT ", ")"),
    "functions": ("abs(", ")"),
    "CASE": ("CASE WHEN true THEN ", " END"),
    "NOT": ("NOT ", ""),
    "minus": ("- ", ""),
    "sums": ("1 + ", ""),
    "LIKE": ("a LIKE ", ""),
    "UNION": ("1 UNION SELECT ", ""),
    "lambdas": ("transform(a, x -> ", ")"),
    "common table expressions": ("(WITH a AS (SELECT 1) SELECT ", ")"),
    "failing bodies": ("(WITH a AS (", ") SELECT 1)"),
    "types": ("CAST(NULL AS ARRAY<", ">)"),
    "unbalanced": ("(", ""),
    "joins": ("1 FROM (a JOIN ", ")"),
}


@pytest.mark.parametrize("levels", [12, 300, 5000])
@pytest.mark.parametrize("shape", _OPENINGS)
def test_nesting_is_admitted_or_refused_at_once(gate: SparkGate, shape: str, levels: int) -> None:
    opening, closing = _OPENINGS[shape]
    sql = "SELECT " + opening * levels + "1" + closing * levels

    started = time.thread_time()
    try:
        gate.admit(sql, DECLARED)
    except StatementError as exc:
        assert levels > 12 or shape in ("failing bodies", "types", "unbalanced", "joins"), exc  # noqa: PT017 - or not
    else:
        assert levels == 12
    assert time.thread_time() - started < 10


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "sql",
    ["SELECT '" + "x" * 1_000_000 + "'", "SELECT 1 IN (0" + ", 1" * 20_000 + ")", " " * 1_000_000 + "SELECT 1"],
    ids=["a literal", "a list", "white space"],
)
def test_long_statements_are_admitted_within_seconds(gate: SparkGate, sql: str) -> None:
    started = time.thread_time()

    gate.admit(sql, DECLARED)

    assert time.thread_time() - started < 20


@pytest.mark.parametrize(
    "sql", ["," * 1_000_000, "SELECT " + "1 " * 500_000, "'" * 1_000_001, "/* " * 300_000, "( '" * 300_000]
)
def test_a_mebibyte_of_signs_is_refused_within_seconds(gate: SparkGate, sql: str) -> None:
    started = time.thread_time()

    with pytest.raises(SqlSyntaxError):
        gate.admit(sql, DECLARED)

    assert time.thread_time() - started < 10


def test_threads_share_a_gate(gate: SparkGate) -> None:
    def work(number: int) -> None:
        for turn in range(10):
            assert f"{number} + {turn}" in gate.admit(f"SELECT {number} + {turn} FROM flights", DECLARED).sql
            with pytest.raises(StatementNotAllowedError):
                gate.admit(f"SELECT reflect('{number}', '{turn}')", DECLARED)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


_SINGLE_WORDS = """
    SELECT FROM flights few hidden id * , ( ) 1 'x' WHERE = AND ALL WITH x AS PIVOT UNPIVOT FOR IN sum count (*) EXPLAIN
    DESCRIBE SHOW TABLES VALUES ; UNION LIMIT JOIN LATERAL VIEW [ ] { } : -> :: INT CASE WHEN THEN END OVER NOT ? $1 $a
    text . `/etc/hostname` main information_schema tables reflect RECURSIVE DELETE INSERT INTO -- /* */ r' $$ INTERVAL
    DAY EXCEPT IDENTIFIER VERSION TRANSFORM USING ON TABLESAMPLE WINDOW DATE |> @ ${ \\ " ` STRUCT < > TABLE USE SET
"""
_WORDS = (*_SINGLE_WORDS.split(), "GROUP BY", "ORDER BY", "\n", "\xa0", "\xe9", "''", "\\'")


def _check(gate: SparkGate, sql: str) -> None:
    try:
        found = gate.admit(sql, DECLARED)
    except StatementError as exc:
        assert str(exc)  # noqa: PT017 - or it is admitted
        return
    assert found.relations <= DECLARED
    outside = re.sub(r"'[^']*'|`[^`]*`", "", found.sql)
    assert not re.search(r"--|/\*|;|\$|\"|\\|\b(?i:reflect|identifier|hidden|version|insert|delete)\b", outside)


@settings(deadline=None)
@given(st.lists(st.sampled_from(_WORDS), max_size=14).map(" ".join) | st.text(st.characters(codec=None)))
def test_any_text_is_admitted_or_a_statement_error(gate: SparkGate, sql: str) -> None:
    _check(gate, sql)


@settings(deadline=None)
@given(
    st.sampled_from([sql for sql, _ in harmless()] + [sql for _, sql in HOSTILE]), st.sampled_from(_WORDS), st.data()
)
def test_a_word_anywhere_in_a_statement_is_admitted_or_a_statement_error(
    gate: SparkGate, sql: str, word: str, data: st.DataObject
) -> None:
    words = sql.split(" ")
    words.insert(data.draw(st.integers(0, len(words))), word)

    _check(gate, " ".join(words))
