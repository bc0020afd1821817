from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from queryengine.engine import GatedStatement
from queryengine.errors import QueryError, SqlSyntaxError
from queryengine.gate.fingerprint import fingerprint, pattern
from queryengine.gate.gate import _CACHED, Gate
from queryengine.gate.lexer import Scan, scan
from tests.queryengine.statements import DECLARED, READS, REFUSED

#: The numbers that each mark stands for.
_STANDS_FOR = {
    "\0i": st.one_of(st.sampled_from([1, 2, 10, 100, 101, 65_536, 999_999_999]), st.integers(1, 999_999_999)).map(str),
    "\0l": st.one_of(st.sampled_from([10**9, 2**31 - 1, 2**31, 2**32, 10**18 - 1]), st.integers(10**9, 10**18 - 1)).map(
        str
    ),
    "\0d": st.builds("{}.{}".format, st.integers(0, 999_999_999), st.text("0123456789", min_size=1, max_size=9)),
}

#: Where a number may stand, and where one may not.
_PLACES = (
    *("SELECT {}", "SELECT {} AS a, -{}", "SELECT DISTINCT {}, {} FROM flights", "FROM flights WHERE id = {}"),
    *(
        "FROM flights WHERE id IN ({}, {}) LIMIT {} OFFSET {}",
        "SELECT {} + {} * {} / {} - {} || {}",
        "VALUES ({}), ({})",
    ),
    *("FROM flights WHERE id BETWEEN {} AND {} OR NOT {} = {}", "SELECT CASE {} WHEN {} THEN {} ELSE {} END"),
    *("SELECT id FROM flights GROUP BY {}, {}", "SELECT id, 2 FROM flights ORDER BY {} DESC, {} ASC", "SELECT id%{}"),
    *("SELECT ({}), (({})), ({}, {})", "SELECT {}::BIGINT", "SELECT id::DECIMAL({}, {}) FROM flights", "SELECT ${}"),
    *(
        "SELECT id::DECIMAL({}) FROM flights",
        "SELECT x::TIMESTAMP({})",
        "SELECT x::INTEGER[{}]",
        "SELECT CAST({} AS BIT({}))",
    ),
    *(
        "SELECT #{}",
        "SELECT INTERVAL {} DAY",
        "SELECT INTERVAL ({}) DAY",
        "SELECT INTERVAL '1' SECOND({})",
        "SELECT codes[{}:{}]",
    ),
    *(
        "SELECT [{}, {}]",
        "SELECT {{'a': {}}}",
        "SELECT MAP {{{}: {}}}",
        "FROM flights LIMIT {}%",
        "FROM flights LIMIT {} PERCENT",
    ),
    *(
        "FROM flights USING SAMPLE {}",
        "FROM flights USING SAMPLE {}%",
        "FROM flights TABLESAMPLE reservoir({} ROWS) REPEATABLE ({})",
    ),
    *(
        "SELECT sum(id) OVER (ORDER BY id ROWS {} PRECEDING) FROM flights",
        "SELECT ?{}",
        "SELECT ?, ? + {}",
        "SELECT $a + {}",
    ),
    *("SELECT sum(id) OVER (ROWS BETWEEN {} PRECEDING AND {} FOLLOWING) FROM flights", "SELECT {} FROM range({}) t(i)"),
    *("SELECT sum(id) OVER w FROM flights WINDOW w AS (ORDER BY id ROWS {} PRECEDING)", "SELECT round({}, {})"),
    *(
        "SELECT list_aggregate([1], {})",
        "SELECT list_aggregate([{}], 'sum')",
        "SELECT read_csv({})",
        "SELECT nosuch({})",
    ),
    *("SELECT 1 GROUP BY CUBE ({}, {}), ROLLUP ({}, {})", "SELECT 1 GROUP BY GROUPING SETS (({}, {}), ({}))"),
    *(
        "FROM flights PIVOT (count(*) FOR id IN ({}, {}))",
        "PIVOT flights ON id IN ({}, {})",
        "PIVOT flights ON id + {}",
    ),
    *(
        "EXPLAIN SELECT {}",
        "DESCRIBE SELECT {}",
        "SUMMARIZE SELECT {}",
        "WITH a AS (SELECT {}) FROM a",
        "SELECT {} UNION SELECT {}",
    ),
    *("WITH RECURSIVE a AS (SELECT {} AS x UNION ALL SELECT x + {} FROM a WHERE x < {}) FROM a", "SELECT (SELECT {})"),
    *(
        "SELECT a.b.{}",
        "SELECT {}.a",
        "SELECT {} a",
        'SELECT {} "a"',
        "SELECT {}'a'",
        "SELECT a{}",
        "SELECT {}e{}",
        "SELECT 0x{}",
    ),
    *(
        "SELECT {}_{}",
        "SELECT .{}",
        "SELECT {}.",
        "SELECT -{}",
        "SELECT - - {}",
        "SELECT @ {}",
        "SELECT ~{}",
        "SELECT {}!",
        "SELECT {} ** {}",
    ),
    *(
        "FROM flights AT (VERSION => {})",
        "FROM range({}, stop := {})",
        "SELECT x -> {}",
        "SELECT x ->> {}",
        "SELECT lambda x: {}",
    ),
    *(
        "SELECT {} IN ({})",
        "SELECT {} = ANY (SELECT {})",
        "SELECT {} = ALL (VALUES ({}))",
        "SELECT EXISTS (SELECT {})",
        "SELECT TOP {}",
    ),
    *(
        "FROM information_schema.tables WHERE {} = {}",
        "FROM flights FETCH FIRST {} ROWS ONLY",
        "FROM flights LIMIT {}, {}",
    ),
    *(
        "SELECT DISTINCT ON ({}) id FROM flights",
        "FROM flights f JOIN flights g ON f.id = {}",
        "FROM absent WHERE id = {}",
    ),
    *(
        "INSERT INTO flights VALUES ({})",
        "DELETE FROM flights WHERE id = {}",
        "SELECT {}; SELECT {}",
        "SELECT {} -- {}",
        "SELECT /* {} */ {}",
    ),
    *(
        "SELECT * REPLACE ({} AS id) FROM flights",
        "SELECT {} COLLATE nocase",
        "SELECT extract(day FROM {})",
        "SELECT {} IS NULL",
    ),
)

_PIECES = (
    *(
        "SELECT",
        "FROM",
        "flights",
        "WHERE",
        "id",
        "AND",
        "OR",
        "NOT",
        "IN",
        "(",
        ")",
        "(",
        ")",
        ",",
        "=",
        "-",
        "+",
        "*",
        "|",
        "<",
        ">",
    ),
    *(
        "%",
        "::",
        "$",
        "#",
        "?",
        "[",
        "]",
        ":",
        ".",
        "LIMIT",
        "OFFSET",
        "BY",
        "GROUP",
        "ORDER",
        "AS",
        "CASE",
        "WHEN",
        "THEN",
        "ELSE",
        "END",
    ),
    *(
        "DECIMAL",
        "TIMESTAMP",
        "INTEGER",
        "INTERVAL",
        "DAY",
        "SAMPLE",
        "USING",
        "VALUES",
        "UNION",
        "ALL",
        "BETWEEN",
        "x",
        '"x"',
        "'x'",
    ),
    *(
        "abs",
        "OVER",
        "ROWS",
        "PRECEDING",
        "DESC",
        "HAVING",
        "QUALIFY",
        "ON",
        "JOIN",
        "DISTINCT",
        "e",
        "_",
        " ",
        "--",
        "/*",
        "*/",
        "PERCENT",
    ),
)


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


def judged(gate: Gate, statement: Scan) -> tuple[Any, ...]:
    """Give the verdict without any memory, and the tree without values and places."""
    try:
        verdict = gate._judge(statement, DECLARED, "")
    except QueryError as exc:
        return (type(exc),)
    tree = gate._tree(statement, "")[1] if verdict.kind == "select" else None
    rewritten = verdict.sql != statement.text
    return (verdict.kind, verdict.relations, verdict.parameters, verdict.deterministic, rewritten, without_values(tree))


def without_values(value: Any) -> Any:
    """Leave out what only says where something stands or what it is worth, and how repeated groups are numbered."""
    if isinstance(value, dict):
        if value.get("class") == "CONSTANT":
            return {"class": "CONSTANT", "kind": value["literal"].get("kind")}
        skipped = ("query_location", "query_location_length", "group_sets", "group_expressions")
        return {key: without_values(inner) for key, inner in value.items() if key not in skipped}
    return [without_values(inner) for inner in value] if isinstance(value, list) else value


def filled(draw: st.DrawFn, marked: str) -> str:
    for mark, numbers in _STANDS_FOR.items():
        while mark in marked:
            marked = marked.replace(mark, draw(numbers), 1)
    return marked


@st.composite
def alike(draw: st.DrawFn, statements: st.SearchStrategy[str]) -> tuple[Scan, Scan]:
    """Two statements that have one shape."""
    try:
        first = scan(draw(statements))
    except SqlSyntaxError:
        assume(condition=False)
    assume(first.size and "\0" in (marked := fingerprint(first)))
    second = scan(filled(draw, marked))
    assert fingerprint(second) == marked
    return first, second


NUMBERS = st.one_of(
    *_STANDS_FOR.values(),
    st.sampled_from(
        ["0", "00", "07", "1e5", "1e400", "1_000", "0x1F", "1.", ".5", "9" * 19, "9" * 40, "1." + "0" * 40]
    ),
)


@st.composite
def in_places(draw: st.DrawFn) -> str:
    place = draw(st.sampled_from(_PLACES))
    return place.format(*(draw(NUMBERS) for _ in range(place.count("{}"))))


soup = st.lists(st.sampled_from(_PIECES) | NUMBERS, min_size=1, max_size=9).map(
    lambda words: "SELECT " + " ".join(words)
)


@settings(deadline=None, max_examples=600)
@given(alike(in_places() | st.sampled_from([*READS, *(sql for _, sql in REFUSED)]) | soup))
def test_statements_of_one_shape_have_one_verdict_and_one_tree(gate: Gate, pair: tuple[Scan, Scan]) -> None:
    first, second = pair

    assert judged(gate, first) == judged(gate, second)


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=300)
@given(alike(in_places() | soup))
def test_the_gate_says_the_same_with_and_without_its_memory(
    gate: Gate, forgetful: Gate, pair: tuple[Scan, Scan]
) -> None:
    for statement in pair:
        forgetful._verdicts._verdicts.clear()
        assert answer(gate.admit, statement.text) == answer(forgetful._admit, statement.text)


def answer(admit: Any, sql: str) -> GatedStatement | type[QueryError]:
    try:
        found: GatedStatement = admit(sql, DECLARED)
    except QueryError as exc:
        return type(exc)
    return found


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1, 12345678901, 0.50", "SELECT \0i, \0l, \0d"),
        ("SELECT 999999999, 1000000000", "SELECT \0i, \0l"),
        (
            "select id from t where id=7 and (v IN (1, 2)) limit 5",
            "select id from t where id=\0i and (v IN (\0i, \0i)) limit \0i",
        ),
        ("SELECT /* 1 */ -5 -- 6", "SELECT /* 1 */ -\0i -- 6"),
        ("WITH a AS (SELECT 1) FROM a", "WITH a AS (SELECT \0i) FROM a"),
    ],
)
def test_a_number_that_is_only_a_value_is_taken_out(sql: str, expected: str) -> None:
    assert fingerprint(scan(sql)) == expected


@pytest.mark.parametrize(
    "sql",
    [
        *("SELECT $1", "SELECT $ 1", "SELECT ?1", "SELECT #1", "SELECT # 1", "SELECT a1", 'SELECT "1"', "SELECT '1'"),
        *("SELECT 0", "SELECT 00", "SELECT 07", "SELECT 1e5", "SELECT 1e400", "SELECT 1_000", "SELECT 1.", "SELECT .5"),
        *("SELECT 9999999999999999999", "SELECT 1.0000000000", "SELECT 00.5", "SELECT 1.5e3", "SELECT $$1$$"),
        *("SELECT x::DECIMAL(18,3)", "SELECT x::TIMESTAMP(3)", "SELECT x::INTEGER[3]", "SELECT x::t ( ( 3 ) )"),
        *("SELECT INTERVAL 1 DAY", "SELECT INTERVAL (1) DAY", "SELECT x[1:2]", "SELECT [1]", "SELECT {'a': 1}"),
        *(
            "FROM t LIMIT 10%",
            "FROM t LIMIT 10 %",
            "FROM t LIMIT 10 PERCENT",
            "FROM t USING SAMPLE 10",
            "FROM t LIMIT (10) %",
        ),
        *("SELECT sum(x) OVER (ROWS 2 PRECEDING)", "FROM t WINDOW w AS (ROWS 2 PRECEDING)", "SELECT abs(5)"),
        *("SELECT 1 x", 'SELECT 1 "x"', "SELECT 1 'x'", "SELECT 1::INTEGER", "SELECT 1[1]", "SELECT 1 .x"),
        *(
            "SELECT list_aggregate(x, 1)",
            "FROM range(10)",
            "FROM t AT (VERSION => 1)",
            "SELECT x[(1)]",
            "GROUP BY CUBE (1, 2)",
        ),
    ],
)
def test_a_number_that_may_be_more_than_a_value_stays(sql: str) -> None:
    assert fingerprint(scan(sql)) == sql


def test_refused_and_rewritten_statements_have_no_cached_verdict() -> None:
    gate = Gate()
    for sql in (
        "SELECT nosuch(1) + 1",
        "FROM information_schema.tables WHERE 1 = 1",
        "EXPLAIN SELECT 1",
        "SHOW TABLES; 1",
    ):
        answer(gate.admit, sql)
    answer(gate.admit, "PIVOT flights ON id + 1")

    assert gate._verdicts._verdicts == {}
    gate.close()


def test_a_verdict_gives_each_statement_its_own_text(gate: Gate) -> None:
    first = gate.admit(" SELECT id FROM flights WHERE id = 1; -- a", DECLARED)
    second = gate.admit("SELECT id FROM flights WHERE id = 23", DECLARED)

    assert (first.sql, second.sql) == (
        "SELECT id FROM flights WHERE id = 1",
        "SELECT id FROM flights WHERE id = 23",
    )
    assert (
        (first.relations, first.deterministic)
        == (second.relations, second.deterministic)
        == (frozenset({"flights"}), True)
    )


def test_a_verdict_by_fingerprint_holds_for_its_relations_only(gate: Gate) -> None:
    assert gate.admit("FROM flights LIMIT 1", frozenset({"flights"})).relations == {"flights"}

    with pytest.raises(QueryError, match="does not exist"):
        gate.admit("FROM flights LIMIT 2", frozenset({"airlines"}))


def test_memory_is_bounded(gate: Gate) -> None:
    for number in range(_CACHED + 20):
        gate.admit(f"SELECT 1 AS a{number}", frozenset())
    gate.admit("SELECT '" + "x" * 5000 + "'", frozenset())

    assert len(gate._verdicts._verdicts) == _CACHED
    assert not any(len(key) > 4200 for key, _ in gate._verdicts._verdicts)


def test_any_number_of_threads_may_ask_at_once(gate: Gate) -> None:
    wrong: list[str] = []

    def ask(thread: int) -> None:
        for number in range(1, 300):
            sql = f"SELECT {number}, {thread} AS b{number % 7}"
            if gate.admit(sql, DECLARED).sql != sql:
                wrong.append(sql)

    threads = [threading.Thread(target=ask, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_a_pattern_is_without_texts() -> None:
    assert pattern(fingerprint(scan("SELECT 'a', 'it''s' FROM flights WHERE id = 7"))) == pattern(
        fingerprint(scan("SELECT 'b', 'it''s' FROM flights WHERE id = 8"))
    )
    assert pattern("SELECT \0i") == "SELECT \0i"
