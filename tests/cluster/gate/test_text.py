import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.gate.text import (
    MAX_NESTING,
    MAX_TOKENS,
    check_generated,
    check_size,
    literal,
    marker,
    quoted_name,
    with_markers_replaced,
)
from queryengine.errors import SqlSyntaxError, StatementNotAllowedError
from tests.cluster.clusters import ClusterEngine
from tests.cluster.gate.statements import ungated


@given(st.text(st.characters(codec="utf-8")))
def test_a_literal_ends_where_any_lexer_ends_it(value: str) -> None:
    text = literal(value)

    assert text.isascii()
    assert text.count("'") == 2
    assert not set(text) & {"$", '"', "`", "\n"}
    assert "\\\\" not in text
    check_generated(f"SELECT {text}", {"select"})


def test_the_cluster_reads_each_character_of_a_literal(engine: ClusterEngine) -> None:
    value = "".join(map(chr, range(1, 0x250))) + "'\\'\"`${x}\u2028\ufeff\uffff\U0001f600\U0010ffff"

    assert ungated(engine, f"SELECT {literal(value)} AS a") == [{"a": value}]


@pytest.mark.parametrize("name", ["a", "a b", "é", "'", '"', "--", "/*", "$", "a\\", "\u2028"])
def test_the_cluster_reads_a_quoted_name_as_it_is(engine: ClusterEngine, name: str) -> None:
    assert ungated(engine, f"SELECT 1 AS {quoted_name(name)}") == [{name: 1}]


@pytest.mark.parametrize("name", ["", "a`", "${a}", "\n", "\0", "\x7f"])
def test_names_that_cannot_be_quoted_safely_are_refused(name: str) -> None:
    with pytest.raises(SqlSyntaxError, match="backtick"):
        quoted_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 -- x",
        "SELECT /* x */ 1",
        "SELECT /*+ x */ 1",
        "SELECT 'a''b'",
        "SELECT 'a\\'b'",
        "SELECT 'a$b'",
        "SELECT 'é'",
        "SELECT r'a'",
        'SELECT "a"',
        "SELECT `a``b`",
        "SELECT ``",
        "SELECT a",
        "SELECT reflect(1)",
        "SELECT 1; SELECT 1",
        "SELECT ${a}",
        "SELECT $a",
        "SELECT :a",
        "SELECT ?",
        "SELECT @a",
        "SELECT 1a",
        "SELECT 'unclosed",
        "SELECT `unclosed",
        "SELECT \0x",
        "SELECT\n1",
        "SELECT --1",
        "SELECT {1}",
        "SELECT select$",
    ],
)
def test_generated_text_has_nothing_that_engines_read_differently(text: str) -> None:
    with pytest.raises(StatementNotAllowedError):
        check_generated(text, {"select"})


def test_generated_text_has_what_the_generator_writes() -> None:
    check_generated(
        f"SELECT 1, 1.5, .5, 1e-3, 'a\\u0027', X'0F', `a`.*, :_1, a -> - -1 <=> 2 || 3 FROM {marker('relation', 'a')} ",
        {"select", "from", "a"},
    )


def test_a_marker_is_replaced_where_it_stands() -> None:
    text = f"SELECT 1 FROM {marker('relation', 'a')}, {marker('tables')}"

    assert with_markers_replaced(text, lambda kind, name: f"<{kind} {name}>") == "SELECT 1 FROM <relation a>, <tables >"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("1," * MAX_TOKENS, "too long"),
        ("SELECT " + "9" * 1001, "number in the statement is too long"),
        ("(" * (MAX_NESTING + 1), "nested too deep"),
        ("a\0", "NUL"),
        ("\udcff", "surrogate"),
    ],
)
def test_texts_that_the_parser_should_not_see_are_refused(sql: str, message: str) -> None:
    with pytest.raises(SqlSyntaxError, match=message):
        check_size(sql)


def test_what_is_in_a_literal_or_comment_counts_once() -> None:
    check_size("SELECT '" + "( " * MAX_TOKENS + "' -- " + "( " * MAX_TOKENS + "\n /* " + "( " * MAX_TOKENS + "*/")
