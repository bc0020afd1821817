"""The streams of one command: what they can display, and messages next to the results."""

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from typing import Literal, NamedTuple, TextIO, TypeAlias

from runtimeclient.connection import KEY_VARIABLE
from runtimeclient.errors import ClientError, ErrorPosition
from runtimeclient.http.api_keys import masked
from runtimeclient.output.text import one_line, visible, width
from runtimeclient.output.writer import Output, TextStream

Expanded: TypeAlias = Literal["auto", "on", "off"]
Kind: TypeAlias = Literal["bar", "line", "scatter"]
ChartFormat: TypeAlias = Literal["svg", "png", "html"]

#: Default maximum number of table rows on a terminal.
TERMINAL_ROWS = 1000
KINDS: tuple[Kind, ...] = ("bar", "line", "scatter")
#: Chart file formats, by file name extension.
CHART_FORMATS: Mapping[str, ChartFormat] = {".svg": "svg", ".png": "png", ".html": "html"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartRequest:
    """The chart that the user asked for."""

    kind: Kind | None = None  # None chooses a kind that suits the columns
    x: str | None = None  # a column; None means the first suitable column
    y: tuple[str, ...] = ()  # columns; empty means all other numeric columns, or the first of them for a scatter chart
    file_format: ChartFormat | None = None  # None means text


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """The options or prompt commands that show all rows or all columns, or name a file."""

    all_rows: str
    all_columns: str
    file: str


OPTIONS = Hints(all_rows="--max-rows 0", all_columns="--expanded on", file="--output")
DOT_COMMANDS = Hints(all_rows=".maxrows 0", all_columns=".expanded on", file=".output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """
    How results are shown. The prompt changes the style with `dataclasses.replace`.

    An expanded table shows each row as a record with one line per column. `auto` expands a table that is wider than
    `columns`. With `elides`, it does so only if omitting middle columns is not enough.
    """

    format: str = "table"  # one of `formats.FORMATS`
    expanded: Expanded = "auto"
    max_rows: int | None = None  # the limit for a table; None means no limit
    elides: bool = False  # whether a table that is too wide may omit columns in the middle
    hints: Hints = OPTIONS
    is_quiet: bool = False  # whether to omit the row count below a table
    is_colored: bool = False
    columns: int | None = None  # width of the terminal; None if the output is not a terminal
    chart: ChartRequest | None = None  # the chart to draw instead of rows, regardless of the format


_SIGNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PERIOD_S = 0.1
_DELAY_S = 0.5
_ERASE_LINE = "\r\x1b[K"


@contextmanager
def progress_line(
    terminal: TextStream, text: Callable[[float], str], size: Callable[[], tuple[int, int]]
) -> Iterator[Callable[[], None]]:
    """
    Show a progress line if the block takes longer than a moment, and erase it at the end.

    Args:
        text: Returns the text, given the seconds since the start. Called from the thread that draws the line.
        size: Returns the current columns and lines of the terminal.

    Yields:
        A function that permanently erases the line. It can be called at any time.
    """
    is_over = threading.Event()

    def draw() -> None:
        start = time.monotonic()
        if is_over.wait(_DELAY_S):
            return
        try:
            for sign in cycle(_SIGNS):
                line = f"{sign} {text(time.monotonic() - start)}"
                # A wrapped line could not be erased.
                terminal.write(_ERASE_LINE + line[: max(size()[0] - 1, 1)])
                terminal.flush()
                if is_over.wait(_PERIOD_S):
                    break
            terminal.write(_ERASE_LINE)
            terminal.flush()
        except OSError:
            return  # The terminal is gone, but the operation may continue.

    thread = threading.Thread(target=draw, daemon=True)

    def clear() -> None:
        is_over.set()
        thread.join()

    thread.start()
    try:
        yield clear
    finally:
        clear()


_RED, _PLAIN = "\x1b[31m", "\x1b[0m"
# The size of a terminal that does not report one.
_COLUMNS, _LINES = 80, 24
# The maximum number of characters shown of the line with an error.
_MAX_EXCERPT = 200
_CUT = "..."


class Streams(NamedTuple):
    """Standard input or None, standard output for results, standard error for errors, warnings and progress."""

    stdin: TextIO | None
    stdout: TextStream
    stderr: TextStream


class Console:
    """
    The streams of one command.

    Args:
        streams: The streams for input and output.
        environ: Supplies NO_COLOR, TERM and PAGER.
        options: The options `no_color`, `no_pager` and `quiet`, each false if absent.
    """

    def __init__(self, streams: Streams, environ: Mapping[str, str], options: argparse.Namespace | None = None) -> None:
        self.stdin, self.stdout, self.stderr = streams
        #: Whether to suppress progress and warnings.
        self.is_quiet: bool = getattr(options, "quiet", False)
        self._environ = environ
        is_plain = getattr(options, "no_color", False) or environ.get("NO_COLOR")  # https://no-color.org
        #: Whether the terminal, if there is one, cannot move its cursor.
        self.is_dumb = environ.get("TERM") == "dumb"
        self._may_color = not is_plain and not self.is_dumb
        self._has_pager = not getattr(options, "no_pager", False)
        #: The key, which is masked in messages and hidden from programs started here.
        self.api_key: str | None = None

    @property
    def is_interactive(self) -> bool:
        """Whether standard input and output are a terminal."""
        return self.stdin is not None and self.stdin.isatty() and self.is_stdout_terminal

    @property
    def is_stdout_terminal(self) -> bool:
        """Whether results go to a terminal."""
        return _is_terminal(self.stdout)

    @property
    def has_color(self) -> bool:
        """Whether results can be coloured."""
        return self._may_color and self.is_stdout_terminal

    def size(self) -> tuple[int, int]:
        """Return the current columns and lines of the terminal."""
        for stream in (self.stdout, self.stderr):
            try:
                size = os.get_terminal_size(stream.fileno())  # type: ignore[attr-defined] # not every stream has one
            except (AttributeError, OSError, ValueError):
                continue
            return size.columns or _COLUMNS, size.lines or _LINES
        return _COLUMNS, _LINES

    def style(self, format_: str = "table") -> Style:
        """Return the style that suits this console."""
        columns = self.size()[0] if self.is_stdout_terminal else None
        return Style(format=format_, is_colored=self.has_color, is_quiet=self.is_quiet, columns=columns)

    def write_line(self, line: str) -> None:
        """Write one line to standard output."""
        output = Output(self.stdout)
        output.write(line + "\n")
        output.flush()

    def child_environ(self) -> dict[str, str]:
        """Return the environment for a program started here, without variables that contain the key."""
        hidden = self.api_key
        environ = {name: value for name, value in self._environ.items() if name != KEY_VARIABLE}
        return {name: value for name, value in environ.items() if hidden is None or hidden not in value}

    @contextmanager
    def paged(self) -> Iterator[Output]:
        """Write one result, using a pager if the output is a terminal and the result does not fit."""
        if not (self._has_pager and self.is_stdout_terminal):
            yield Output(self.stdout)
            return
        from runtimeclient.output.programs import PagedStream, pager_command  # noqa: PLC0415 (subprocess is slow to import)

        if (command := pager_command(self._environ)) is None:
            yield Output(self.stdout)
            return
        stream = PagedStream(self.stdout, self.size(), command, self.child_environ(), self.warn)
        try:
            yield Output(stream)
        except BrokenPipeError:
            pass  # The user has quit the pager.
        finally:
            stream.close()

    def progress(self, text: Callable[[float], str]) -> AbstractContextManager[Callable[[], None]]:
        """Show a progress line on standard error, if it is a terminal, while the block is slow. Yield its eraser."""
        if not _is_terminal(self.stderr) or self.is_quiet or self.is_dumb:
            return nullcontext(lambda: None)
        return progress_line(self.stderr, text, self.size)

    def message(self, line: str) -> None:
        """Write a message to standard error."""
        self.stderr.write(line + "\n")
        self.stderr.flush()

    def warn(self, text: str) -> None:
        """Write a warning, unless quiet."""
        if not self.is_quiet:
            self.message(f"Warning: {one_line(masked(text, self.api_key))}")

    def error(self, exc: ClientError) -> None:
        """Write an error on one line, with its position in a script. On a terminal, show an excerpt below."""
        position = exc.position
        where = ""
        if position is not None:
            where = f"{position.source}, line {position.line}, column {position.column}: ".removeprefix(", ")
        on_terminal = _is_terminal(self.stderr)
        word = f"{_RED}Error:{_PLAIN}" if on_terminal and self._may_color else "Error:"
        self.message(f"{word} {one_line(masked(f'{where}{exc}', self.api_key))}")
        if position is not None and on_terminal:
            self.message(excerpt(position))


def excerpt(position: ErrorPosition) -> str:
    """Return the line with the error and a line with a caret below it, safe to print on a terminal."""
    at = position.column - position.text_column
    start = max(0, at - _MAX_EXCERPT // 2)
    end = start + _MAX_EXCERPT
    before = visible(position.text[start:at])
    head = f"{position.line} | " + (_CUT if start else "")
    tail = _CUT if len(position.text) > end else ""
    return f"{head}{before}{visible(position.text[at:end])}{tail}\n{' ' * (len(head) + width(before))}^"


def _is_terminal(stream: TextStream) -> bool:
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())
