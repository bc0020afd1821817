"""Ask one statement after the other at a terminal."""

from __future__ import annotations

import shlex
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Protocol, TextIO

from runtimeclient.asking import Asker
from runtimeclient.charts import KINDS, ChartRequest
from runtimeclient.completing import quoted
from runtimeclient.dot_commands import Called, find_command, help_text, read_typed
from runtimeclient.errors import ClientError, UsageError
from runtimeclient.formats import FORMATS, format_of
from runtimeclient.names import COLUMNS_SQL, Names
from runtimeclient.paths import path_of
from runtimeclient.quantities import duration
from runtimeclient.scripts import read_statements
from runtimeclient.statements import Statement
from runtimeclient.style import Expanded

_TABLES = "SHOW TABLES"
_SWITCH: Mapping[str, bool] = {"on": True, "off": False}
_EXPANDED: Mapping[str, Expanded] = {"on": "on", "off": "off", "auto": "auto"}


class Editor(Protocol):
    """Asks for what is to be run; see `line_editor.LineEditor`."""

    @property
    def typed(self) -> str:
        """What stood there when `read` was left."""

    def read(self) -> str:
        """Ask for a text. Raises EOFError and KeyboardInterrupt."""


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
        self._file = ExitStack()
        self._commands: Mapping[str, Callable[[str], None]] = {
            "help": lambda _: self._show(help_text()),
            "tables": lambda _: self._ask(Statement(_TABLES)),
            "schema": self._schema,
            "format": self._format,
            "expanded": self._expanded,
            "timing": self._timing,
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
        with _no_echo(self._console.stdin), self._file_at_the_end():
            while True:
                self._names.refresh()
                try:
                    text = self._editor.read()
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
                self._commands[find_command(part)](part.argument)
            else:
                self._last = part
                self._ask(part)

    def _ask(self, statement: Statement) -> None:
        asked = self._asker.ask(statement)
        if self._has_timing:
            self._console.tell(f"Time: {duration(asked.elapsed_s)}")

    def _schema(self, table: str) -> None:
        # A dot parts the schema from the table; a name with a dot in it is typed in quotes.
        name = table if table.startswith('"') else ".".join(map(quoted, table.split(".")))
        self._ask(Statement(f"DESCRIBE {name}" if table else COLUMNS_SQL))

    def _format(self, name: str) -> None:
        if not name:
            self._console.tell(f"Answers are shown as {self._asker.style.format}.")
        elif name.lower() in FORMATS:
            self._asker.style = replace(self._asker.style, format=name.lower())
        else:
            raise UsageError(f"The formats are {', '.join(FORMATS)}.")

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

    def _chart(self, argument: str) -> None:
        try:
            words = shlex.split(argument)
        except ValueError as exc:
            raise UsageError("A quote is not closed.") from exc
        kind = next((kind for kind in KINDS if words[:1] == [kind]), None)
        names = words[1:] if kind else words
        if self._last is None:
            raise UsageError("There is no statement yet whose answer could be drawn.")
        chart = ChartRequest(kind=kind, x=names[0] if names else None, y=tuple(names[1:]))
        style = self._asker.style
        self._asker.style = replace(style, chart=chart)
        try:
            self._ask(self._last)
        finally:
            self._asker.style = style

    def _output(self, name: str) -> None:
        self._file.close()
        if not name:
            return
        path = path_of(name)
        style = self._asker.style
        with ExitStack() as stack:
            stack.enter_context(self._asker.into(path))
            self._asker.style = replace(style, format=format_of(path.name) or style.format)
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
def _no_echo(stdin: TextIO | None) -> Iterator[None]:
    """
    Keep what is typed while no prompt is there for the next one, without showing it.

    A terminal that reads by lines drops what a paste brings beyond 4,096 characters of a line (N_TTY).
    """
    if stdin is None or not stdin.isatty():
        yield
        return
    before = termios.tcgetattr(stdin)
    quiet = list(before)
    quiet[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSANOW, before)
