"""Runs statements and shows their results, for `sql` with a statement or script and for the prompt."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runtimeclient.errors import ErrorPosition, RequestRefusedError, UsageError
from runtimeclient.http.results import JsonValue, SqlResult
from runtimeclient.output.formats import FORMATS, read_rows, write_result
from runtimeclient.output.terminal import Console, Style
from runtimeclient.output.text import duration, plural, size, width
from runtimeclient.output.writer import Output, OutputFile, output_file
from runtimeclient.sql.statements import Statement

if TYPE_CHECKING:
    from runtimeclient.client import RuntimeClient

# The last two lines of a message: a line of the statement, truncated on both sides if long, and a caret below it. The
# line number has at most nine digits: no statement has more lines, and Python refuses to parse very long numbers.
_EXCERPT = re.compile(r"LINE (?P<line>[0-9]{1,9}): (?P<text>.*)\n(?P<space>[ ]*)\^[\^~ ]*")
_POSITION = re.compile(r" ?\(line (?P<line>[0-9]{1,9}), column (?P<column>[0-9]{1,9})\)")
_CUT = "..."


def find_position(message: str, statement: Statement) -> tuple[str, ErrorPosition | None]:
    """
    Separate the error position from a message.

    Returns:
        The message without the position, and the position in the script. If the message has no position, or a position
            outside the statement, the unchanged message and None.
    """
    lines = statement.text.split("\n")
    # Split by lines, because a regex search would backtrack for hours on the spaces that a hostile server can send.
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
    """Return the index of the character at a terminal column. The engine counts wide characters as two columns."""
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


class StatementRunner:
    """
    Runs statements one by one and shows the results.

    Args:
        style: How to show results. The attribute can be replaced between two statements.
        separates_results: Whether to write an empty line between results in formats for people.
    """

    def __init__(
        self, client: "RuntimeClient", console: Console, style: Style, *, separates_results: bool = False
    ) -> None:
        self.client = client
        self.console = console
        self.style = style
        #: Receives the results instead of the console. See `writing_to`.
        self.file: OutputFile | None = None
        self._separates_results = separates_results
        self._results = 0

    @contextmanager
    def writing_to(self, path: Path) -> Iterator[None]:
        """
        Write the results of this block to a file. The file is replaced when the block ends, and kept if it fails.

        Raises:
            OutputError: The file cannot be written.
        """
        with output_file(path) as file:
            self.file, self._results = file, 0
            try:
                yield
            finally:
                self.file = None

    def run(
        self, statement: Statement, parameters: Mapping[str, JsonValue] | None = None, *, pages: bool = True
    ) -> float:
        """
        Run a statement and show its result. KeyboardInterrupt closes the connection, which cancels the statement.

        Args:
            parameters: Values by name, or by position.
            pages: Whether to show a result that does not fit on the terminal in a pager.

        Returns:
            The seconds until the whole result had arrived or the user left the pager, excluding the time spent writing
            it.

        Raises:
            UsageError: The format cannot be written to this output.
            RequestRefusedError: Has a `position` if the runtime reports the position of the error in the statement.
            NotAuthorisedError, ConnectionFailedError, IncompleteResultError, OutputError: See `RuntimeClient.sql`.
        """
        chart = self.style.chart
        # A chart is drawn from the table format, which has columns even without rows.
        format_ = FORMATS["table" if chart else self.style.format]
        # Choose the writer before sending anything, because it may need a package that is not installed.
        write_file = self._file_writer() if format_.is_binary or (chart and chart.file_format) else None
        start = time.monotonic()
        elapsed_s = 0.0
        answer: SqlResult | None = None
        with ExitStack() as stack:
            clear = stack.enter_context(self.console.progress(lambda elapsed_s: _progress_text(answer, elapsed_s)))
            output = self._output(stack, clear, pages=pages)
            waited_s = output.waited_s
            # This is closed before waiting for the pager, so the query ends while the user reads.
            answer = stack.enter_context(self._send(statement, format_.media_type, parameters or {}))
            try:
                if write_file is not None:
                    write_file(answer)
                else:
                    if self._separates_results and self._results and format_.is_layout:
                        output.write("\n")
                    write_result(answer, self._current_style(), output)
            finally:
                elapsed_s = time.monotonic() - start - (output.waited_s - waited_s)
        self._results += 1
        return elapsed_s

    def _send(self, statement: Statement, media_type: str, parameters: Mapping[str, JsonValue]) -> SqlResult:
        # Send the names 1, 2, ... as positions, for `?` and `$1`, because not every runtime accepts them as names.
        positions = [str(number) for number in range(1, len(parameters) + 1)]
        by_position = [parameters[position] for position in positions] if set(positions) == set(parameters) else None
        try:
            return self.client.sql(statement.text, media_type, parameters if by_position is None else by_position)
        except RequestRefusedError as exc:
            detail, position = find_position(exc.detail, statement)
            if position is None:
                raise
            raise RequestRefusedError(exc.status, exc.code, detail, exc.request_id, position) from exc

    def _output(self, stack: ExitStack, clear: Callable[[], None], *, pages: bool) -> Output:
        if self.file is not None:
            return self.file.output
        output = stack.enter_context(self.console.paged()) if pages else Output(self.console.stdout)
        if self.console.is_stdout_terminal:
            output.before = clear
        return output

    def _current_style(self) -> Style:
        """Return the style for this output, with the current terminal size, or without terminal features."""
        if self.file is not None:
            return replace(self.style, columns=None, is_colored=False, max_rows=None)
        return replace(self.style, columns=self.console.size()[0] if self.console.is_stdout_terminal else None)

    def _file_writer(self) -> Callable[[SqlResult], object]:
        """Choose the writer of a binary file. Raises UsageError."""
        chart = self.style.chart
        format_ = chart.file_format if chart and chart.file_format else self.style.format
        if self.file is None:
            raise UsageError(f"The format {format_} needs a file: name one with {self.style.hints.file}.")
        if self.file.stream.isatty():
            raise UsageError(f"The format {format_} cannot be written to a terminal.")
        if self._results:
            raise UsageError(f"A {format_} file can hold the result of one statement only.")
        if chart and chart.file_format:
            from runtimeclient.output.charts import file_drawer, make_chart  # noqa: PLC0415 (few results are charts)

            draw, stream = file_drawer(chart.file_format), self.file.stream
            return lambda result: stream.write(draw(make_chart(*read_rows(result), chart)))
        from runtimeclient.output.arrow_files import write_arrow_result  # noqa: PLC0415 (an extra, slow to import)

        return partial(write_arrow_result, format_=format_, stream=self.file.stream)


def _progress_text(answer: SqlResult | None, elapsed_s: float) -> str:
    if answer is None:
        return duration(elapsed_s)
    rows = f", {plural(answer.rows_read, 'row')}" if answer.rows_read else ""
    return f"{duration(elapsed_s)}{rows}, {size(answer.bytes_read)}"
