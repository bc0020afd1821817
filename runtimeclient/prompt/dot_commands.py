"""The commands of the prompt: the list, and how input is parsed into statements and commands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from runtimeclient.errors import UsageError
from runtimeclient.output.formats import FORMATS
from runtimeclient.output.terminal import KINDS
from runtimeclient.sql.statements import STOP_AT_BACKSLASH, Statement, StatementSplitter


@dataclass(frozen=True, slots=True)
class DotCommand:
    """One command."""

    usage: str  # the arguments, for the help
    summary: str  # one line for the help
    takes: Literal["nothing", "file", "table", "words"] = "nothing"
    words: Sequence[str] = ()  # the completions of its argument
    aliases: tuple[str, ...] = ()  # other names, including those of psql and the DuckDB shell
    # whether it can follow a statement without a semicolon and then applies to that statement
    takes_statement: bool = False


_ON_OFF = ("on", "off")
DOT_COMMANDS: Mapping[str, DotCommand] = {
    "help": DotCommand("", "show this help", aliases=("help", "?", "\\?", "\\h")),
    "databases": DotCommand("", "list the catalogs", aliases=("\\l",)),
    "tables": DotCommand("", "list the datasets and views", aliases=("\\dt",)),
    "schema": DotCommand("[TABLE]", "show the columns of one table or of all", "table", aliases=("\\d",)),
    "format": DotCommand("[FORMAT]", "set the output format; alone, show it", "words", tuple(FORMATS), (".mode",)),
    "expanded": DotCommand(
        "[on|off|auto]", "show rows as records; alone, toggle", "words", (*_ON_OFF, "auto"), ("\\x",)
    ),
    "maxrows": DotCommand("[N]", "set the maximum rows of a table, 0 for all; alone, show it", "words"),
    "timing": DotCommand(
        "[on|off]", "show how long each statement took; alone, toggle", "words", _ON_OFF, (".timer", "\\timing")
    ),
    "watch": DotCommand(
        "[SECONDS]",
        "run the last statement every SECONDS (default 2) until Ctrl-C",
        "words",
        aliases=("\\watch",),
        takes_statement=True,
    ),
    "edit": DotCommand("", "edit the last statement in EDITOR and run it", aliases=("\\e",), takes_statement=True),
    "chart": DotCommand("[KIND] [X [Y ...]]", "run the last statement again and draw the result", "words", KINDS),
    "output": DotCommand("[FILE]", "write results to a file; alone, complete the file", "file", aliases=("\\o",)),
    "read": DotCommand("FILE", "run the statements of a file", "file", aliases=("\\i",)),
    "quit": DotCommand("", "quit, as Ctrl-D does", aliases=(".exit", "quit", "exit", "\\q")),
}
#: All names of commands as typed, in lower case.
NAMES: Mapping[str, str] = {f".{name}": name for name in DOT_COMMANDS} | {
    alias: name for name, command in DOT_COMMANDS.items() for alias in command.aliases
}
_KEYS = """\
Tab completes, Ctrl-R searches the history, Alt-Enter inserts a line break.
Ctrl-C discards the input or cancels the running statement; pressed twice, it quits."""


@dataclass(frozen=True, slots=True)
class Call:
    """A command as typed, and the statement without a semicolon before it, if any."""

    name: str
    argument: str
    statement: Statement | None = None


def help_text() -> str:
    """Describe all commands."""
    heads = {f".{name} {command.usage}".rstrip(): command for name, command in DOT_COMMANDS.items()}
    longest = max(map(len, heads))
    lines = ["A statement ends with ; and may span several lines.\n"]
    for head, command in heads.items():
        aliases = f" ({', '.join(command.aliases)})" if command.aliases else ""
        lines.append(f"  {head:{longest}}  {command.summary}{aliases}\n")
    return "".join([*lines, _KEYS])


def parse_input(text: str) -> tuple[list[Statement | Call], bool]:
    """
    Split input into statements and commands. A command extends to the end of its line.

    A command starts where a statement could start. A backslash command may also follow a statement, because SQL has no
    backslash outside literals and quoted names.

    Returns:
        The parts, and whether the input is complete, that is, without an unfinished statement, literal or comment.
    """
    parts: list[Statement | Call] = []
    splitter = StatementSplitter()
    # Do not use splitlines, because a form feed or a line separator (U+2028) does not end a comment.
    for line in (f"{line}\n" for line in text.split("\n")):
        at = 0
        while at < len(line):
            call = None if splitter.is_waiting else _parse_call(line[at:])
            if call is None:
                at, mark = splitter.take(line, at, STOP_AT_BACKSLASH)
                statements = list(splitter.finish()) if mark else []
                if mark != "\\":
                    parts += statements
                    continue
                call = _parse_call(line[at - 1 :])
                if call is not None and statements:
                    call = replace(call, statement=statements[0])
            if call is not None:
                parts.append(call)
            break
    return parts, not splitter.is_waiting


def find_command(call: Call) -> str:
    """Return the name of the command in DOT_COMMANDS. Raises UsageError."""
    name = NAMES.get(call.name)
    if name is None:
        raise UsageError(f"Unknown command {call.name}. The commands are {', '.join(NAMES)}; .help explains them.")
    if call.argument and DOT_COMMANDS[name].takes == "nothing":
        raise UsageError(f"{call.name} takes no argument.")
    if call.statement is not None and not DOT_COMMANDS[name].takes_statement:
        raise UsageError(f"End the statement before {call.name} with a semicolon.")
    return name


def _parse_call(line: str) -> Call | None:
    name, _, argument = line.strip().rstrip(";").rstrip().partition(" ")
    name = name.lower()
    if name.startswith((".", "\\")) or (name in NAMES and not argument):
        return Call(name, argument.strip())
    return None
