import json
from contextlib import closing
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from queryengine.engine import GatedStatement
from queryengine.errors import QueryError, SqlSyntaxError
from queryengine.gate.fingerprint import digest, fingerprint, normal_form, pattern
from queryengine.gate.gate import _CACHED, Gate
from queryengine.gate.lexer import Kind, Scan, scan
from tests.corpus import each
from tests.queryengine.statements import DECLARED, READS, REFUSED, lines

#: The numbers that each mark stands for.
_STANDS_FOR = {
    "\0i": st.one_of(st.sampled_from([1, 2, 10, 100, 101, 65_536, 999_999_999]), st.integers(1, 999_999_999)).map(str),
    "\0l": st.one_of(st.sampled_from([10**9, 2**31 - 1, 2**31, 2**32, 10**18 - 1]), st.integers(10**9, 10**18 - 1)).map(
        str
    ),
    "\0d": st.builds("{}.{}".format, st.integers(0, 999_999_999), st.text("0123456789", min_size=1, max_size=9)),
}

_PLACES = lines("numbers.txt")

_WORDS = """
    SELECT FROM flights WHERE id AND OR NOT IN ( ) ( ) , = - + * | < > % :: $ # ? [ ] : . LIMIT OFFSET BY GROUP ORDER AS
    CASE WHEN THEN ELSE END DECIMAL TIMESTAMP INTEGER INTERVAL DAY SAMPLE USING VALUES UNION ALL BETWEEN x "x" 'x' abs
    OVER ROWS PRECEDING DESC HAVING QUALIFY ON JOIN DISTINCT e _ -- /* */ PERCENT
"""
_PIECES = (*_WORDS.split(), " ")


def judged(gate: Gate, statement: Scan) -> tuple[Any, ...]:
    """Give the verdict without any memory, and the tree without values and places."""
    try:
        verdict = gate._judge(statement, DECLARED, "", "")
    except QueryError as exc:
        return (type(exc),)
    tree = gate._tree(statement, "")[1] if verdict.kind == "select" else None
    rewritten = verdict.sql != statement.text
    bare = without(tree, *PLACES, "group_sets", "group_expressions", values=False)
    return (verdict.kind, verdict.relations, verdict.parameters, verdict.deterministic, rewritten, bare)


PLACES = ("query_location", "query_location_length", "position")


def without(value: Any, *keys: str, values: bool = True) -> Any:
    """Leave *keys* out of a tree, and if not *values*, what its constants are worth."""
    if isinstance(value, dict):
        if value.get("class") == "CONSTANT" and not values:
            return {"class": "CONSTANT", "kind": value["literal"].get("kind")}
        return {key: without(inner, *keys, values=values) for key, inner in value.items() if key not in keys}
    return [without(inner, *keys, values=values) for inner in value] if isinstance(value, list) else value


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


LISTED = [*READS, *(sql for _, sql in REFUSED)]
#: By number, because Hypothesis warns of a strategy that is described in more than 30 kB.
listed = st.integers(0, len(LISTED) - 1).map(lambda number: LISTED[number])


@settings(deadline=None)
@given(alike(in_places() | listed | soup))
def test_statements_of_one_shape_have_one_verdict_and_one_tree(gate: Gate, pair: tuple[Scan, Scan]) -> None:
    first, second = pair

    assert judged(gate, first) == judged(gate, second)


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=300)
@given(alike(in_places() | soup))
def test_the_gate_says_the_same_with_and_without_its_memory(gate: Gate, pair: tuple[Scan, Scan]) -> None:
    asked = [(statement.text, catalog) for statement in pair for catalog in ("", "_k0123456789ab")]
    remembered = [answer(gate.admit, *one) for one in asked]

    for one, found in zip(asked, remembered, strict=True):
        gate._verdicts.clear()
        assert found == answer(gate._admit, *one)


def answer(admit: Any, sql: str, catalog: str = "") -> GatedStatement | type[QueryError]:
    try:
        found: GatedStatement = admit(sql, DECLARED, catalog)
    except QueryError as exc:
        return type(exc)
    return found


@each(
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
        *((sql, sql) for sql in lines("not_values.txt")),
    ],
)
def test_a_number_is_taken_out_only_if_it_is_only_a_value(sql: str, expected: str) -> None:
    assert fingerprint(scan(sql)) == expected


def test_refused_and_rewritten_statements_have_no_cached_verdict() -> None:
    refused = ("SELECT nosuch(1) + 1", "SHOW TABLES; 1")
    rewritten = ("FROM information_schema.tables WHERE 1 = 1", "EXPLAIN SELECT 1", "PIVOT flights ON id + 1")
    with closing(Gate()) as gate:
        for sql in refused + rewritten:
            answer(gate.admit, sql)

        assert gate._verdicts == {}


def test_a_verdict_gives_each_statement_its_own_text(gate: Gate) -> None:
    first = gate.admit(" SELECT id FROM flights WHERE id = 1; -- a", DECLARED)
    second = gate.admit("SELECT id FROM flights WHERE id = 23", DECLARED)

    assert (first.sql, second.sql) == ("SELECT id FROM flights WHERE id = 1", "SELECT id FROM flights WHERE id = 23")
    assert {(found.relations, found.deterministic) for found in (first, second)} == {(frozenset({"flights"}), True)}


def test_memory_is_bounded(gate: Gate) -> None:
    for number in range(_CACHED + 20):
        gate.admit(f"SELECT 1 AS a{number}", frozenset())
    gate.admit("SELECT '" + "x" * 5000 + "'", frozenset())

    assert len(gate._verdicts) == _CACHED
    assert not any(len(key) > 4200 for key, *_ in gate._verdicts)


def test_a_pattern_is_without_texts() -> None:
    assert pattern(fingerprint(scan("SELECT 'a', 'it''s' FROM flights WHERE id = 7"))) == pattern(
        fingerprint(scan("SELECT 'b', 'it''s' FROM flights WHERE id = 8"))
    )
    assert pattern("SELECT \0i") == "SELECT \0i"


#: What may stand between two tokens; it makes no difference to the normal form.
GAPS = st.sampled_from(
    [" ", "  ", "\n", "\t\r\n", "/**/", " -- a comment; 'with' \"quotes\"\n", "/* a /* b */ ' */", "\u00a0"]
)


@pytest.mark.parametrize(
    ("one", "others"),
    [
        ("SELECT 1", ("  SELECT\n\t1 ; ; -- done", "/* why */ SELECT/**/1;", "SELECT\u00a01")),
        ("SELECT 'a  b'", ("SELECT   'a  b'",)),
        ("SELECT a FROM t WHERE b = 1", ("SELECT a\nFROM t -- which\nWHERE b = 1",)),
        ("SELECT $$ a;  b $$", ("SELECT  $$ a;  b $$;",)),
    ],
)
def test_what_no_parser_looks_at_does_not_count(one: str, others: tuple[str, ...]) -> None:
    assert set(map(normal_form, others)) == {normal_form(one)}


@each(
    ("one", "other"),
    [
        ("SELECT 'a  b'", "SELECT 'a b'"),
        ("SELECT 'A'", "SELECT 'a'"),
        ("SELECT 'a--b'", "SELECT 'a'"),
        ("SELECT $$a  b$$", "SELECT $$a b$$"),
        ("SELECT E'a\\n'", "SELECT E'a\\\\n'"),
        ('SELECT "A"', 'SELECT "a"'),
        ('SELECT "a  b"', 'SELECT "a b"'),
        ("SELECT a", "SELECT A"),
        ("SELECT 1", "select 1"),
        ("SELECT 1", "SELECT 1.0"),
        ("SELECT 1 - -1", "SELECT 1 --1"),
        ("SELECT 'a'\n'b'", "SELECT 'a' 'b'"),
        ("SELECT x'41'", "SELECT x '41'"),
        ("SELECT a.b", "SELECT a .b"),
        ("SELECT 1; SELECT 2", "SELECT 1 SELECT 2"),
        ("SELECT '\u00a0'", "SELECT ' '"),
        ("SELECT 'not closed", "SELECT  'not closed"),
        ("SELECT '" + "a" * 5000 + "'", "SELECT  '" + "a" * 5000 + "'"),  # too long to be looked into
    ],
)
def test_everything_else_counts(one: str, other: str) -> None:
    assert normal_form(one) != normal_form(other)


@given(data=st.data(), sql=st.sampled_from([sql for sql in READS if len(sql) < 1000]))
def test_one_normal_form_is_one_tree(gate: Gate, data: st.DataObject, sql: str) -> None:
    found = scan(sql)
    pieces, end, before = [], 0, Kind.WORD
    for token in found.tokens:
        keeps = token.start == end or before is token.kind is Kind.STRING
        pieces += [found.text[end : token.start] if keeps else data.draw(GAPS), token.text]
        end, before = token.end, token.kind
    other = "".join([data.draw(GAPS), *pieces, data.draw(GAPS)])

    assert normal_form(sql) == normal_form(other)
    assert parsed(gate, sql) == parsed(gate, other) == parsed(gate, normal_form(sql))


def parsed(gate: Gate, sql: str) -> Any:
    """Return the tree, or the kind of error, without places."""
    return without(json.loads(gate._serialized(scan(sql).text)), *PLACES)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t WHERE id IN (1, 2, 3) AND name = 'x' LIMIT 10",
        "select  A from T -- a trace\nwhere ID in (9)/**/and NAME = 'it''s' limit 7;;",
        "SELECT a FROM t WHERE id IN (1.5, 'x', $$y$$) AND name = e'\\n' LIMIT 1e3",
    ],
)
def test_statements_that_differ_in_values_have_one_digest(sql: str) -> None:
    assert digest(scan(sql)) == digest(scan("SELECT a FROM t WHERE id IN (1) AND name = '' LIMIT 1"))
    assert len(digest(scan(sql))) == 16


@pytest.mark.parametrize(
    "sql",
    ['SELECT "A" FROM t', "SELECT b FROM t", "SELECT a FROM t LIMIT 1", "SELECT (a) FROM t", "SELECT a, a FROM t"],
)
def test_other_statements_have_other_digests(sql: str) -> None:
    assert digest(scan(sql)) != digest(scan("SELECT a FROM t"))


@pytest.mark.parametrize(
    "sql", ["SELECT 1", "SHOW TABLES", "SHOW DATABASES", "EXPLAIN SELECT 1", f"SELECT {'1, ' * 2000} 1"]
)
def test_the_gate_gives_each_statement_that_it_admits_its_digest(sql: str) -> None:
    with closing(Gate()) as gate:
        admitted = [gate.admit(sql, frozenset()) for _ in range(2)]

    assert {statement.digest for statement in admitted} == {digest(scan(sql))}
