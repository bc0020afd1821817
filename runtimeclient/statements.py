"""Split text into SQL statements, at the semicolons outside literals, quoted names and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# Characters of no word. The engine takes every character beyond ASCII for a letter; a class that says so the other way
# round (`\w\x80-\U0010ffff`) takes Python milliseconds to compile, at each start of the client.
_OF_NO_WORD = r"\x00-#%-/:-@\[-^`{-\x7f"
#: One character of a name, as the engine reads names.
LETTER = rf"[^{_OF_NO_WORD}$]"
_NOT_IN_A_WORD = rf"(?<![^{_OF_NO_WORD}])"
_STOP = re.compile(
    rf"""
      --[^\r\n]*                                  # a comment up to the end of the line
    | /\*                                         # a comment, which may hold others
    | ['"`]                                       # a string or a quoted name
    | {_NOT_IN_A_WORD}[eE]'                       # a string with backslash escapes
    | {_NOT_IN_A_WORD}\$(?![0-9]){LETTER}*\$      # $$ or $tag$; $1 is a parameter
    | ;
    """,
    re.VERBOSE,
)
#: Stops at a backslash too, which no statement holds outside literals: a command of psql begins there.
STOP_AT_BACKSLASH = re.compile(rf"{_STOP.pattern} | \\", re.VERBOSE)
_PARAMETER = re.compile(rf"{_NOT_IN_A_WORD}\$(?P<name>{LETTER}+)|\?")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_ESCAPED_END = re.compile(r"(?:[^'\\]++|\\.|'')*+'", re.DOTALL)


class Statement(NamedTuple):
    """One statement, the line and column of the whole text, from 1, where it begins, and what that text is called."""

    text: str
    line: int = 1
    source: str = ""
    column: int = 1


class StatementSplitter:
    """
    Collects lines and gives out each statement as soon as its semicolon is there.

    A statement comes without the semicolon and without the white space around it. What holds nothing but white space
    and comments is no statement. The work is linear in the text, whatever is in it.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._has_code = False
        # Where the first of the parts begins.
        self._line = self._column = 1
        # What ends the literal or comment that the text is in: a quote, a $tag$, "*/", "e'" for an escaped string.
        self._inside = ""
        self._comment_depth = 0

    @property
    def is_waiting(self) -> bool:
        """A statement, a literal or a comment has begun and is not finished."""
        return self._has_code or bool(self._inside)

    @property
    def is_inside(self) -> bool:
        """The text ends in a literal, a quoted name or a comment; one up to the end of its line does not count."""
        return bool(self._inside)

    @property
    def rest(self) -> str:
        """What no semicolon has ended yet."""
        return "".join(self._parts)

    def feed(self, lines: str) -> Iterator[Statement]:
        """Take one or more whole lines, line breaks included, and give out the statements that end in them."""
        at = 0
        while at < len(lines):
            at, mark = self.take(lines, at)
            if mark:
                yield from self._complete()

    def take(self, lines: str, at: int, stops: re.Pattern[str] = _STOP) -> tuple[int, str]:
        """
        Take *lines* from *at* up to the first mark outside literals, quoted names and comments that ends a statement.

        Args:
            lines: One or more whole lines, line breaks included.
            at: Where to begin.
            stops: Where to stop; STOP_AT_BACKSLASH stops at a backslash too.

        Returns:
            The place behind the mark, and the mark; the end of *lines* and no text where there is none.
        """
        while at < len(lines):
            if self._inside:
                end = self._end_of_inside(lines, at)
                self._parts.append(lines[at:end])
                at = end
                continue
            stop = stops.search(lines, at)
            end = stop.start() if stop else len(lines)
            self._take_code(lines[at:end])
            if stop is None:
                break
            at = stop.end()
            mark = stop[0]
            if mark in {";", "\\"}:
                return at, mark
            self._parts.append(mark)
            if mark == "/*":
                self._inside, self._comment_depth = "*/", 1
            elif not mark.startswith("--"):
                self._inside, self._has_code = mark.lower() if mark.endswith("'") else mark, True
        return len(lines), ""

    def finish(self) -> Iterator[Statement]:
        """Give out what no semicolon ended, an unfinished literal or comment too: the runtime says what it lacks."""
        self._has_code = self.is_waiting
        yield from self._complete()
        self._inside = ""

    def _take_code(self, text: str) -> None:
        self._parts.append(text)
        self._has_code = self._has_code or not (text.isspace() or not text)

    def _complete(self) -> Iterator[Statement]:
        text, has_code = "".join(self._parts), self._has_code
        self._parts, self._has_code = [], False
        statement = text.strip()
        line, column = self._after(text[: text.index(statement)])
        self._line, self._column = self._after(f"{text};")
        if has_code:
            yield Statement(statement, line, column=column)

    def _after(self, text: str) -> tuple[int, int]:
        """Return the line and the column after *text*, which begins where the parts do."""
        breaks = text.count("\n")
        return self._line + breaks, len(text) - text.rfind("\n") if breaks else self._column + len(text)

    def _end_of_inside(self, text: str, at: int) -> int:
        """Find where the literal or comment ends; the end of *text* when it goes on after it."""
        if self._inside == "*/":
            while edge := _COMMENT_EDGE.search(text, at):
                at = edge.end()
                self._comment_depth += 1 if edge[0] == "/*" else -1
                if not self._comment_depth:
                    self._inside = ""
                    return at
            return len(text)
        if self._inside == "e'":
            escaped = _ESCAPED_END.match(text, at)
            end = escaped.end() if escaped else 0
        else:
            # A doubled quote ends one literal and begins the next, which comes to the same.
            found = text.find(self._inside, at)
            end = found + len(self._inside) if found >= 0 else 0
        if not end:
            return len(text)
        self._inside = ""
        return end


def split_statements(text: str) -> Iterator[Statement]:
    """Split a whole text into its statements."""
    splitter = StatementSplitter()
    yield from splitter.feed(text)
    yield from splitter.finish()


class _CodeCollector(StatementSplitter):
    """Keeps what stands outside literals, quoted names and comments."""

    def __init__(self) -> None:
        super().__init__()
        self.code: list[str] = []

    def _take_code(self, text: str) -> None:
        self.code.append(text)


def parameter_names(statement: str) -> frozenset[str]:
    """Give the names of a statement's parameters: `name` for `$name`, `1` for `$1`, and `1`, `2` ... for each `?`."""
    collector = _CodeCollector()
    for _ in collector.feed(statement):
        pass
    names: set[str] = set()
    unnamed = 0
    for code in collector.code:
        for mark in _PARAMETER.finditer(code):
            unnamed += mark["name"] is None
            names.add(mark["name"] or str(unnamed))
    return frozenset(names)
