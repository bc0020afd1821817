"""The place in a statement that a message of the runtime points at."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtimeclient.screen import visible, width
from runtimeclient.statements import Statement

# The last two lines of a message: a line of the statement, cut on both sides when it is long, and a caret below it.
# A number of more digits is no line of anything, and Python refuses to read very long ones.
_EXCERPT = re.compile(r"LINE (?P<line>[0-9]{1,9}): (?P<text>.*)\n(?P<space>[ ]*)\^[\^~ ]*")
_POSITION = re.compile(r" ?\(line (?P<line>[0-9]{1,9}), column (?P<column>[0-9]{1,9})\)")
_CUT = "..."
_LONGEST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Place:
    """
    A place in what the user wrote.

    Attributes:
        line: Line of the script, from 1.
        column: Character of that line, from 1.
        text: What is shown of the line: the part that belongs to the statement.
        source: What the script is called; empty for a statement by itself.
        text_column: Where `text` begins in the line, from 1.
    """

    line: int
    column: int
    text: str
    source: str = ""
    text_column: int = 1

    def drawing(self) -> str:
        """Show the line and a caret below the place, fit for a terminal, in two lines without a break at their end."""
        at = self.column - self.text_column
        start = max(0, at - _LONGEST_SHOWN // 2)
        before = visible(self.text[start:at])
        after = visible(self.text[at : start + _LONGEST_SHOWN])
        head = f"{self.line} | " + (_CUT if start else "")
        tail = _CUT if len(self.text) > start + _LONGEST_SHOWN else ""
        return f"{head}{before}{after}{tail}\n{' ' * (len(head) + width(before))}^"


def find_place(message: str, statement: Statement) -> tuple[str, Place | None]:
    """
    Take the place out of a message.

    Returns:
        The message without it, and where it is in the script; the message as it was and None when it names no place,
        or one that the statement does not have.
    """
    lines = statement.text.split("\n")
    # By lines, not by a search in the text: that would take hours for the spaces that a hostile server can send.
    before, excerpt, caret_line = ["", "", *message.rstrip().rsplit("\n", 2)][-3:]
    if found := _EXCERPT.fullmatch(f"{excerpt}\n{caret_line}"):
        number, text = int(found["line"]), found["text"]
        caret = _index_at(text, len(found["space"]) - len(f"LINE {number}: "))
        is_cut = text.startswith(_CUT)
        core = text.removeprefix(_CUT).removesuffix(_CUT)
        if 1 <= number <= len(lines) and (at := lines[number - 1].find(core)) >= 0:
            column = at + caret - (len(_CUT) if is_cut else 0)
            return before.rstrip(), _place(statement, lines, number, column + 1)
    elif (found := _POSITION.search(message)) and 1 <= int(found["line"]) <= len(lines):
        place = _place(statement, lines, int(found["line"]), int(found["column"]))
        return message[: found.start()] + message[found.end() :], place
    return message, None


def _index_at(text: str, columns: int) -> int:
    """Give the index of the character at a column of the terminal: the engine counts wide characters as two."""
    for index, character in enumerate(text):
        if columns <= 0:
            return index
        columns -= width(character)
    return len(text)


def _place(statement: Statement, lines: list[str], number: int, column: int) -> Place:
    text = lines[number - 1].rstrip("\r")
    text_column = statement.column if number == 1 else 1
    column = text_column + min(max(column, 1), len(text) + 1) - 1
    return Place(statement.line + number - 1, column, text, statement.source, text_column)
