"""Any text is either admitted or refused with a StatementError."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from queryengine.errors import StatementError
from queryengine.gate.gate import Gate
from tests.queryengine.statements import DECLARED, READS

_SINGLE_WORDS = """
    SELECT FROM flights carrier id * , ( ) 1 'x' WHERE = AND ALL WITH x AS PIVOT UNPIVOT ON USING IN sum count (*)
    EXPLAIN ANALYZE DESCRIBE SHOW TABLES SUMMARIZE VALUES ; UNION LIMIT JOIN LATERAL [ ] { } : -> lambda ::
    INTEGER CASE WHEN THEN END OVER NOT ? $1 $a read_csv . main information_schema tables duckdb_tables RECURSIVE
    DELETE INSERT INTO RETURNING COPY TO -- /* */ E' $$ INTERVAL DAY COLUMNS EXCLUDE FORMAT json
"""
_WORDS = (*_SINGLE_WORDS.split(), "GROUP BY", "ORDER BY", "\n", '"', "\xa0", "\xe9")


def _refusal(gate: Gate, sql: str) -> StatementError | None:
    try:
        gate.admit(sql, DECLARED)
    except StatementError as exc:
        return exc
    return None


@settings(deadline=None)
@given(st.lists(st.sampled_from(_WORDS), max_size=14).map(" ".join) | st.text(st.characters(codec=None)))
def test_any_text_is_admitted_or_a_statement_error(sql: str) -> None:
    refusal = _refusal(_any_gate(), sql)

    assert refusal is None or str(refusal)


@settings(deadline=None)
@given(st.sampled_from(READS), st.sampled_from(_WORDS), st.data())
def test_a_word_anywhere_in_a_statement_is_admitted_or_a_statement_error(
    sql: str, word: str, data: st.DataObject
) -> None:
    words = sql.split(" ")
    words.insert(data.draw(st.integers(0, len(words))), word)

    with contextlib.suppress(StatementError):
        statement = _any_gate().admit(" ".join(words), DECLARED)
        assert statement.relations <= DECLARED


def _any_gate(made: list[Gate] = []) -> Gate:  # noqa: B006 - one for all examples
    if not made:
        made.append(Gate())
    return made[0]
