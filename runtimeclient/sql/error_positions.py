"""Find the position in a statement that a runtime's error message refers to."""

import re

from runtimeclient.errors import ErrorPosition
from runtimeclient.output.terminal_text import width
from runtimeclient.sql.statements import Statement

# The last two lines of a message: a line of the statement, truncated on both sides if long, and a caret below it.
# At most nine digits: no statement has more lines, and Python refuses to parse very long numbers.
_EXCERPT = re.compile(r"LINE (?P<line>[0-9]{1,9}): (?P<text>.*)\n(?P<space>[ ]*)\^[\^~ ]*")
_POSITION = re.compile(r" ?\(line (?P<line>[0-9]{1,9}), column (?P<column>[0-9]{1,9})\)")
_CUT = "..."


def find_position(message: str, statement: Statement) -> tuple[str, ErrorPosition | None]:
    """
    Split the error position off a message.

    Returns:
        The message without the position, and the position in the script. If the message has no position, or one that is
        not in the statement: the message unchanged and None.
    """
    lines = statement.text.split("\n")
    # Split by lines; a regex search would backtrack for hours on the spaces a hostile server can send.
    before, excerpt, caret_line = ["", "", *message.rstrip().rsplit("\n", 2)][-3:]
    if found := _EXCERPT.fullmatch(f"{excerpt}\n{caret_line}"):
        number, text = int(found["line"]), found["text"]
        caret = _index_at(text, len(found["space"]) - len(f"LINE {number}: "))
        is_cut = text.startswith(_CUT)
        core = text.removeprefix(_CUT).removesuffix(_CUT)
        if 1 <= number <= len(lines) and (at := lines[number - 1].find(core)) >= 0:
            column = at + caret - (len(_CUT) if is_cut else 0)
            return before.rstrip(), _position(statement, lines, number, column + 1)
    elif (found := _POSITION.search(message)) and 1 <= int(found["line"]) <= len(lines):
        position = _position(statement, lines, int(found["line"]), int(found["column"]))
        return message[: found.start()] + message[found.end() :], position
    return message, None


def _index_at(text: str, columns: int) -> int:
    """Return the index of the character at a terminal column: the engine counts wide characters as two."""
    for index, character in enumerate(text):
        if columns <= 0:
            return index
        columns -= width(character)
    return len(text)


def _position(statement: Statement, lines: list[str], number: int, column: int) -> ErrorPosition:
    text = lines[number - 1].rstrip("\r")
    text_column = statement.column if number == 1 else 1
    column = text_column + min(max(column, 1), len(text) + 1) - 1
    return ErrorPosition(statement.line + number - 1, column, text, statement.source, text_column)
