"""Texts that have one normal form mean the same to the engine; it is lenient with nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryengine.gate.lexer import Kind, scan
from queryengine.gate.normal_form import normal_form
from tests.queryengine.statements import READS

GAPS = st.sampled_from(
    [" ", "  ", "\n", "\t\r\n", "/**/", " -- a comment; 'with' \"quotes\"\n", "/* a /* b */ ' */", "\u00a0"]
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT 1", "  SELECT\n\t1 ; ; -- done"),
        ("SELECT 1", "/* why */ SELECT/**/1;"),
        ("SELECT 'a  b'", "SELECT   'a  b'"),
        ("SELECT a FROM t WHERE b = 1", "SELECT a\nFROM t -- which\nWHERE b = 1"),
        ("SELECT\u00a01", "SELECT 1"),
        ("SELECT $$ a;  b $$", "SELECT  $$ a;  b $$;"),
    ],
)
def test_what_no_parser_looks_at_does_not_count(one: str, other: str) -> None:
    assert normal_form(one) == normal_form(other)


@pytest.mark.parametrize(
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
    ],
)
def test_everything_else_counts(one: str, other: str) -> None:
    assert normal_form(one) != normal_form(other)


def test_a_long_text_is_not_looked_into() -> None:
    sql = "SELECT  '" + "a" * 5000 + "'"

    assert normal_form(sql) == sql


@pytest.fixture(scope="module")
def parser() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@given(data=st.data(), sql=st.sampled_from([sql for sql in READS if len(sql) < 1000]))
def test_one_normal_form_is_one_tree(parser: duckdb.DuckDBPyConnection, data: st.DataObject, sql: str) -> None:
    found = scan(sql)
    pieces, end, before = [], 0, Kind.WORD
    for token in found.tokens:
        keeps = token.start == end or before is token.kind is Kind.STRING
        pieces += [found.text[end : token.start] if keeps else data.draw(GAPS), token.text]
        end, before = token.end, token.kind
    other = "".join([data.draw(GAPS), *pieces, data.draw(GAPS)])

    assert normal_form(sql) == normal_form(other)
    assert tree(parser, sql) == tree(parser, other) == tree(parser, normal_form(sql))


def tree(parser: duckdb.DuckDBPyConnection, sql: str) -> Any:
    ((text,),) = parser.execute("SELECT json_serialize_sql(?::VARCHAR)", [scan(sql).text]).fetchall()
    answer = without_places(json.loads(text))
    return answer if not answer["error"] else answer["error_type"]


def without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: without_places(item)
            for key, item in value.items()
            if key not in ("query_location", "query_location_length", "position")
        }
    return [without_places(item) for item in value] if isinstance(value, list) else value
