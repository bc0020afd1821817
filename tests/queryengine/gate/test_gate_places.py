"""What is not allowed is refused wherever it stands, and any text is either admitted or refused."""

import re
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from queryengine.errors import StatementError
from queryengine.gate.gate import Gate
from tests.corpus import each
from tests.queryengine.statements import DECLARED, READS, lines

HARMLESS = ("(SELECT 1)", "1")
REFUSED = (
    "(SELECT count(*) FROM read_text('/etc/passwd'))",
    "(SELECT count(*) FROM '/etc/passwd')",
    "(SELECT 1 FROM duckdb_secrets())",
    "(SELECT 1 FROM elsewhere)",
    "getenv('HOME')",
    "write_log('x')",
)
RELATIONS = frozenset({"flights"})


def is_admitted(gate: Gate, place: str, expression: str) -> bool:
    with suppress(StatementError):
        gate.admit(re.sub(r"\bX\b", lambda _: expression, place), RELATIONS)
        return True
    return False


@each("place", lines("places.txt"))
def test_a_place_is_judged(gate: Gate, place: str) -> None:
    assert any(is_admitted(gate, place, expression) for expression in HARMLESS), "the engine has no such place"
    assert not [expression for expression in REFUSED if is_admitted(gate, place, expression)]


@each(
    "sql",
    [
        "SELECT sum(id) OVER (v ORDER BY id) FROM flights WINDOW v AS (PARTITION BY id), w AS (v ORDER BY id)",
        'SELECT 1 FROM flights WINDOW w AS (ORDER BY id), "V w" AS (PARTITION BY id) QUALIFY id = 1 OR id = 2 LIMIT 1',
        "WITH a AS (SELECT 1 AS x) SELECT 1 FROM a WINDOW w AS (ORDER BY (SELECT x FROM a), $1)",
        "SELECT 1 WINDOW w AS (ORDER BY (SELECT 1 WINDOW w AS (ORDER BY 1))) UNION SELECT 2 WINDOW w AS ()",
        "FROM flights SELECT id WINDOW w AS (ORDER BY id) USING SAMPLE 1 ROWS",
        "PIVOT (SELECT id, 1 AS one FROM flights WINDOW w AS (ORDER BY one)) ON id",
        "SELECT t.window, 'WINDOW w AS (' FROM (SELECT 1 AS window) t",
    ],
)
def test_windows_that_nothing_uses_are_admitted_as_written(gate: Gate, sql: str) -> None:
    assert gate.admit(sql, RELATIONS).sql == sql


#: Words for texts that are mostly no statements.
_SINGLE_WORDS = """
    SELECT FROM flights carrier id * , ( ) 1 'x' WHERE = AND ALL WITH x AS PIVOT UNPIVOT ON USING IN sum count (*)
    EXPLAIN ANALYZE DESCRIBE SHOW TABLES SUMMARIZE VALUES ; UNION LIMIT JOIN LATERAL [ ] { } : -> lambda ::
    INTEGER CASE WHEN THEN END OVER NOT ? $1 $a read_csv . main information_schema tables duckdb_tables RECURSIVE
    DELETE INSERT INTO RETURNING COPY TO -- /* */ E' $$ INTERVAL DAY COLUMNS EXCLUDE FORMAT json
"""
_WORDS = (*_SINGLE_WORDS.split(), "GROUP BY", "ORDER BY", "\n", '"', "\xa0", "\xe9")


@settings(deadline=None)
@given(st.lists(st.sampled_from(_WORDS), max_size=14).map(" ".join) | st.text(st.characters(codec=None)))
def test_any_text_is_admitted_or_a_statement_error(gate: Gate, sql: str) -> None:
    try:
        assert gate.admit(sql, DECLARED).relations <= DECLARED
    except StatementError as exc:
        assert str(exc)  # noqa: PT017 - or it is admitted


@settings(deadline=None)
@given(st.sampled_from(READS), st.sampled_from(_WORDS), st.data())
def test_a_word_anywhere_in_a_statement_is_admitted_or_a_statement_error(
    gate: Gate, sql: str, word: str, data: st.DataObject
) -> None:
    words = sql.split(" ")
    words.insert(data.draw(st.integers(0, len(words))), word)

    with suppress(StatementError):
        assert gate.admit(" ".join(words), DECLARED).relations <= DECLARED
