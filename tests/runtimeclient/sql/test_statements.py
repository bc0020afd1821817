import time

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeclient.errors import UsageError
from runtimeclient.http.results import JsonValue, Number, as_json
from runtimeclient.sql.statements import (
    StatementSplitter,
    parameter_names,
    parameters_of,
    parse_parameters,
    split_statements,
)
from tests.corpus import each


@each(
    ("text", "statements"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param(" ;; -- c;\n /* ; */ ;", [], id="only white space and comments"),
        pytest.param("SELECT 1", ["SELECT 1"], id="no semicolon"),
        pytest.param(" SELECT 1 ;\n\nSELECT 2;", ["SELECT 1", "SELECT 2"], id="two"),
        pytest.param("SELECT ';', 'it''s;'; SELECT 2", ["SELECT ';', 'it''s;'", "SELECT 2"], id="string"),
        pytest.param("SELECT 'a\\'; SELECT 2", ["SELECT 'a\\'", "SELECT 2"], id="a backslash is nothing special"),
        pytest.param("SELECT e'it\\'s;'; SELECT 2", ["SELECT e'it\\'s;'", "SELECT 2"], id="escaped string"),
        pytest.param("SELECT E'a''b\\';'; SELECT 2", ["SELECT E'a''b\\';'", "SELECT 2"], id="escaped and doubled"),
        pytest.param("SELECT fe'a\\'; SELECT 2", ["SELECT fe'a\\'", "SELECT 2"], id="a word that ends in e"),
        pytest.param('SELECT "a"";b"; SELECT 2', ['SELECT "a"";b"', "SELECT 2"], id="quoted name"),
        pytest.param("SELECT `a;b`; SELECT 2", ["SELECT `a;b`", "SELECT 2"], id="backticks"),
        pytest.param("SELECT $$a;'$$; SELECT 2", ["SELECT $$a;'$$", "SELECT 2"], id="dollars"),
        pytest.param("SELECT $x$;$$;$X$;$x$; SELECT 2", ["SELECT $x$;$$;$X$;$x$", "SELECT 2"], id="tagged dollars"),
        pytest.param("SELECT $é$;$é$; SELECT 2", ["SELECT $é$;$é$", "SELECT 2"], id="a tag beyond ASCII"),
        pytest.param("SELECT $1; SELECT $2", ["SELECT $1", "SELECT $2"], id="parameters"),
        pytest.param("SELECT 1 AS a$b$; SELECT 2 b$", ["SELECT 1 AS a$b$", "SELECT 2 b$"], id="dollars in a name"),
        pytest.param("SELECT 1 -- a;b\n; SELECT 2", ["SELECT 1 -- a;b", "SELECT 2"], id="line comment"),
        pytest.param("SELECT 1 -- a;b\r; SELECT 2", ["SELECT 1 -- a;b", "SELECT 2"], id="line comment, old Mac"),
        pytest.param("SELECT 1 /* ; /* ; */ ; */; SELECT 2", ["SELECT 1 /* ; /* ; */ ; */", "SELECT 2"], id="comments"),
        pytest.param("SELECT 1 /*/ ; */; SELECT 2", ["SELECT 1 /*/ ; */", "SELECT 2"], id="a comment that begins /*/"),
        pytest.param("SELECT 'a;", ["SELECT 'a;"], id="unfinished string"),
        pytest.param("/* a;", ["/* a;"], id="unfinished comment"),
        pytest.param("SELECT $$;", ["SELECT $$;"], id="unfinished dollars"),
        pytest.param("SELECT e'a\\", ["SELECT e'a\\"], id="unfinished escape"),
    ],
)
def test_splits_at_the_semicolons_that_end_statements(text: str, statements: list[str]) -> None:
    assert [statement.text for statement in split_statements(text)] == statements


def test_yields_a_statement_as_soon_as_it_is_complete() -> None:
    splitter = StatementSplitter()
    lines = ["SELECT\n", "'a\n", "b;' ;\n", "SELECT 2; SELECT\n", "/* x\n", "; */ 3\n"]

    steps = [([tuple(found)[:2] for found in splitter.feed(line)], splitter.is_waiting) for line in lines]
    steps.append(([tuple(found)[:2] for found in splitter.finish()], splitter.is_waiting))

    assert steps == [
        ([], True),
        ([], True),
        ([("SELECT\n'a\nb;'", 1)], False),
        ([("SELECT 2", 4)], True),
        ([], True),
        ([], True),
        ([("SELECT\n/* x\n; */ 3", 4)], False),
    ]


_PIECES = [
    "1",
    "'a;b'",
    "'it''s'",
    "e'\\';'",
    "$$;'$$",
    "$t$ ; $$ $t$",
    '"q;"',
    "/* ; /* ' */ */ 2",
    "3 -- ;'\n",
    "x$y$",
]


@given(st.lists(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=4), min_size=1, max_size=4))
def test_agrees_with_the_engine_on_statements(statements: list[list[str]]) -> None:
    text = ";\n".join("SELECT " + ",\n".join(pieces) for pieces in statements)

    ours = [statement.text for statement in split_statements(text)]

    assert len(ours) == len(duckdb.extract_statements(text)) == len(statements)
    assert all(len(duckdb.extract_statements(statement)) == 1 for statement in ours)


@given(st.lists(st.text(alphabet="ab1 ;'\"`$eE\\-/*\ré", max_size=20), max_size=6))
def test_line_by_line_gives_the_same_statements(lines: list[str]) -> None:
    splitter = StatementSplitter()

    one_by_one = [statement for line in lines for statement in splitter.feed(line + "\n")]
    one_by_one += splitter.finish()

    text = "".join(line + "\n" for line in lines)
    assert one_by_one == list(split_statements(text))
    # Only semicolons, comments and white space are dropped.
    position = 0
    for statement, *_ in one_by_one:
        assert statement.strip() == statement != ""
        position = text.index(statement, position) + len(statement)


@pytest.mark.parametrize("piece", ["'", "/*", "$a$ $b$ ", "e'\\", " $", "x;", "--", "'' ", "\\'", "x", "/* c */"])
def test_is_linear_in_the_text_and_in_its_lines(piece: str) -> None:
    splitter = StatementSplitter()
    start = time.process_time()

    statements = sum(1 for _ in split_statements(piece * 80_000))
    lines = sum(1 for _ in range(50_000) for _ in splitter.feed(f"{piece}\n"))

    assert statements <= 80_000
    assert lines + sum(1 for _ in splitter.finish()) <= 50_000
    assert time.process_time() - start < 10


@each(
    ("text", "line", "column"),
    [
        ("select 1; selec 2", 1, 11),
        ("select 1;selec 2; select 3", 1, 10),
        ("select 1;;\t; selec 2", 1, 14),
        ("select 'é🦆'; selec 2", 1, 14),
        ("select 1;\n  selec 2", 2, 3),
        ("select 1;\r\n  selec 2", 2, 3),
        ("select\n 1; selec 2", 2, 5),
        ("select ';\n;'; selec 2", 2, 5),
        ("select 1; /* ; */ selec 2", 1, 11),
        ("select 1; -- ;\n selec 2", 1, 11),
    ],
)
def test_a_statement_has_its_position(text: str, line: int, column: int) -> None:
    _, statement, *_ = split_statements(text)

    assert (statement.line, statement.column) == (line, column)


@each(
    ("argument", "json"),
    [
        ("a=1", "1"),
        ("a=-1.50", "-1.50"),
        ("a=2e3", "2e3"),
        ("a=12345678901234567890.1234567890", "12345678901234567890.1234567890"),
        ("a=007", '"007"'),
        ("a=1.", '"1."'),
        ("a=+1", '"+1"'),
        ("a=NaN", '"NaN"'),
        ("a=true", "true"),
        ("a=null", "null"),
        ("a=True", '"True"'),
        ("a=", '""'),
        ("a=x=y", '"x=y"'),
        ("$a=it's", '"it\'s"'),
        ('a:="1"', '"1"'),
        ("a:=[1,2.50,null]", "[1,2.50,null]"),
        ('a:= {"b":"é"} ', '{"b":"é"}'),
    ],
)
def test_a_plain_value_has_a_guessed_type_and_json_an_exact_one(argument: str, json: str) -> None:
    assert as_json(parse_parameters([argument])["a"]) == json


@each(
    ("arguments", "said"),
    [
        (["a"], "NAME=VALUE"),
        (["=1"], "NAME=VALUE"),
        ([":=1"], "NAME=VALUE"),
        (["a=1", "a=2"], "a is given twice"),
        (["a:=x"], "a is not JSON"),
        (["a:=1 2"], "a is not JSON"),
        (["a:="], "a is not JSON"),
        (["a:=NaN"], "a is not JSON"),
        (["a:=" + "[" * 100_000], "a is not JSON"),
    ],
)
def test_an_invalid_parameter_is_a_usage_error(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_parameters(arguments)


@each(
    ("statement", "names"),
    [
        ("SELECT 1", set()),
        ("SELECT $a, $b_2, $A", {"a", "b_2", "A"}),
        ("SELECT ?, ?", {"1", "2"}),
        ("SELECT $2 + $1", {"1", "2"}),
        ("SELECT '$a', \"$b\", $$ $c $$, $t$ ? $t$ -- $d\n, /* ? */ $e", {"e"}),
        ("SELECT x$y, e'\\'$a', $é", {"é"}),
        ("SELECT :a + :b_2, (:C), [:d], x LIKE :e, -:f, :é", {"a", "b_2", "C", "d", "e", "f", "é"}),
        ("SELECT ':a', \":b\", /* :c */ {'d':e, f:g}, x[:n], x[1:m], y::int, z(k := 1) -- :h", set()),
    ],
)
def test_parameter_names_are_outside_literals_and_comments(statement: str, names: set[str]) -> None:
    assert parameter_names(statement) == names


def test_a_statement_gets_the_parameters_that_it_uses() -> None:
    values: dict[str, JsonValue] = {"a": Number("1"), "B": "x", "1": None}

    assert parameters_of("SELECT $A, $b", values) == {"a": "1", "B": "x"}
    assert parameters_of("SELECT ?", values) == {"1": None}
