"""Splits text and scripts into SQL statements, and finds their parameters."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count
from typing import NamedTuple

from runtimeclient.connection import STANDARD_INPUT
from runtimeclient.errors import UsageError
from runtimeclient.http.results import JsonValue, Number, parse_json

# Characters that are not part of a word. The engine treats every non-ASCII character as a letter. The equivalent
# positive class (`\w\x80-\U0010ffff`) would take milliseconds to compile each time the client starts.
_NON_WORD = r"\x00-#%-/:-@\[-^`{-\x7f"
#: One character of a name, as the engine reads names.
LETTER = rf"[^{_NON_WORD}$]"
_NOT_IN_A_WORD = rf"(?<![^{_NON_WORD}])"
_STOP = re.compile(
    rf"""
      --[^\r\n]*                                  # a comment to the end of the line
    | /\*                                         # a comment, possibly nested
    | ['"`]                                       # a string or a quoted name
    | {_NOT_IN_A_WORD}[eE]'                       # a string with backslash escapes
    | {_NOT_IN_A_WORD}\$(?![0-9]){LETTER}*\$      # $$ or $tag$; $1 is a parameter
    | ;
    """,
    re.VERBOSE,
)
#: Also stops at a backslash, where a psql command starts. SQL has no backslash outside literals.
STOP_AT_BACKSLASH = re.compile(rf"{_STOP.pattern} | \\", re.VERBOSE)
_PARAMETER = re.compile(
    rf"""
      {_NOT_IN_A_WORD}\$(?P<dollar>{LETTER}+)
      # After an operand a colon begins something else: a cast, a slice, the value of a struct.
    | (?<=[\s(\[,=<>!+*/%^&|~@-])(?<![^{_NON_WORD}]\[)(?<![\])]\[):(?P<colon>(?![0-9]){LETTER}+)
    | \?
    """,
    re.VERBOSE,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_ESCAPED_END = re.compile(r"(?:[^'\\]++|\\.|'')*+'", re.DOTALL)


class Statement(NamedTuple):
    """One statement, the line and column (from 1) of the script where it starts, and the script's name."""

    text: str
    line: int = 1
    source: str = ""
    column: int = 1


class StatementSplitter:
    """
    Takes lines and yields each statement as soon as its semicolon arrives.

    Statements exclude the semicolon and surrounding white space. Text with only white space and comments is not a
    statement. The run time is linear in any text.
    """

    def __init__(self) -> None:
        #: The parts of the statement outside literals, quoted names and comments.
        self.code: list[str] = []
        self._parts: list[str] = []
        self._has_code = False
        # The position of the first part.
        self._line = self._column = 1
        # The end of the current literal or comment: a quote, a $tag$, "*/", or "e'" for an escaped string.
        self._inside = ""
        self._comment_depth = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a statement, literal or comment is unfinished."""
        return self._has_code or bool(self._inside)

    @property
    def is_inside(self) -> bool:
        """Whether the text ends in a literal, a quoted name or a comment. `--` comments do not count."""
        return bool(self._inside)

    @property
    def rest(self) -> str:
        """The text after the last semicolon."""
        return "".join(self._parts)

    def feed(self, lines: str) -> Iterator[Statement]:
        """Take one or more whole lines, with line breaks, and yield the statements that end in them."""
        at = 0
        while at < len(lines):
            at, mark = self.take(lines, at)
            if mark:
                yield from self._complete()

    def take(self, lines: str, at: int, stops: re.Pattern[str] = _STOP) -> tuple[int, str]:
        """
        Consume *lines* from *at* up to the first statement terminator outside literals, quoted names and comments.

        Args:
            lines: One or more whole lines, with line breaks.
            at: Index to start at.
            stops: The pattern that ends the search. STOP_AT_BACKSLASH also stops at a backslash.

        Returns:
            The index after the terminator, and the terminator, or the end of *lines* and "" if there is none.
        """
        while at < len(lines):
            if self._inside:
                end = self._end_of_inside(lines, at)
                self._parts.append(lines[at:end])
                at = end
                continue
            stop = stops.search(lines, at)
            end = stop.start() if stop else len(lines)
            code = lines[at:end]
            self._parts.append(code)
            self.code.append(code)
            self._has_code = self._has_code or bool(code.strip())
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
        """Yield the rest even with an unfinished literal or comment, because the runtime reports the error."""
        self._has_code = self.is_waiting
        yield from self._complete()
        self._inside = ""

    def _complete(self) -> Iterator[Statement]:
        text, has_code = "".join(self._parts), self._has_code
        self._parts, self.code, self._has_code = [], [], False
        statement = text.strip()
        line, column = self._after(text[: text.index(statement)])
        self._line, self._column = self._after(f"{text};")
        if has_code:
            yield Statement(statement, line, column=column)

    def _after(self, text: str) -> tuple[int, int]:
        """Return the line and column after *text*, which starts where the parts start."""
        breaks = text.count("\n")
        return self._line + breaks, len(text) - text.rfind("\n") if breaks else self._column + len(text)

    def _end_of_inside(self, text: str, at: int) -> int:
        """Return the end of the literal or comment, or the end of *text* if it does not end there."""
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
            # A doubled quote can be read as the end of one literal and the start of the next.
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


def read_statements(file: str | None) -> Iterator[Statement]:
    """
    Yield the statements of a script (`-` or None is standard input), each as soon as it is complete.

    Raises:
        UsageError: The file cannot be read, or is not UTF-8.
    """
    path: int | str = 0 if file is None or file == STANDARD_INPUT else file
    name, source = ("Standard input", "standard input") if path == 0 else (f"The file {path}", str(path))
    splitter = StatementSplitter()
    try:
        # Keep line breaks unchanged, because they may be part of a literal.
        with open(path, encoding="utf-8-sig", newline="", closefd=path != 0) as lines:
            for line in lines:
                yield from (statement._replace(source=source) for statement in splitter.feed(line))
    except UnicodeDecodeError as exc:
        raise UsageError(f"{name} is not UTF-8 text.") from exc
    except OSError as exc:
        raise UsageError(f"{name} cannot be read: {exc.strerror}.") from exc
    yield from (statement._replace(source=source) for statement in splitter.finish())


def parameter_names(statement: str) -> frozenset[str]:
    """
    Return the names of a statement's parameters.

    The name is `name` for `$name` and `:name`, and `1` for `$1`. Each `?` has the next number: `1`, `2` and so on.
    """
    splitter = StatementSplitter()
    for _ in splitter.feed(statement):
        pass
    unnamed = count(1)
    marks = chain.from_iterable(map(_PARAMETER.finditer, splitter.code))
    return frozenset(mark["dollar"] or mark["colon"] or str(next(unnamed)) for mark in marks)


# RFC 8259, 6.
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS: Mapping[str, JsonValue] = {"true": True, "false": False, "null": None}


def parse_parameters(arguments: Iterable[str]) -> dict[str, JsonValue]:
    """
    Parse `NAME=VALUE` and `NAME:=JSON` arguments.

    VALUE is a number if it is a JSON number, a boolean or null if it is `true`, `false` or `null`, and text otherwise.
    `NAME:=JSON` specifies the exact value: `NAME:="1"` is text, and `NAME:=[1,2]` is a list.

    Raises:
        UsageError: An argument has neither form, or a name is repeated.
    """
    values: dict[str, JsonValue] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":").lstrip("$:")
        if not equals or not name:
            raise UsageError("A parameter has the form NAME=VALUE or NAME:=JSON.")
        if name in values:
            raise UsageError(f"The parameter {name} is given twice.")
        try:
            guessed = Number(text) if _NUMBER.fullmatch(text) else _WORDS.get(text, text)
            values[name] = parse_json(text) if is_json else guessed
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"The value of the parameter {name} is not JSON: use NAME=VALUE for plain text.") from exc
    return values


def parameters_of(statement: str, values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the *values* that the statement uses; names are case-insensitive."""
    names = {name.casefold() for name in parameter_names(statement)}
    return {name: value for name, value in values.items() if name.casefold() in names}
