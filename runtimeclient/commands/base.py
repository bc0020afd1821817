"""Commands, their invocations, and the parsers for one command and for all commands."""

import argparse
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from runtimeclient import COMMANDS, SERVER_COMMANDS
from runtimeclient.connection import add_connection_options, connect
from runtimeclient.distribution import version
from runtimeclient.errors import UsageError
from runtimeclient.output.terminal import Console

if TYPE_CHECKING:
    from runtimeclient.client import RuntimeClient

PROG = "querykeep"
#: The formats of `status` and the other lists.
LIST_FORMATS = ("table", "json", "csv")

_EXIT_STATUSES = (
    "exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no connection,\n"
    "             4 not authorised, 130 interrupted"
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors and never quote a value, which after a misspelt option may be a key."""

    def error(self, message: str) -> NoReturn:
        """Reject the command line."""
        raise UsageError(f"{message}. See {self.prog} --help.")

    def parse_args(  # type: ignore[override] # argparse's namespace parameter is generic
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse, and report unknown options without their values."""
        options, rest = self.parse_known_args(args, namespace)
        # The name in `--name=value` and `-nVALUE`.
        unknown = [word.partition("=")[0] if word.startswith("--") else word[:2] for word in rest if word[0:1] == "-"]
        if unknown:
            self.error(f"unknown option {', '.join(unknown)}")
        if rest:
            self.error("too many arguments: quote text that contains spaces")
        return options


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a command: its options, streams and environment, and the program name for hints."""

    options: argparse.Namespace
    console: Console
    environ: Mapping[str, str]
    prog: str = PROG

    def connect(self) -> "RuntimeClient":
        """Create the client that options, environment and profile specify. Raises UsageError."""
        client, warning = connect(self.options, self.environ)
        if warning:
            self.console.warn(warning)
        self.console.api_key = client.api_key
        return client


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command. `call` may raise any ClientError, whose exit status becomes the exit status of the process."""

    name: str
    description: str  # for the command's own help; line breaks are kept
    examples: Sequence[tuple[str, str]]  # the arguments and the function to call
    call: Callable[[Invocation], None]
    add_arguments: Callable[[argparse.ArgumentParser], object] = lambda _: None
    has_connection: bool = True  # whether it connects to a runtime and accepts the connection options

    def configure(self, parser: argparse.ArgumentParser, prog: str) -> None:
        """Set up *parser* for this command of the program *prog*."""
        parser.description = self.description
        examples = [
            f"  {prog} {self.name} {words}".rstrip() + f"\n      {meaning}\n" for words, meaning in self.examples
        ]
        parser.epilog = "\n".join(["examples:", "".join(examples), _EXIT_STATUSES])
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        # An abbreviation could change its meaning when an option is added.
        parser.allow_abbrev = False
        self.add_arguments(parser)
        if self.has_connection:
            add_connection_options(parser)
        group = parser.add_argument_group("display")
        group.add_argument("--no-color", action="store_true", help="no colours; so does NO_COLOR in the environment")
        group.add_argument("-q", "--quiet", action="store_true", help="no progress, row counts or warnings")


def load_command(name: str) -> Command:
    """Return the command with this name, importing only its module."""
    command: Command = importlib.import_module(COMMANDS[name][0]).COMMANDS[name]
    return command


def command_parser(command: Command, prog: str, kind: type[Parser] = Parser) -> Parser:
    """Create the parser of one command of the program *prog*."""
    parser = kind(prog=f"{prog} {command.name}".strip())
    command.configure(parser, prog)
    return parser


def program_parser(prog: str) -> Parser:
    """Create the parser of all commands for the help. It has no options of a command, whose module is not imported."""
    parser = Parser(
        prog=prog,
        description="Talk to a Querykeep runtime: run SQL, inspect datasets, and refresh data.",
        epilog="\n".join(
            [
                "commands of the server, which need the server extra:",
                *(f"    {name:<13}{summary}" for name, summary in SERVER_COMMANDS.items()),
                "",
                f"{prog} COMMAND --help shows the options of a command, with examples.",
                "With the server extra, Django's shell, test and diffsettings work too.",
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name, (_, summary) in COMMANDS.items():
        subparsers.add_parser(name, help=summary)
    return parser


class _Version(argparse._VersionAction):  # noqa: SLF001 (shtab knows this class)
    """Looks up the version only when it is asked for, because the metadata of packages is slow to read."""

    def __call__(self, *arguments: Any) -> None:
        self.version = f"{PROG} {version()}".rstrip()
        super().__call__(*arguments)


def whole_number(least: int, most: int = 10**15) -> Callable[[str], int]:
    """Return a function that parses a number from *least* to *most*, for the type of an option."""

    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,16}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}")
        return int(text)

    return parse


def add_list_format(parser: argparse.ArgumentParser) -> None:
    """Add `--format` to a command that shows a list."""
    parser.add_argument(
        "--format",
        choices=LIST_FORMATS,
        default="table",
        help="output format: an aligned table for people (the default), or all fields as a JSON array or CSV",
    )
