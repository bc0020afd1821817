"""The interactive prompt, which reads statements and commands from a terminal and runs them."""

import os
import re
import shlex
import tempfile
import termios
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from prompt_toolkit.history import History, InMemoryHistory

from runtimeclient.connection import KEY_VARIABLE, STANDARD_INPUT, seconds
from runtimeclient.errors import ClientError, OutputError, UsageError
from runtimeclient.files import parse_path, removing
from runtimeclient.output.formats import FORMATS, format_of
from runtimeclient.output.programs import NOT_STARTED, start_program, wait_for_program
from runtimeclient.output.terminal import DOT_COMMANDS, KINDS, ChartRequest
from runtimeclient.output.text import duration
from runtimeclient.prompt.completion import COLUMNS_SQL, TABLES_SQL, Catalog, PromptCompleter, quoted
from runtimeclient.prompt.dot_commands import Call, find_command, help_text, parse_input
from runtimeclient.prompt.line_editor import FileHistory, LineEditor, history_path
from runtimeclient.sql.runner import StatementRunner
from runtimeclient.sql.statements import Statement, read_statements

_DATABASES = "SELECT DISTINCT catalog_name FROM information_schema.schemata ORDER BY 1"
# The DuckDB shell's names for our formats. Its `line` is a table of records.
_DUCKDB_MODES = {"duckbox": "table", "box": "table", "jsonlines": "ndjson"}


class Repl:
    """Runs the user's input and continues after errors. Each command of DOT_COMMANDS is a method `_do_...`."""

    def __init__(self, runner: StatementRunner, editor: LineEditor, catalog: Catalog) -> None:
        self._runner = runner
        self._console = runner.console
        self._message = runner.console.message
        self._editor = editor
        self._catalog = catalog
        self._has_timing = False
        self._last: Statement | None = None
        # An incomplete text from the external editor, which the next prompt starts with.
        self._unfinished = ""
        self._file = ExitStack()

    def run(self) -> None:
        """
        Read and run input until the user quits.

        Raises:
            ClientError: The runtime cannot be reached or refuses the key. This is checked before the first prompt.
            KeyboardInterrupt: The user pressed Ctrl-C twice in a row.
        """
        client = self._runner.client
        client.status()
        self._message(f"Connected to {client.endpoint.url}. End a statement with a semicolon; .help shows more.")
        was_interrupted = False
        with _terminal_mode(self._console.stdin, reads_lines=False), self._finishing_file():
            while True:
                self._catalog.refresh()
                unfinished, self._unfinished = self._unfinished, ""
                text: str | None = None
                try:
                    text = self._editor.read(unfinished)
                    was_interrupted = False
                    self._run_input(text)
                except EOFError:
                    return
                except ClientError as exc:
                    self._abandon_file()
                    self._console.error(exc)
                except KeyboardInterrupt:
                    if text is not None:
                        self._abandon_file()
                        self._message("Cancelled.")
                    elif was_interrupted and not self._editor.typed:
                        raise
                    was_interrupted = True

    def _run_input(self, text: str) -> None:
        """Run statements and commands in order, up to the first that fails or is cancelled."""
        for part in parse_input(text)[0]:
            if isinstance(part, Call):
                command = getattr(self, f"_do_{find_command(part)}")
                self._last = part.statement or self._last
                command(part.argument)
            else:
                self._last = part
                self._run_statement(part)

    def _run_statement(self, statement: Statement, *, pages: bool = True) -> None:
        elapsed_s = self._runner.run(statement, pages=pages)
        if self._has_timing:
            self._message(f"Time: {duration(elapsed_s)}")

    def _set_style(self, **changes: Any) -> None:
        self._runner.style = replace(self._runner.style, **changes)

    def _do_help(self, _: str) -> None:
        self._console.write_line(help_text())

    def _do_databases(self, _: str) -> None:
        self._run_statement(Statement(_DATABASES))

    def _do_tables(self, _: str) -> None:
        self._run_statement(Statement(TABLES_SQL))

    def _do_schema(self, table: str) -> None:
        # A dot separates schema and table. A name that contains a dot must be typed in quotes.
        name = table if table.startswith('"') else ".".join(map(quoted, table.split(".")))
        self._run_statement(Statement(f"DESCRIBE {name}" if table else COLUMNS_SQL))

    def _do_format(self, name: str) -> None:
        style = self._runner.style
        format_ = _DUCKDB_MODES.get(name.lower(), name.lower())
        if not name:
            self._message(f"Format: {style.format}.")
        elif format_ == "line":
            self._set_style(format="table", expanded="on")
        elif format_ in FORMATS:
            # Switching to a table also ends the records of `.mode line`.
            expanded = "auto" if format_ == "table" and style.expanded == "on" else style.expanded
            self._set_style(format=format_, expanded=expanded)
        else:
            raise UsageError(f"The formats are {', '.join(FORMATS)}.")

    def _do_maxrows(self, text: str) -> None:
        if not re.fullmatch("[0-9]{0,18}", text):
            raise UsageError(".maxrows takes a number of rows, 0 for all.")
        if text:
            self._set_style(max_rows=int(text) or None)
        self._message(f"Maximum rows of a table: {self._runner.style.max_rows or 'all'}.")

    def _do_expanded(self, when: str) -> None:
        when = when.lower() or ("auto" if self._runner.style.expanded == "on" else "on")
        if when not in {"on", "off", "auto"}:
            raise UsageError(".expanded takes on, off or auto.")
        self._set_style(expanded=when)
        self._message(f"Records: {when}.")

    def _do_timing(self, switch: str) -> None:
        switch = switch.lower() or ("off" if self._has_timing else "on")
        if switch not in {"on", "off"}:
            raise UsageError(".timing takes on or off.")
        self._has_timing = switch == "on"
        self._message(f"Timing: {switch}.")

    def _do_watch(self, argument: str) -> None:
        try:
            interval_s = seconds(argument or "2")
        except ArgumentTypeError as exc:
            raise UsageError(".watch takes a number of seconds greater than 0.") from exc
        statement = self._last_statement("repeat")
        while True:
            self._message(f"{time.strftime('%X')}, every {interval_s:g} s; press Ctrl-C to stop.")
            self._run_statement(statement, pages=False)
            try:
                time.sleep(interval_s)
            except KeyboardInterrupt:
                return

    def _do_edit(self, _: str) -> None:
        text = f"{self._last.text};" if self._last else ""
        with _terminal_mode(self._console.stdin, reads_lines=True):
            edited = _edit(text, self._console.child_environ())
        if edited is None:
            self._message("No changes.")
        elif parse_input(edited)[1]:
            self._message(edited)
            self._editor.add_to_history(edited)
            self._run_input(edited)
        else:
            self._unfinished = edited

    def _last_statement(self, purpose: str) -> Statement:
        if self._last is None:
            raise UsageError(f"There is no statement to {purpose} yet.")
        return self._last

    def _do_chart(self, argument: str) -> None:
        try:
            words = shlex.split(argument)
        except ValueError as exc:
            raise UsageError("A quote is not closed.") from exc
        kind = next((kind for kind in KINDS if words[:1] == [kind]), None)
        names = words[1:] if kind else words
        statement = self._last_statement("draw")
        style = self._runner.style
        self._set_style(chart=ChartRequest(kind=kind, x=names[0] if names else None, y=tuple(names[1:])))
        try:
            self._run_statement(statement)
        finally:
            self._runner.style = style

    def _do_output(self, name: str) -> None:
        if name.startswith("|"):  # as for psql
            raise UsageError("Results go to a file, not to a program.")
        path = parse_path(name)
        before = self._runner.style.format
        format_ = format_of(path) or before
        self._file.close()
        if not name:
            return
        self._file.enter_context(self._runner.writing_to(path))
        self._file.callback(self._set_style, format=before)
        self._set_style(format=format_)
        self._message(f"Results go to {path}; .output completes the file.")

    @contextmanager
    def _finishing_file(self) -> Iterator[None]:
        """Complete the output file when the user quits, or discard it after an error."""
        try:
            yield
        except BaseException:
            self._abandon_file()
            raise
        self._file.close()

    def _abandon_file(self) -> None:
        """Discard an output file that lacks results."""
        if self._runner.file is None:
            return
        self._message(f"{self._runner.file.path} was not changed: some results are missing.")
        self._file.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    def _do_read(self, name: str) -> None:
        if name in {"", STANDARD_INPUT}:
            raise UsageError("Name the file to read.")
        for statement in read_statements(str(parse_path(name))):
            self._run_statement(statement)

    def _do_quit(self, _: str) -> None:
        raise EOFError


def make_repl(runner: StatementRunner, environ: Mapping[str, str], *, has_history: bool) -> Repl:
    """Create the prompt. If the history file cannot be used, warn and keep the history in memory."""
    catalog = Catalog(runner.client)
    runner.style = replace(runner.style, hints=DOT_COMMANDS)
    history = _file_history(runner, environ) if has_history else InMemoryHistory()
    return Repl(runner, LineEditor(runner.console, PromptCompleter(catalog), history), catalog)


def _file_history(runner: StatementRunner, environ: Mapping[str, str]) -> History:
    try:
        return FileHistory(history_path(environ), (runner.client.api_key, environ.get(KEY_VARIABLE)))
    except (OutputError, UsageError) as exc:
        runner.console.warn(str(exc))
        return InMemoryHistory()


def _edit(text: str, environ: Mapping[str, str]) -> str | None:
    """
    Let the user edit *text* in EDITOR, else VISUAL, else vi, which gets this environment.

    Return the saved text, stripped; None if the editor failed or nothing changed. Raises UsageError if the editor
    cannot be started, the saved file is not UTF-8, or there is no directory for it.
    """
    # This is the order that psql and the DuckDB shell use.
    name = environ.get("EDITOR") or environ.get("VISUAL") or "vi"
    # mkstemp creates a new file with mode 0600.
    try:
        descriptor, path = tempfile.mkstemp(suffix=".sql", prefix="statement-")
    except OSError as exc:
        raise UsageError("A file for the editor cannot be created: set TMPDIR to a writable directory.") from exc
    file = Path(path)
    with removing(file):
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text + "\n")
            status = wait_for_program(start_program(name, path, environ=environ))
            if status in NOT_STARTED:
                raise UsageError(f"The editor {name} cannot be used: name another in EDITOR.")
            edited = file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as exc:
            raise UsageError(f"The text from the editor {name} cannot be read: it must be UTF-8.") from exc
    return edited if status == 0 and edited != text else None


@contextmanager
def _terminal_mode(stdin: TextIO | None, *, reads_lines: bool) -> Iterator[None]:
    """
    Switch canonical mode and echo of the terminal on, as other programs expect, or off.

    When off, input typed while no prompt is shown is kept for the next prompt, without echo. A terminal in canonical
    mode (N_TTY) drops pasted characters beyond 4,096 of a line.
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
