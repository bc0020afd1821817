from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queryengine.errors import SqlSyntaxError
from queryengine.gate.lexer import Scan, scan
from queryengine.gate.rewriting import is_query_with_pivot, with_hidden_catalog, with_pivot_values, with_windows_used
from tests.corpus import each

CASES = {
    with_pivot_values: [
        ("PIVOT t ON a", "PIVOT t ON (a) IN (0)"),
        ("PIVOT t ON a USING sum(b)", "PIVOT t ON (a) IN (0) USING sum(b)"),
        ("PIVOT t ON a, f(b, c) GROUP BY d", "PIVOT t ON (a) IN (0), (f(b, c)) IN (0) GROUP BY d"),
        ("PIVOT t ON a IN (1, 2), b", "PIVOT t ON a IN (1, 2), (b) IN (0)"),
        ("PIVOT t ON a.b IN x", "PIVOT t ON a.b IN x"),
        ("PIVOT t ON (a, b) IN ((1, 2))", "PIVOT t ON (a, b) IN ((1, 2))"),
        ("PIVOT t ON a + 1 IN (1)", "PIVOT t ON (a + 1 IN (1)) IN (0)"),
        ("PIVOT t ON a NOT IN (1)", "PIVOT t ON (a NOT IN (1)) IN (0)"),
        ("PIVOT t ON (a) + (b) IN (1)", "PIVOT t ON ((a) + (b) IN (1)) IN (0)"),
        ("PIVOT t ON a IN (SELECT 1), b", "PIVOT t ON a IN (0, abs((SELECT 1))), (b) IN (0)"),
        ("PIVOT t ON a IN ((FROM x))", "PIVOT t ON a IN (0, abs(((FROM x))))"),
        ("PIVOT t ON a IN", "PIVOT t ON (a IN) IN (0)"),
        ("PIVOT ON IN PIVOT", "PIVOT ON IN PIVOT"),
        ("PIVOT t ON a IN SELECT b", "PIVOT t ON a IN SELECT b"),
        ("PIVOT t ON a IN (SELECT 1) b", "PIVOT t ON a IN (SELECT 1) b"),
        ("PIVOT t ON a IN (PIVOT u ON b)", "PIVOT t ON a IN (0, abs((PIVOT u ON (b) IN (0))))"),
        ("PIVOT (PIVOT t ON a) ON b", "PIVOT (PIVOT t ON (a) IN (0)) ON (b) IN (0)"),
        ("FROM (PIVOT t ON a) JOIN u ON c = d", "FROM (PIVOT t ON (a) IN (0)) JOIN u ON c = d"),
        ("PIVOT t USING sum(b)", "PIVOT t USING sum(b)"),
        ("PIVOT t ON", "PIVOT t ON"),
        ("PIVOT t ON , a", "PIVOT t ON , (a) IN (0)"),
        ("PIVOT t ON a; SELECT 1", "PIVOT t ON (a) IN (0); SELECT 1"),
        ("PIVOT t; SELECT 1 ON a", "PIVOT t; SELECT 1 ON a"),
        ("PIVOT t JOIN u ON b ON a", "PIVOT t JOIN u ON b ON (a) IN (0)"),
        ("PIVOT t JOIN u USING (b) ON a USING sum(c)", "PIVOT t JOIN u USING (b) ON (a) IN (0) USING sum(c)"),
        ("PIVOT t ON a UNION SELECT 1", "PIVOT t ON (a) IN (0) UNION SELECT 1"),
        ("PIVOT_WIDER t ON a", "PIVOT_WIDER t ON (a) IN (0)"),
        ("SELECT 'PIVOT t ON a'", "SELECT 'PIVOT t ON a'"),
        ('SELECT "pivot" ON a', 'SELECT "pivot" ON a'),
    ],
    with_windows_used: [
        ("SELECT 1 WINDOW w AS ()", "SELECT 1 WINDOW w AS () QUALIFY (count(*) OVER w) IS NULL "),
        (
            "(SELECT 1 WINDOW w AS (ORDER BY (a)), v AS (w) ORDER BY 1)",
            (
                "(SELECT 1 WINDOW w AS (ORDER BY (a)), v AS (w) "
                "QUALIFY (count(*) OVER w, count(*) OVER v) IS NULL  ORDER BY 1)"
            ),
        ),
        (
            "SELECT 1 WINDOW w AS () QUALIFY a OR b",
            "SELECT 1 WINDOW w AS () QUALIFY (count(*) OVER w) IS NULL AND  a OR b",
        ),
        ("SELECT 1 AS window, 2", "SELECT 1 AS window, 2"),
        ("SELECT 1 WINDOW w AS", "SELECT 1 WINDOW w AS"),
        ("SELECT 'WINDOW w AS ()'", "SELECT 'WINDOW w AS ()'"),
    ],
    partial(with_hidden_catalog, schema="s1"): [
        ("FROM information_schema.tables", "FROM _catalog.s1.tables"),
        ('FROM "Information_Schema" /* c */ . COLUMNS c', "FROM _catalog.s1.columns c"),
        ("FROM runtime.information_schema.schemata", "FROM _catalog.s1.schemata"),
        (
            "SELECT information_schema.tables.x FROM information_schema.tables",
            "SELECT tables.x FROM _catalog.s1.tables",
        ),
        ("FROM other.information_schema.tables", "FROM other._catalog.s1.tables"),
        ("FROM information_schema.views", "FROM information_schema.views"),
        ("show /* c */ TABLES", "FROM _catalog.s1.shown_tables"),
        ("FROM (SHOW TABLES FROM runtime.main) s", "FROM (FROM _catalog.s1.shown_tables) s"),
        ("SHOW TABLES FROM main", "FROM _catalog.s1.shown_tables"),
        ("FROM (SHOW ALL TABLES) s", "FROM (FROM _catalog.s1.shown_columns) s"),
        ("FROM (DESCRIBE), (SHOW)", "FROM (FROM _catalog.s1.shown_columns), (FROM _catalog.s1.shown_columns)"),
        ("DESC", "FROM _catalog.s1.shown_columns"),
        ("SHOW flights", "SHOW flights"),
        ("DESCRIBE tables_of_mine", "DESCRIBE tables_of_mine"),
        ("FROM information_schema", "FROM information_schema"),
        ("SELECT 'information_schema.tables'", "SELECT 'information_schema.tables'"),
        ("FROM 'information_schema'.tables", "FROM 'information_schema'.tables"),
    ],
}


@each(("rewritten", "sql", "expected"), [(rewritten, *case) for rewritten, cases in CASES.items() for case in cases])
def test_a_text_is_rewritten(rewritten: Callable[[Scan], str], sql: str, expected: str) -> None:
    assert rewritten(scan(sql)) == expected


_SINGLE_WORDS = "PIVOT t ON a , ( ) IN USING SELECT FROM NOT 1 . ; 'y' WINDOW w AS QUALIFY"
WORDS = (*_SINGLE_WORDS.split(), "GROUP BY")


@pytest.mark.parametrize("rewritten", [with_pivot_values, with_windows_used])
@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=14), st.sampled_from(["", " "]))
@example(["PIVOT", "ON", "IN", "PIVOT"], " ")
@example(["WINDOW", "w", "AS", "(", ")", "USING"], " ")
def test_every_token_stays_and_in_its_order(rewritten: Callable[[Scan], str], words: list[str], between: str) -> None:
    try:
        before = scan(between.join(words))
    except SqlSyntaxError:
        return

    remaining = iter(token.text for token in scan(rewritten(before)).tokens)
    assert all(any(token.text == other for other in remaining) for token in before.tokens)


def test_a_pivot_is_a_word() -> None:
    assert is_query_with_pivot(scan("FROM (pivot t ON a)"))
    assert is_query_with_pivot(scan("PIVOT_WIDER t ON a"))
    assert not is_query_with_pivot(scan("SELECT 'PIVOT', \"PIVOT\", unpivot -- PIVOT"))
    assert not is_query_with_pivot(scan("CREATE TABLE x AS PIVOT t ON a"))
