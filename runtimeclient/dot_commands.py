"""The commands of the prompt itself: which there are, and how a line with one is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from runtimeclient.charts import KINDS
from runtimeclient.errors import UsageError
from runtimeclient.statements import STOP_AT_BACKSLASH, Statement, StatementSplitter


class Takes(Enum):
    """What a command takes, for completion."""

    NOTHING = auto()
    FILE = auto()
    FORMAT = auto()
    TABLE = auto()
    WORDS = auto()


@dataclass(frozen=True, slots=True)
class DotCommand:
    """
    One command.

    Attributes:
        usage: What stands behind it.
        summary: What it does.
        takes: What completion offers.
        words: For `Takes.WORDS`.
        aliases: Other names, among them those of psql and of the DuckDB shell.
        takes_statement: It may stand behind a statement without a semicolon, which is then what it is about.
    """

    usage: str
    summary: str
    takes: Takes = Takes.NOTHING
    words: Sequence[str] = ()
    aliases: tuple[str, ...] = ()
    takes_statement: bool = False


_ON_OFF = ("on", "off")
DOT_COMMANDS: Mapping[str, DotCommand] = {
    "help": DotCommand("", "show this", aliases=("help", "?", "\\?", "\\h")),
    "databases": DotCommand("", "list the catalogs", aliases=("\\l",)),
    "tables": DotCommand("", "list the datasets and views", aliases=("\\dt",)),
    "schema": DotCommand("[TABLE]", "show the columns of a table, or of all", Takes.TABLE, aliases=("\\d",)),
    "format": DotCommand(
        "[FORMAT]", "show answers so; without FORMAT tell how they are shown", Takes.FORMAT, aliases=(".mode",)
    ),
    "expanded": DotCommand(
        "[on|off|auto]", "show rows as records; alone it switches", Takes.WORDS, (*_ON_OFF, "auto"), ("\\x",)
    ),
    "maxrows": DotCommand("[N]", "show that many rows of a table, 0 for all; alone it tells how many", Takes.WORDS),
    "timing": DotCommand(
        "[on|off]",
        "tell how long each statement took; alone it switches",
        Takes.WORDS,
        _ON_OFF,
        (".timer", "\\timing"),
    ),
    "watch": DotCommand(
        "[SECONDS]",
        "run the last statement every SECONDS, 2 if left out, until Ctrl-C",
        Takes.WORDS,
        aliases=("\\watch",),
        takes_statement=True,
    ),
    "edit": DotCommand("", "edit the last statement in EDITOR and run it", aliases=("\\e",), takes_statement=True),
    "chart": DotCommand("[KIND] [X [Y ...]]", "run the last statement again and draw its answer", Takes.WORDS, KINDS),
    "output": DotCommand(
        "[FILE]", "write answers to a file, which is there after .output alone", Takes.FILE, aliases=("\\o",)
    ),
    "read": DotCommand("FILE", "run the statements of a file", Takes.FILE, aliases=("\\i",)),
    "quit": DotCommand("", "leave, as Ctrl-D does", aliases=(".exit", "quit", "exit", "\\q")),
}
#: All names of the commands, as they are typed, in lower case.
NAMES: Mapping[str, str] = {f".{name}": name for name in DOT_COMMANDS} | {
    alias: name for name, command in DOT_COMMANDS.items() for alias in command.aliases
}
_KEYS = """\
Tab completes, Ctrl-R searches what was typed before, Alt-Enter breaks the line.
Ctrl-C abandons what is typed and cancels a statement that runs; twice in a row it leaves.
"""


@dataclass(frozen=True, slots=True)
class Called:
    """A command as it was typed, and the statement without a semicolon before it, if there is one."""

    name: str
    argument: str
    statement: Statement | None = None


def help_text() -> str:
    """Describe all commands."""
    heads = [f".{name} {command.usage}".rstrip() for name, command in DOT_COMMANDS.items()]
    longest = max(map(len, heads))
    lines = []
    for head, command in zip(heads, DOT_COMMANDS.values(), strict=True):
        aliases = f" ({', '.join(command.aliases)})" if command.aliases else ""
        lines.append(f"  {head:{longest}}  {command.summary}{aliases}\n")
    return "".join(["A statement ends with ; and may go over several lines.\n", *lines, _KEYS])


def read_typed(text: str) -> tuple[list[Statement | Called], bool]:
    """
    Part what was typed into statements and commands; a command goes up to the end of its line.

    A command stands where a statement could begin. One with a backslash may stand behind a statement, too: there is no
    backslash in SQL outside literals and quoted names.

    Returns:
        The parts, and whether the text is complete: no statement, literal or comment goes on after it.
    """
    parts: list[Statement | Called] = []
    splitter = StatementSplitter()
    # Not splitlines: a form feed or a line separator (U+2028) ends no comment.
    for line in (f"{line}\n" for line in text.split("\n")):
        at = 0
        while at < len(line):
            called = None if splitter.is_waiting else _called(line[at:])
            if called is None:
                at, mark = splitter.take(line, at, STOP_AT_BACKSLASH)
                statements = list(splitter.finish()) if mark else []
                if mark != "\\":
                    parts += statements
                    continue
                called = _called(line[at - 1 :])
                if called is not None and statements:
                    called = replace(called, statement=statements[0])
            if called is not None:
                parts.append(called)
            break
    return parts, not splitter.is_waiting


def find_command(called: Called) -> str:
    """Give the name of the command in DOT_COMMANDS. Raises UsageError."""
    name = NAMES.get(called.name)
    if name is None:
        raise UsageError(
            f"There is no command {called.name}. There are {', '.join(NAMES)}; .help says what each of them does."
        )
    if called.argument and DOT_COMMANDS[name].takes is Takes.NOTHING:
        raise UsageError(f"{called.name} takes nothing.")
    if called.statement is not None and not DOT_COMMANDS[name].takes_statement:
        raise UsageError(f"End the statement before {called.name} with a semicolon.")
    return name


def _called(line: str) -> Called | None:
    name, _, argument = line.strip().rstrip(";").rstrip().partition(" ")
    name = name.lower()
    if name.startswith((".", "\\")) or (name in NAMES and not argument):
        return Called(name, argument.strip())
    return None
