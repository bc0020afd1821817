"""Ask one statement after the other at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from runtimeclient.asking import Asker
from runtimeclient.errors import ClientError
from runtimeclient.screen import one_line
from runtimeclient.statements import Statement, StatementSplitter

try:
    # input() edits and remembers lines once this module is there; they are forgotten at the end.
    from readline import get_line_buffer as _typed
except ImportError:  # Some Pythons are built without it.

    def _typed() -> str:
        return ""


PROMPT = "sql> "
CONTINUATION = "  -> "
HELP = """\
A statement ends with ; and may go over several lines.
  .tables        list the datasets and views
  .help          show this
  .quit          leave, as .exit, quit, exit and Ctrl-D do
Ctrl-C abandons what is typed and cancels a query that runs; twice in a row it leaves.
"""
_QUIT = {".quit", ".exit", "quit", "exit"}
_TABLES = "SHOW TABLES"


class Repl:
    """
    Reads statements at a terminal, runs each as soon as its semicolon is there, and goes on after errors.

    Args:
        asker: Runs the statements and shows the answers.
        read_line: Asks for a line, like `input`.
    """

    def __init__(self, asker: Asker, read_line: Callable[[str], str] = input) -> None:
        self._asker = asker
        self._client = asker.client
        self._console = asker.console
        self._read_line = read_line
        self._splitter = StatementSplitter()
        self._was_interrupted = False

    def run(self) -> None:
        """
        Talk until the user leaves.

        Raises:
            ClientError: The runtime cannot be reached or refuses the key, found out before the first prompt.
            KeyboardInterrupt: The user pressed Ctrl-C twice in a row.
        """
        self._client.status()
        self._console.tell(
            f"Connected to {self._client.endpoint.url}. End a statement with a semicolon; .help shows more."
        )
        while True:
            try:
                line = self._read_line(CONTINUATION if self._splitter.is_waiting else PROMPT)
            except EOFError:
                self._show("\n")
                return
            except KeyboardInterrupt:
                if self._was_interrupted and not _typed():
                    raise
                self._abandon("")
                continue
            self._was_interrupted = False
            command = line.strip().lower().rstrip("; ")
            if self._splitter.is_waiting or not (command.startswith(".") or command in _QUIT):
                self._ask_all(self._splitter.feed(line + "\n"))
            elif command in _QUIT:
                return
            elif command == ".help":
                self._show(HELP)
            elif command == ".tables":
                self._ask_all([Statement(_TABLES)])
            else:
                self._console.tell(f"There is no {one_line(command)}: see .help.")

    def _ask_all(self, statements: Iterable[Statement]) -> None:
        """Run statements in order, up to the first that fails or is cancelled."""
        try:
            for statement in statements:
                self._asker.ask(statement)
        except ClientError as exc:
            self._forget(is_interrupt=False)
            self._console.error(exc)
        except KeyboardInterrupt:
            self._abandon("Cancelled.")

    def _abandon(self, message: str) -> None:
        """Forget what waits to be run because of Ctrl-C, and say so."""
        self._forget(is_interrupt=True)
        self._console.tell(message)

    def _forget(self, *, is_interrupt: bool) -> None:
        self._splitter = StatementSplitter()
        self._was_interrupted = is_interrupt

    def _show(self, text: str) -> None:
        output = self._console.output()
        output.write(text)
        output.flush()
