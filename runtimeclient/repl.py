"""Ask one statement after the other at a terminal."""

from __future__ import annotations

import shlex
import termios
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Protocol, TextIO

from runtimeclient.asking import Asker
from runtimeclient.charts import KINDS, ChartRequest
from runtimeclient.completing import quoted
from runtimeclient.connection import seconds
from runtimeclient.dot_commands import Called, find_command, help_text, read_typed
from runtimeclient.editing import edit
from runtimeclient.errors import ClientError, UsageError
from runtimeclient.formats import FORMATS, format_of
from runtimeclient.names import COLUMNS_SQL, Names
from runtimeclient.paths import path_of
from runtimeclient.quantities import duration
from runtimeclient.scripts import read_statements
from runtimeclient.statements import Statement
from runtimeclient.style import Expanded

_DATABASES = "SELECT DISTINCT catalog_name FROM information_schema.schemata ORDER BY 1"
_TABLES = "SHOW TABLES"
# What the DuckDB shell calls our formats; its `line` is a table of records.
_DUCKDB_MODES = {"duckbox": "table", "box": "table", "jsonlines": "ndjson"}
_SWITCH: Mapping[str, bool] = {"on": True, "off": False}
_EXPANDED: Mapping[str, Expanded] = {"on": "on", "off": "off", "auto": "auto"}


class Editor(Protocol):
    """Asks for what is to be run; see `line_editor.LineEditor`."""

    @property
    def typed(self) -> str:
        """What stood there when `read` was left."""

    def read(self, text: str = "") -> str:
        """Ask for a text; *text* stands there already. Raises EOFError and KeyboardInterrupt."""

    def keep(self, text: str) -> None:
        """Keep a text as if it had been typed."""


class Repl:
    """
    Runs what is typed at a terminal, and goes on after errors.

    Args:
        asker: Runs the statements and shows the answers.
        editor: Asks for them.
        names: Told when it is time to look at the tables again.
    """

    def __init__(self, asker: Asker, editor: Editor, names: Names) -> None:
        self._asker = asker
        self._console = asker.console
        self._editor = editor
        self._names = names
        self._has_timing = False
        self._last: Statement | None = None
        # What was edited and is not complete: it stands at the next prompt.
        self._unfinished = ""
        self._file = ExitStack()
        self._commands: Mapping[str, Callable[[str], None]] = {
            "help": lambda _: self._show(help_text()),
            "databases": lambda _: self._ask(Statement(_DATABASES)),
            "tables": lambda _: self._ask(Statement(_TABLES)),
            "schema": self._schema,
            "format": self._format,
            "expanded": self._expanded,
            "maxrows": self._max_rows,
            "timing": self._timing,
            "watch": self._watch,
            "edit": self._edit,
            "chart": self._chart,
            "output": self._output,
            "read": self._read,
            "quit": self._quit,
        }

    def run(self) -> None:
        """
        Talk until the user leaves.

        Raises:
            ClientError: The runtime cannot be reached or refuses the key, found out before the first prompt.
            KeyboardInterrupt: The user pressed Ctrl-C twice in a row.
        """
        client = self._asker.client
        client.status()
        self._console.tell(f"Connected to {client.endpoint.url}. End a statement with a semicolon; .help shows more.")
        was_interrupted = False
        with _terminal_mode(self._console.stdin, reads_lines=False), self._file_at_the_end():
            while True:
                self._names.refresh()
                unfinished, self._unfinished = self._unfinished, ""
                try:
                    text = self._editor.read(unfinished)
                except EOFError:
                    return
                except KeyboardInterrupt:
                    if was_interrupted and not self._editor.typed:
                        raise
                    was_interrupted = True
                    continue
                was_interrupted = False
                try:
                    self._run(text)
                except EOFError:
                    return
                except ClientError as exc:
                    self._abandon_file()
                    self._console.error(exc)
                except KeyboardInterrupt:
                    was_interrupted = True
                    self._abandon_file()
                    self._console.tell("Cancelled.")

    def _run(self, text: str) -> None:
        """Run statements and commands in order, up to the first that fails or is cancelled."""
        for part in read_typed(text)[0]:
            if isinstance(part, Called):
                command = self._commands[find_command(part)]
                self._last = part.statement or self._last
                command(part.argument)
            else:
                self._last = part
                self._ask(part)

    def _ask(self, statement: Statement, *, pages: bool = True) -> None:
        asked = self._asker.ask(statement, pages=pages)
        if self._has_timing:
            self._console.tell(f"Time: {duration(asked.elapsed_s)}")

    def _schema(self, table: str) -> None:
        # A dot parts the schema from the table; a name with a dot in it is typed in quotes.
        name = table if table.startswith('"') else ".".join(map(quoted, table.split(".")))
        self._ask(Statement(f"DESCRIBE {name}" if table else COLUMNS_SQL))

    def _format(self, name: str) -> None:
        style = self._asker.style
        format_ = _DUCKDB_MODES.get(name.lower(), name.lower())
        if not name:
            self._console.tell(f"Answers are shown as {style.format}.")
        elif format_ == "line":
            self._asker.style = replace(style, format="table", expanded="on")
        elif format_ in FORMATS:
            # Asking for a table ends the records that `.mode line` asked for.
            expanded = "auto" if format_ == "table" and style.expanded == "on" else style.expanded
            self._asker.style = replace(style, format=format_, expanded=expanded)
        else:
            raise UsageError(f"The formats are {', '.join(FORMATS)}.")

    def _max_rows(self, text: str) -> None:
        if text and not (text.isascii() and text.isdigit()):
            raise UsageError("Say how many rows of a table to show, 0 for all.")
        if text:
            self._asker.style = replace(self._asker.style, max_rows=int(text) or None)
        self._console.tell(f"Rows of a table: {self._asker.style.max_rows or 'all'}.")

    def _expanded(self, when: str) -> None:
        before = self._asker.style.expanded
        expanded = _EXPANDED.get(when.lower()) if when else ("auto" if before == "on" else "on")
        if expanded is None:
            raise UsageError("Rows are shown as records with on, off or auto.")
        self._asker.style = replace(self._asker.style, expanded=expanded)
        self._console.tell(f"Records: {expanded}.")

    def _timing(self, switch: str) -> None:
        has_timing = _SWITCH.get(switch.lower()) if switch else not self._has_timing
        if has_timing is None:
            raise UsageError("The timing is on or off.")
        self._has_timing = has_timing
        self._console.tell(f"Timing: {'on' if has_timing else 'off'}.")

    def _watch(self, argument: str) -> None:
        try:
            interval_s = seconds(argument or "2")
        except (ValueError, ArgumentTypeError) as exc:
            raise UsageError("The time between two runs is a number of seconds above 0.") from exc
        statement = self._last_statement("repeated")
        while True:
            self._console.tell(f"{time.strftime('%X')}, every {interval_s:g} s; Ctrl-C ends it.")
            self._ask(statement, pages=False)
            try:
                time.sleep(interval_s)
            except KeyboardInterrupt:
                return

    def _edit(self, _: str) -> None:
        text = f"{self._last.text};" if self._last else ""
        with _terminal_mode(self._console.stdin, reads_lines=True):
            edited = edit(text, self._console.environ_of_programs())
        if edited is None:
            self._console.tell("Nothing was changed.")
        elif read_typed(edited)[1]:
            self._console.tell(edited)
            self._editor.keep(edited)
            self._run(edited)
        else:
            self._unfinished = edited

    def _last_statement(self, done: str) -> Statement:
        if self._last is None:
            raise UsageError(f"There is no statement yet that could be {done}.")
        return self._last

    def _chart(self, argument: str) -> None:
        try:
            words = shlex.split(argument)
        except ValueError as exc:
            raise UsageError("A quote is not closed.") from exc
        kind = next((kind for kind in KINDS if words[:1] == [kind]), None)
        names = words[1:] if kind else words
        statement = self._last_statement("drawn")
        chart = ChartRequest(kind=kind, x=names[0] if names else None, y=tuple(names[1:]))
        style = self._asker.style
        self._asker.style = replace(style, chart=chart)
        try:
            self._ask(statement)
        finally:
            self._asker.style = style

    def _output(self, name: str) -> None:
        path = path_of(name)
        style = self._asker.style
        format_ = format_of(path) or style.format
        self._file.close()
        if not name:
            return
        with ExitStack() as stack:
            stack.enter_context(self._asker.into(path))
            self._asker.style = replace(style, format=format_)
            stack.callback(self._restore_format, style.format)
            self._file = stack.pop_all()
        self._console.tell(f"Answers go to {path}, which is there after .output.")

    def _restore_format(self, format_: str) -> None:
        self._asker.style = replace(self._asker.style, format=format_)

    @contextmanager
    def _file_at_the_end(self) -> Iterator[None]:
        """Finish the file that is still written when the user leaves; an error on the way leaves none."""
        try:
            yield
        except BaseException:
            self._abandon_file()
            raise
        self._file.close()

    def _abandon_file(self) -> None:
        """Let go of a file whose answers are not all there, and say so."""
        if self._asker.file is None:
            return
        self._console.tell(f"{self._asker.file.path} is as it was: not every answer for it came.")
        self._file.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        self._file = ExitStack()

    def _read(self, name: str) -> None:
        if not name:
            raise UsageError("Name the file to read.")
        for statement in read_statements(str(path_of(name))):
            self._ask(statement)

    def _quit(self, _: str) -> None:
        raise EOFError

    def _show(self, text: str) -> None:
        output = self._console.output()
        output.write(text)
        output.flush()


@contextmanager
def _terminal_mode(stdin: TextIO | None, *, reads_lines: bool) -> Iterator[None]:
    """
    Have the terminal read lines and show what is typed, as programs expect it, or neither.

    With neither, what is typed while no prompt is there is kept for the next one without being shown. A terminal that
    reads by lines drops what a paste brings beyond 4,096 characters of a line (N_TTY).
    """
    if stdin is None or not stdin.isatty():
        yield
        return
    before = termios.tcgetattr(stdin)
    mode = list(before)
    flags = termios.ICANON | termios.ECHO
    mode[3] = mode[3] | flags if reads_lines else mode[3] & ~flags
    termios.tcsetattr(stdin, termios.TCSANOW, mode)
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSANOW, before)
