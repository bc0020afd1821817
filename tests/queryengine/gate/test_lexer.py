import contextlib
import re
import time

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queryengine.errors import SqlSyntaxError
from queryengine.gate.lexer import (
    MAX_GROUPS,
    MAX_NESTING,
    MAX_NUMBER_CHARACTERS,
    MAX_PREFIX_RUN,
    MAX_TOKENS,
    Kind,
    lower,
    scan,
)
from tests.corpus import each

#: What text is made of where lexers disagree.
_VISIBLE = r"""
    ' '' " "" ` $ $$ $a$ $b$ a E E' e' x \ \' U& N as not ( ) [ ] { } /* */ / * -- - ; , . 1 1. .5 1e5 1E e+ _ 1_0 0x1F
    e1 1e-3 .. :: -> # @ ? ?1 $1 & ! ~ | < > = % ^ : é 😀
"""
FRAGMENTS = (*_VISIBLE.split(), *"\n\r \t\x0b\xa0\u2003\ufeff\x7f\x01")

#: What a mebibyte may consist of.
_UNITS = r"""
    ' '' " `a E'\'' $a$ $a $ /* /*/**/*/ -- ( () [] 1, 1+ / 1_ 1e 1. . ; \ é
"""
UNITS = (*_UNITS.split(), "$$ ", "/* */", "--\n", "a ", "- ", "\xa0", "a\xa0", " ", "not a ", "as (1) ")


@example("x''")
@example("b'a''b' n'c'")
@settings(deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=16).map("".join))
def test_tokens_begin_where_the_engine_says(sql: str) -> None:
    try:
        found = scan(sql)
    except SqlSyntaxError:
        return

    ours = {len(found.text[: token.start].encode()): token for token in found.tokens}
    theirs = {start for start, kind in duckdb.tokenize(found.text) if kind != duckdb.token_type.comment}
    assert theirs <= ours.keys()
    # The engine joins operators, words after a `$`, and a string and the x, b or n before it; nothing else quotes.
    joined = [token for start, token in ours.items() if start not in theirs]
    quoted = [token for token in joined if token.kind in (Kind.STRING, Kind.IDENTIFIER)]
    assert [token for token in quoted if not re.search(r"(?<!\w)[xXbBnN]$", found.text[: token.start])] == []


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
def test_any_text_is_split_or_refused(sql: str) -> None:
    with contextlib.suppress(SqlSyntaxError):
        found = scan(sql)
        assert all(found.text[token.start : token.end] == token.text for token in found.tokens)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        pytest.param("SELECT 'it''s (' , E'\\' (' , \"a\"\"(\" , `(`", 8, id="quotes"),
        pytest.param("a$b$ $$ ( $$ $t$ $$ ( $t$", 3, id="dollar quotes"),
        pytest.param("1 /* ( /* ( */ ( */ + -- (\n 2", 3, id="comments"),
        pytest.param("/*/ ( */ 1 /**/ /***/ -- (", 1, id="odd comments"),
        pytest.param("aE'\\' x 'b'", 4, id="no escapes without a separate E"),
    ],
)
def test_literals_and_comments_are_passed_over(sql: str, expected: int) -> None:
    assert scan(sql).size == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=16).map("".join))
def test_the_first_tokens_are_what_they_are_alone(sql: str) -> None:
    try:
        found = scan(sql)
    except SqlSyntaxError:
        return

    for size in range(1, found.size + 1):
        if ";" in (token.text for token in found.tokens[:size]) or found[size - 1].depth:
            return
        head = found.head(size)
        try:
            alone = scan(head.text)
        except SqlSyntaxError:  # a bracket that is closed later
            continue
        assert (head.text, head.tokens, head.separators) == (alone.text, alone.tokens, alone.separators)


def test_spaces_of_unicode_become_plain_outside_of_literals() -> None:
    assert scan("\ufeffSELECT\u00a0'\u00a0' /*\u2003*/, \"\u2003\"\u3000").text == " SELECT '\u00a0' /* */, \"\u2003\" "
    assert [token.text for token in scan("a\u00a0E'\\''").tokens] == ["a", "E'\\''"]


def test_names_and_words_are_folded_in_ascii_only() -> None:
    word, quoted, literal = scan('Flights "A""b\u212a" \'x\'').tokens

    assert (word.word, word.name) == ("flights", "flights")
    assert (quoted.word, quoted.name) == ("", 'a"b\u212a')
    assert (literal.word, literal.name) == ("", None)
    assert lower("ÄK\u212a") == "Äk\u212a"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        pytest.param("SELECT (1", r'"\)" is missing', id="open bracket"),
        pytest.param("SELECT 1)", r'"\)" has no opening bracket', id="closed bracket"),
        pytest.param("SELECT ([1)]", r'"\)" has no opening bracket', id="crossed brackets"),
        pytest.param("SELECT 'a", "quoted text is not closed: ' is missing", id="text"),
        pytest.param("SELECT E'a\\'", "quoted text is not closed: ' is missing", id="text with escapes"),
        pytest.param('SELECT "a', "quoted name is not closed", id="name"),
        pytest.param("SELECT `a", "quoted name is not closed", id="name in back-ticks"),
        pytest.param("SELECT $a$ $b$", "quoted text in dollar quotes is not closed", id="dollar quotes"),
        pytest.param("SELECT /* /* */", "comment is not closed", id="comment"),
        pytest.param("SELECT 1e5E'\\''", "space after a number", id="number before a text"),
        pytest.param("SELECT .1.5", "space after a number", id="number before a number"),
        pytest.param("SELECT '\ud800'", "lone surrogate", id="S32 lone surrogate"),
        pytest.param("SELECT 'a\0b'", "NUL", id="S32 NUL"),
        pytest.param("SELECT " + "(" * 100_000, "nested too deep", id="L05 unbalanced brackets"),
        pytest.param("/*" * (MAX_NESTING + 1), "comments are nested too deep", id="comments in comments"),
        pytest.param("a " * (MAX_TOKENS + 1), "too long", id="tokens"),
    ],
)
def test_what_cannot_be_split_safely_is_refused(sql: str, message: str) -> None:
    with pytest.raises(SqlSyntaxError, match=message):
        scan(sql)


def test_as_many_tokens_as_are_allowed_are_split() -> None:
    assert scan("a " * MAX_TOKENS).size == MAX_TOKENS


@each("number", ["{}", "1.{}", "1e{}", "-{}", "1_{}", ".{}", "{}::BIGNUM", "1 LIMIT {}", "${}"])
def test_the_digits_of_a_number_are_bounded(number: str) -> None:
    scan("SELECT " + number.format("9" * (MAX_NUMBER_CHARACTERS - 2)))
    with pytest.raises(SqlSyntaxError, match="number in the statement is too long: 1,000 characters at most"):
        scan("SELECT " + number.format("9" * (MAX_NUMBER_CHARACTERS + 1)))

    scan(f"SELECT '{'9' * 400_000}'::BIGNUM")


@pytest.mark.parametrize(
    "clause",
    [
        pytest.param("SELECT 1 FROM t GROUP BY {}", id="plain"),
        pytest.param("SELECT 1 FROM t GROUP BY a, rollup({}), b", id="rollup"),
        pytest.param("SELECT 1 FROM t GROUP BY t.order, a COLLATE nocase, $having, {}", id="names like reserved words"),
        pytest.param("SELECT (SELECT 1 FROM t group /**/ by {} HAVING true)", id="subquery"),
        pytest.param("SELECT 1 FROM t GROUP BY f((SELECT 1 GROUP BY 1 ORDER BY 1)), {}", id="after a subquery"),
    ],
)
def test_groups_are_bounded(clause: str) -> None:
    scan(clause.format(", ".join(["a"] * (MAX_GROUPS - 5))))
    with pytest.raises(SqlSyntaxError, match="More than 1,000 expressions in GROUP BY"):
        scan(clause.format(", ".join(["a"] * (MAX_GROUPS + 1))))

    values = ", ".join(["1"] * 2 * MAX_GROUPS)
    scan(f"SELECT {values} FROM t GROUP BY a, b IN ({values}) ORDER BY {values}")
    scan(f"SELECT 1 GROUP BY a UNION ALL SELECT {values}")
    scan(f"SELECT {', '.join(['(SELECT 1 GROUP BY a)'] * 300)}, {values}")


@each(
    ("opening", "closing"), [("(", ")"), ("[", "]"), ("{", "}"), ("(SELECT ", ")"), ("abs(", ")"), ("([{a: f(", ")}])")]
)
def test_brackets_nest_up_to_the_limit(opening: str, closing: str) -> None:
    levels = MAX_NESTING // sum(opening.count(bracket) for bracket in "([{")

    scan("SELECT " + opening * levels + "1" + closing * levels)
    with pytest.raises(SqlSyntaxError, match="nested too deep"):
        scan("SELECT " + opening * (levels + 1) + "1" + closing * (levels + 1))


@each("prefix", ["-", "- ", "@ ", "NOT ", "NOT @ ", "~/* */", "DESCRIBE ", "desc summarize ", "!"])
def test_prefixes_in_a_row_are_bounded(prefix: str) -> None:
    if prefix != "-":  # A run of these is a comment.
        with pytest.raises(SqlSyntaxError, match="operators in a row"):
            scan("SELECT " + prefix * (MAX_PREFIX_RUN + 1) + "1")
    scan("SELECT " + f"{prefix} 1, " * MAX_PREFIX_RUN + "1")


def bodies(levels: int, values: int) -> str:
    return "WITH a AS (" * levels + "SELECT 1" + ", 1" * values + " 1 1" + ") SELECT 1" * levels


TABLES = "1 IN (FROM " + "(" * 190 + "t JOIN u ON 1" + ")" * 190 + ")"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        pytest.param(bodies(10, 1), "one after another", id="deep bodies"),
        pytest.param(bodies(3, 1500), "one after another", id="less deep, longer bodies"),
        pytest.param(bodies(2, 10_000), "one after another", id="long bodies"),
        pytest.param("SELECT " + ", ".join([TABLES] * 50), "too deeply for its length", id="tables in brackets"),
    ],
)
def test_the_parser_is_not_made_to_read_a_part_again_and_again(sql: str, message: str) -> None:
    with pytest.raises(SqlSyntaxError, match=message):
        scan(sql)
    scan(f"SELECT {TABLES}")
    scan("WITH a AS (WITH b AS (WITH c AS (SELECT 1" + ", 1" * 500 + ") FROM c) FROM b) FROM a")


@pytest.mark.parametrize("unit", UNITS)
def test_one_mebibyte_of_anything_is_read_at_once(unit: str) -> None:
    sql = "SELECT " + unit * (1024 * 1024 // len(unit.encode()))

    started = time.thread_time()
    with contextlib.suppress(SqlSyntaxError):
        scan(sql)

    assert time.thread_time() - started < 30
