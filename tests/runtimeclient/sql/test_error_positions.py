import pytest

from runtimeclient.errors import ErrorPosition
from runtimeclient.output.console import excerpt
from runtimeclient.sql.runner import find_position
from runtimeclient.sql.statements import Statement
from tests.corpus import each

LONG = "SELECT 1, '" + "a" * 120 + "', 'x'::INT, '" + "b" * 80 + "' FROM orders"


@each(
    ("message", "statement", "told", "line", "column"),
    [
        pytest.param(
            'Syntax error at or near "orders" (line 1, column 15).',
            Statement("SELECT * FORM orders"),
            'Syntax error at or near "orders".',
            *(1, 15),
            id="a position",
        ),
        pytest.param(
            "No 'x'\n\nLINE 2:   'x'::INT\n               ^^^^^",
            Statement("SELECT 1,\n  'x'::INT", 5, "a.sql"),
            "No 'x'",
            *(6, 8),
            id="a caret, in a script",
        ),
        pytest.param(
            "No 'x'\n\nLINE 1: SELECT 'é日本', 'x'::INT\n                           ^^^^^",
            Statement("SELECT 'é日本', 'x'::INT"),
            "No 'x'",
            *(1, 18),
            id="a caret below wide characters",
        ),
        pytest.param(
            f"No 'x'\n\nLINE 1: ...{'a' * 51}', 'x'::INT, '{'b' * 51}...\n{' ' * 68}^^^^^",
            Statement(LONG),
            "No 'x'",
            *(1, LONG.index("::") + 1),
            id="a line that was cut",
        ),
        pytest.param("Bad (line 1, column 3)", Statement("SELECT", 4, column=11), "Bad", *(4, 13), id="further right"),
        pytest.param(
            "Bad (line 2, column 3)", Statement("SELECT\n x y", 4, column=11), "Bad", *(5, 3), id="the line after that"
        ),
        pytest.param(
            "No\n\nLINE 1: SELECT x\n               ^",
            Statement("/* */ SELECT x", column=11),
            "No",
            *(1, 24),
            id="a caret further right",
        ),
        pytest.param("Bad (line 1, column 99)", Statement("SELECT"), "Bad", *(1, 7), id="beyond the end"),
    ],
)
def test_a_message_has_a_position(message: str, statement: Statement, told: str, line: int, column: int) -> None:
    text, position = find_position(message, statement)

    assert position is not None
    assert (text, position.line, position.column, position.source) == (told, line, column, statement.source)


@each(
    "message",
    [
        "No such table.",
        "Bad (line 7, column 1).",
        "Bad (line 0, column 1).",
        "Bad\n\nLINE 7: SELECT\n        ^",
        "Bad\n\nLINE 1: something else\n        ^",
        "LINE 1: SELECT in the middle\n of a message",
        pytest.param(f"Bad (line {'9' * 5000}, column 1).", id="a line beyond what Python reads"),
        pytest.param(f"Bad (line 1, column {'9' * 5000}).", id="a column beyond what Python reads"),
        pytest.param(f"Bad\n\nLINE {'9' * 5000}: SELECT\n        ^", id="an excerpt beyond what Python reads"),
        # A search that tries every space anew takes hours.
        pytest.param(f"Bad{' ' * 1_000_000}x", id="a million spaces"),
        pytest.param(f"Bad\n\nLINE 1: SELECT\n{' ' * 1_000_000}x", id="a million spaces before no caret"),
    ],
)
def test_a_message_without_a_position_is_unchanged(message: str) -> None:
    assert find_position(message, Statement("SELECT")) == (message, None)


@pytest.mark.parametrize(
    ("position", "shown"),
    [
        pytest.param(
            ErrorPosition(12, 18, "SELECT id FORM '日本' orders"),
            "12 | SELECT id FORM '日本' orders\n                       ^",
            id="wide characters",
        ),
        pytest.param(
            ErrorPosition(1, 18, "SELECT nope", text_column=11), "1 | SELECT nope\n           ^", id="second statement"
        ),
        pytest.param(
            ErrorPosition(1, 3, "\x1b\tx\x1b[2J"), "1 | \\x1b\\tx\\x1b[2J\n" + " " * 10 + "^", id="X12 escapes"
        ),
    ],
)
def test_an_excerpt_has_a_caret_below_the_position(position: ErrorPosition, shown: str) -> None:
    assert excerpt(position) == shown


def test_a_long_line_is_cut_around_the_position() -> None:
    line, caret = excerpt(ErrorPosition(1, 5001, "a" * 5000 + "!" + "b" * 5000)).split("\n")

    assert len(line) < 220
    assert line[len(caret) - 1] == "!"
    assert line.startswith("1 | ...a")
    assert line.endswith("b...")
