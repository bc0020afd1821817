"""The base of the commands, and how a command is run: errors become one line and an exit status."""

from __future__ import annotations

import abc
import argparse
from collections.abc import Mapping, Sequence
from typing import ClassVar, NoReturn

from runtimeclient.client import RuntimeClient
from runtimeclient.errors import ClientError, UsageError
from runtimeclient.output.console import Console
from runtimeclient.output.formats import LIST_FORMATS
from runtimeclient.profiles.connection import add_connection_options, resolve

INTERRUPTED_STATUS = 130


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors and never quote a value: after a misspelt option it may be a key."""

    def error(self, message: str) -> NoReturn:
        """Reject the command line."""
        raise UsageError(f"{message}. See {self.prog} --help.")

    def parse_args(  # type: ignore[override] # argparse's namespace parameter is generic
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse, and report unknown options without their values."""
        options, rest = self.parse_known_args(args, namespace)
        if unknown := [_option_name(argument) for argument in rest if argument.startswith("-")]:
            self.error(f"unknown option {', '.join(unknown)}")
        if rest:
            self.error("too many arguments: quote text that contains spaces")
        return options


def _option_name(argument: str) -> str:
    """Strip the value of `--name=value` and `-nVALUE`."""
    return argument.partition("=")[0] if argument.startswith("--") else argument[:2]


class Invocation:
    """
    One call of a command: its options, its streams and its environment.

    Attributes:
        prog: Name of the program, for hints.
    """

    def __init__(
        self, options: argparse.Namespace, console: Console, environ: Mapping[str, str], prog: str = "querykeep"
    ) -> None:
        self.options = options
        self.console = console
        self.environ = environ
        self.prog = prog

    def connect(self) -> RuntimeClient:
        """Create the client that options, environment and profile ask for. Raises UsageError."""
        connection = resolve(self.options, self.environ)
        if connection.credential.warning:
            self.console.warn(connection.credential.warning)
        self.console.hide_key(connection.credential.api_key)
        return connection.open()


class ClientCommand(abc.ABC):
    """
    Base of the commands. One instance describes a command and can run it any number of times.

    Attributes:
        name: The command's name.
        summary: One line for the list of commands.
        description: Text for its own help; line breaks are kept.
        examples: Command lines without the program name, and what they do.
        has_connection: It talks to a runtime and takes the connection options.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    description: ClassVar[str]
    examples: ClassVar[Sequence[tuple[str, str]]] = ()
    has_connection: ClassVar[bool] = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027 (some commands have none)
        """Add the command's own arguments."""

    @abc.abstractmethod
    def run(self, invocation: Invocation) -> None:
        """Run the command. May raise any ClientError, whose exit status becomes that of the process."""

    def configure(self, parser: argparse.ArgumentParser, prog: str) -> None:
        """Set up *parser* for this command of the program *prog*."""
        parser.description = self.description
        parser.epilog = _epilog(f"{prog} {self.name}", self.examples)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        # An abbreviation could change its meaning when an option is added.
        parser.allow_abbrev = False
        self.add_arguments(parser)
        if self.has_connection:
            add_connection_options(parser)
        group = parser.add_argument_group("display")
        group.add_argument("--no-color", action="store_true", help="no colours; so does NO_COLOR in the environment")
        group.add_argument("-q", "--quiet", action="store_true", help="no progress, row counts or warnings")


def console_options(options: argparse.Namespace) -> dict[str, bool]:
    """Return the keyword arguments for Console."""
    return {
        "has_color": not options.no_color,
        "has_pager": not getattr(options, "no_pager", False),
        "is_quiet": options.quiet,
    }


def run_command(command: ClientCommand, invocation: Invocation) -> int:
    """Run a command and return its exit status; errors become one line on standard error."""
    try:
        command.run(invocation)
    except ClientError as exc:
        invocation.console.error(exc)
        return exc.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    except BrokenPipeError:
        pass  # The reader of the pipe has closed it: not an error.
    return 0


def add_list_format(parser: argparse.ArgumentParser) -> None:
    """Add `--format` to a command that shows a list."""
    parser.add_argument(
        "--format",
        choices=LIST_FORMATS,
        default="table",
        help="output format: an aligned table for people (the default), or all fields as a JSON array or CSV",
    )


def _epilog(prog: str, examples: Sequence[tuple[str, str]]) -> str:
    lines = [f"  {prog} {arguments}".rstrip() + f"\n      {meaning}" for arguments, meaning in examples]
    statuses = (
        "exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no connection,\n"
        "             4 not authorised, 130 interrupted"
    )
    return "\n".join(["examples:", *lines, "", statuses] if lines else [statuses])
