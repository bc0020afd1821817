"""Parameters written `:name`."""

import json
from contextlib import suppress

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queryengine.errors import SqlSyntaxError, StatementError
from queryengine.gate.fingerprint import normal_form
from queryengine.gate.gate import Gate
from queryengine.gate.lexer import scan
from queryengine.gate.named_parameters import with_dollar_names
from tests.corpus import each

#: Where a colon has a meaning of its own, or nearly.
FRAGMENTS = (
    *(":x", " :x", ":", " : ", "::", ":=", "$p", "?", "a", "1", "'s'", '"q"', "[", "]", "{", "}", "(", ")", ",", "."),
    *("-", "+", "*", " from ", " between ", " like ", " not ", " by ", " lambda ", " case ", " zone ", " AS ", " in "),
    *(" select ", " escape ", " ", "/**/", "$$", "null", "end"),
)


@each(
    ("sql", "names"),
    [
        ("SELECT :foo + 1", {"foo"}),
        ("SELECT :Foo::INTEGER, -:b, (:c), [:d, :e], f(:g), :select, :naïve", None),
        ("SELECT {'a': :x, b: :y, 'c':z}", {"x", "y"}),
        ("SELECT MAP {:k: :v}", {"k", "v"}),
        ("SELECT a WHERE a LIKE :p ESCAPE :e AND b NOT BETWEEN :lo AND :hi OR c IN (:one,:two)", None),
        ("SELECT a LIMIT :n OFFSET :o", {"n", "o"}),
        ("SELECT CASE WHEN :a THEN :b ELSE :c END", {"a", "b", "c"}),
        ("SELECT now() AT TIME ZONE :tz", {"tz"}),
        ("SELECT list_transform(l, lambda e: e + :p)", {"p"}),
        ("SELECT f(a := :x, b => :y)", {"x", "y"}),
        ("SELECT a[i + :n]", {"n"}),
        ("SELECT j->>:key, a||:b, a<>:c", {"key", "b", "c"}),
        ("SELECT alias: :x", {"x"}),
        ("SELECT ? :x", set()),
    ],
)
def test_a_colon_where_an_operand_is_expected_is_a_parameter(sql: str, names: set[str] | None) -> None:
    changed = with_dollar_names(scan(sql)).text

    assert len(changed) == len(sql)
    assert {one for one, other in zip(sql, changed, strict=True) if one != other} <= {":"}
    expected = sql.count(":") - 2 * sql.count("::") if names is None else len(names)
    assert changed.count("$") == expected
    for name in names or ():
        assert f"${name}" in changed


@each(
    "sql",
    [
        "SELECT ':a', \":b\", $$ :c $$, $t$ :d $t$, e'\\':e' /* :f /* :g */ */ -- :h",
        "SELECT a::INTEGER, a :: INTEGER, '1'::INTEGER::VARCHAR",
        "SELECT a[1:2], a[x:y], a[:y], a[x:], a[:-:2], a[x:-:y], a[1: :y], $l[:n], t.select[:n], (a)[:n], 'abc'[:n]",
        "SELECT {a:b, from:c, 'd':e, \"f\":g}, MAP {'a':b}",
        'SELECT x:y, between :y, zone :y, t."z":w FROM u:v',
        "SELECT list_transform(l, lambda e:e), f(a := 1), f(a :=b)",
        "SELECT :1, : a",
        "SELECT :a$b, :a$, $:a",
    ],
)
def test_any_other_colon_stays(sql: str) -> None:
    found = scan(sql)

    assert with_dollar_names(found) is found


@settings(deadline=None, max_examples=300)
@example("a[x:-:y]")
@example("a[1: :x]")
@example("{from:x}")
@example("f(lambda a, :x)")
@given(st.lists(st.sampled_from(FRAGMENTS), min_size=2, max_size=9).map("".join))
def test_no_statement_that_the_engine_accepts_changes(text: str) -> None:
    for sql in (f"SELECT {text}", f"SELECT a[{text}]", f"SELECT {{{text}}}", f"FROM {text}", f"SELECT f({text})"):
        with suppress(SqlSyntaxError):
            found = scan(sql)
            changed = with_dollar_names(found)
            assert changed is found or not _is_accepted(found.text)
            assert scan(changed.text).spans == changed.spans


def _is_accepted(sql: str) -> bool:
    ((answer,),) = duckdb.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    return not json.loads(answer)["error"]


@pytest.mark.parametrize(
    "sql", ["SELECT :x + 1", "select  :X + 1 ;", "SELECT a[:n], :x FROM (SELECT [1] AS a, 1 AS n)"]
)
def test_both_forms_of_a_statement_are_alike(gate: Gate, sql: str) -> None:
    other = sql.replace(":x", "$x").replace(":X", "$X")
    one, two = gate.admit(sql, frozenset()), gate.admit(other, frozenset())

    assert one == two
    assert normal_form(sql) == normal_form(other)


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("SELECT\n  :x +\n  FROM", "line 3, column 3"),
        ("SELECT :x, nonsense nonsense nonsense", "line 1, column 30"),
        ("EXPLAIN\nSELECT :a b c", "line 2, column 13"),
    ],
)
def test_positions_are_those_of_the_text(gate: Gate, sql: str, place: str) -> None:
    with pytest.raises(StatementError, match=place):
        gate.admit(sql, frozenset())
