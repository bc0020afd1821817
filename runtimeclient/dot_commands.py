"""The commands of the prompt itself: which there are, and how a line with one is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from runtimeclient.charts import KINDS
from runtimeclient.errors import UsageError
from runtimeclient.statements import Statement, StatementSplitter


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
    """

    usage: str
    summary: str
    takes: Takes = Takes.NOTHING
    words: Sequence[str] = ()


DOT_COMMANDS: Mapping[str, DotCommand] = {
    "help": DotCommand("", "show this"),
    "tables": DotCommand("", "list the datasets and views"),
    "schema": DotCommand("[TABLE]", "show the columns of a table, or of all", Takes.TABLE),
    "format": DotCommand("[FORMAT]", "show answers so; without FORMAT tell how they are shown", Takes.FORMAT),
    "expanded": DotCommand(
        "[on|off|auto]", "show rows as records; alone it switches", Takes.WORDS, ("on", "off", "auto")
    ),
    "timing": DotCommand(
        "[on|off]", "tell how long each statement took; alone it switches", Takes.WORDS, ("on", "off")
    ),
    "chart": DotCommand("[KIND] [X [Y ...]]", "run the last statement again and draw its answer", Takes.WORDS, KINDS),
    "output": DotCommand("[FILE]", "write answers to a file, which is there after .output alone", Takes.FILE),
    "read": DotCommand("FILE", "run the statements of a file", Takes.FILE),
    "quit": DotCommand("", "leave, as .exit, quit, exit and Ctrl-D do"),
}
#: Other names, among them those of psql.
_ALIASES: Mapping[str, str] = {
    ".exit": "quit",
    "quit": "quit",
    "exit": "quit",
    "\\q": "quit",
    "\\?": "help",
    "\\d": "schema",
    "\\dt": "tables",
    "\\x": "expanded",
    "\\timing": "timing",
    "\\o": "output",
    "\\i": "read",
}
_KEYS = """\
Tab completes, Ctrl-R searches what was typed before, Alt-Enter breaks the line.
Ctrl-C abandons what is typed and cancels a statement that runs; twice in a row it leaves.
"""


@dataclass(frozen=True, slots=True)
class Called:
    """A command as it was typed."""

    name: str
    argument: str


def help_text() -> str:
    """Describe all commands."""
    heads = [f".{name} {command.usage}".rstrip() for name, command in DOT_COMMANDS.items()]
    longest = max(map(len, heads))
    lines = [
        f"  {head:{longest}}  {command.summary}\n" for head, command in zip(heads, DOT_COMMANDS.values(), strict=True)
    ]
    return "".join(["A statement ends with ; and may go over several lines.\n", *lines, _KEYS])


def read_typed(text: str) -> tuple[list[Statement | Called], bool]:
    """
    Part what was typed into statements and commands; a command takes a line and stands between statements.

    Returns:
        The parts, and whether the text is complete: no statement, literal or comment goes on after it.
    """
    parts: list[Statement | Called] = []
    splitter = StatementSplitter()
    # Not splitlines: a form feed or a line separator (U+2028) ends no comment.
    for line in (f"{line}\n" for line in text.split("\n")):
        called = None if splitter.is_waiting else _called(line)
        if called is None:
            parts += splitter.feed(line)
        else:
            parts.append(called)
    return parts, not splitter.is_waiting


def find_command(called: Called) -> str:
    """Give the name of the command in DOT_COMMANDS. Raises UsageError."""
    name = _ALIASES.get(called.name, called.name.removeprefix("."))
    if name not in DOT_COMMANDS:
        raise UsageError(f"There is no {called.name}: see .help.")
    if called.argument and DOT_COMMANDS[name].takes is Takes.NOTHING:
        raise UsageError(f"{called.name} takes nothing.")
    return name


def _called(line: str) -> Called | None:
    name, _, argument = line.strip().rstrip(";").rstrip().partition(" ")
    name = name.lower()
    if name.startswith((".", "\\")) or (name in _ALIASES and not argument):
        return Called(name, argument.strip())
    return None
