"""Run statements and show their answers: what `sql` with a statement, a script and the prompt have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from runtimeclient.answers import SqlAnswer
from runtimeclient.client import RuntimeClient
from runtimeclient.console import Console
from runtimeclient.errors import RequestRefusedError, UsageError
from runtimeclient.excerpts import find_place
from runtimeclient.formats import CHART_FORMAT, FORMATS, write_answer
from runtimeclient.json_stream import JsonValue
from runtimeclient.output import Output, OutputFile, output_file
from runtimeclient.progress import Progress
from runtimeclient.quantities import duration, plural, size
from runtimeclient.statements import Statement
from runtimeclient.style import Style


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    What is known of an answer that was shown.

    Attributes:
        rows: How many; None where the format does not count them.
        bytes_read: Of the answer, as it came.
        elapsed_s: From the question to the end of the answer.
    """

    rows: int | None
    bytes_read: int
    elapsed_s: float


class Asker:
    """
    Runs one statement after the other and shows the answers.

    Args:
        client: Whom to ask.
        console: Where answers go, unless there is a `file`.
        style: How they are shown.
        parts_answers: An empty line goes between answers that are laid out for people.

    Attributes:
        style: May be replaced between two statements.
        file: Takes the answers instead of the console; see `into`.
    """

    def __init__(self, client: RuntimeClient, console: Console, style: Style, *, parts_answers: bool = False) -> None:
        self.client = client
        self.console = console
        self.style = style
        self.file: OutputFile | None = None
        self._parts_answers = parts_answers
        self._answers = 0
        # Answers when the file was opened.
        self._before_file = 0

    @contextmanager
    def into(self, path: Path) -> Iterator[None]:
        """
        Send the answers of this block to a file, which is there at its end, or as it was before if the block fails.

        Raises:
            OutputError: The file cannot be written.
        """
        with output_file(path) as file:
            self.file, self._before_file = file, self._answers
            try:
                yield
            finally:
                self.file = None

    def ask(
        self, statement: Statement, parameters: Mapping[str, JsonValue] | None = None, *, pages: bool = True
    ) -> Asked:
        """
        Run a statement and show its answer. KeyboardInterrupt ends the connection, and with it the query.

        Args:
            statement: What to run.
            parameters: Values by name, or by the numbers of their places.
            pages: A pager may show what does not fit on the terminal.

        Raises:
            UsageError: The format does not go where the answers go.
            RequestRefusedError: With `place` when the runtime says where in the statement the mistake is.
            NotAuthorisedError, ConnectionFailedError, AnswerCutError, OutputError: See `RuntimeClient.sql`.
        """
        chart = self.style.chart
        format_ = CHART_FORMAT if chart else FORMATS[self.style.format]
        # Before anything is sent: it may need what is not installed.
        write_file = self._file_writer() if format_.is_binary or (chart and chart.picture) else None
        start = time.monotonic()
        end: float | None = None
        answer: SqlAnswer | None = None
        with ExitStack() as stack:
            progress = stack.enter_context(self.console.progress(lambda elapsed_s: _how_far(answer, elapsed_s)))
            output = self._output(stack, progress, pages=pages)
            # Closed before the pager is waited for: the query ends while the user reads.
            answer = stack.enter_context(self._send(statement, format_.media_type, parameters))
            if write_file is not None:
                write_file(answer)
            else:
                if self._parts_answers and self._answers and format_.is_layout:
                    output.write("\n")
                write_answer(answer, self._style(), output)
            end = time.monotonic()
        self._answers += 1
        rows = answer.rows_read if format_.counts_rows else None
        return Asked(rows=rows, bytes_read=answer.bytes_read, elapsed_s=(end or time.monotonic()) - start)

    def _send(self, statement: Statement, media_type: str, parameters: Mapping[str, JsonValue] | None) -> SqlAnswer:
        try:
            return self.client.sql(statement.text, media_type, _by_name_or_order(parameters or {}))
        except RequestRefusedError as exc:
            detail, place = find_place(exc.detail, statement)
            if place is None:
                raise
            raise RequestRefusedError(exc.status, exc.code, detail, exc.request_id, place) from exc

    def _output(self, stack: ExitStack, progress: Progress, *, pages: bool) -> Output:
        if self.file is not None:
            return self.file.output
        output = stack.enter_context(self.console.paged()) if pages else self.console.output()
        if self.console.shows_answers:
            output.before = progress.clear
        return output

    def _style(self) -> Style:
        """Leave out what is made for a terminal where there is none; a terminal may have changed its size."""
        if self.file is not None:
            return replace(self.style, columns=None, is_colored=False, max_rows=None)
        return replace(self.style, columns=self.console.columns() if self.console.shows_answers else None)

    def _file_writer(self) -> Callable[[SqlAnswer], None]:
        """Choose what writes a file that is no text. Raises UsageError."""
        chart = self.style.chart
        format_ = chart.picture if chart and chart.picture else self.style.format
        if self.file is None:
            raise UsageError(f"The format {format_} goes to a file only: name one with {self.style.hints.file}.")
        if self.file.is_terminal:
            raise UsageError(f"The format {format_} does not go to a terminal.")
        if self._answers > self._before_file:
            raise UsageError(f"A file of the format {format_} holds the answer of one statement only.")
        stream = self.file.stream
        if chart and chart.picture:
            from runtimeclient.chart_files import write_picture  # noqa: PLC0415 (an extra, and it takes long)

            return partial(write_picture, chart=chart, stream=stream)
        from runtimeclient.arrow_files import write_arrow_answer  # noqa: PLC0415 (an extra, and it takes long)

        return partial(write_arrow_answer, format_=self.style.format, stream=stream)


def _how_far(answer: SqlAnswer | None, elapsed_s: float) -> str:
    if answer is None:
        return duration(elapsed_s)
    rows = f", {plural(answer.rows_read, 'row')}" if answer.rows_read else ""
    return f"{duration(elapsed_s)}{rows}, {size(answer.bytes_read)}"


def _by_name_or_order(parameters: Mapping[str, JsonValue]) -> Mapping[str, JsonValue] | Sequence[JsonValue]:
    """Names that count from 1 are the places of `?` and `$1`; not every runtime takes these as names."""
    places = [str(number) for number in range(1, len(parameters) + 1)]
    return [parameters[place] for place in places] if set(places) == set(parameters) else parameters
