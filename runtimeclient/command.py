"""What a command is, and how one is run: parse, do, translate errors into a line and an exit status."""

from __future__ import annotations

import abc
import argparse
from collections.abc import Mapping, Sequence
from typing import ClassVar, NoReturn

from runtimeclient.client import RuntimeClient
from runtimeclient.connection import add_connection_options, resolve
from runtimeclient.console import Console
from runtimeclient.errors import ClientError, UsageError
from runtimeclient.formats import LIST_FORMATS

INTERRUPTED_STATUS = 130


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors and never repeat a value: behind a misspelt option it is a key."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise UsageError(f"{message}. See {self.prog} --help.")

    def parse_args(  # type: ignore[override] # argparse's namespace parameter is generic
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse, and name what is left over without its values."""
        options, rest = self.parse_known_args(args, namespace)
        if unknown := [_option_name(argument) for argument in rest if argument.startswith("-")]:
            self.error(f"unknown option {', '.join(unknown)}")
        if rest:
            self.error("too many arguments: put text with spaces in quotes")
        return options


def _option_name(argument: str) -> str:
    """Leave out the value of `--name=value` and of `-nVALUE`."""
    return argument.partition("=")[0] if argument.startswith("--") else argument[:2]


class Invocation:
    """
    One call of a command: its options, its streams and its environment.

    Attributes:
        prog: What the program was called, for hints.
    """

    def __init__(
        self, options: argparse.Namespace, console: Console, environ: Mapping[str, str], prog: str = "querykeep"
    ) -> None:
        self.options = options
        self.console = console
        self.environ = environ
        self.prog = prog

    def connect(self) -> RuntimeClient:
        """Make the client that options, environment and profile ask for. Raises UsageError."""
        connection = resolve(self.options, self.environ)
        if connection.credential.warning:
            self.console.warn(connection.credential.warning)
        self.console.keep_from_others(connection.credential.api_key)
        return connection.open()


class ClientCommand(abc.ABC):
    """
    Base of the commands: one instance describes a command, and does it as often as it is asked to.

    Attributes:
        name: What it is called by.
        summary: What it does, in a line for the list of commands.
        description: What it does, for its own help; its lines are kept.
        examples: Command lines without the name of the program, and what they do.
        talks: It talks to a runtime, so it has the options for that.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    description: ClassVar[str]
    examples: ClassVar[Sequence[tuple[str, str]]] = ()
    talks: ClassVar[bool] = True

    @abc.abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is special to the command."""

    @abc.abstractmethod
    def run(self, invocation: Invocation) -> None:
        """Do it. May raise any ClientError; it has an exit status."""

    def fill(self, parser: argparse.ArgumentParser, prog: str) -> None:
        """Make *parser* one of this command, as the program *prog* has it."""
        parser.description = self.description
        parser.epilog = _epilog(f"{prog} {self.name}", self.examples)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        # An abbreviation may change its meaning with the next option.
        parser.allow_abbrev = False
        self.add_arguments(parser)
        if self.talks:
            add_connection_options(parser)
        group = parser.add_argument_group("display")
        group.add_argument(
            "--no-color", action="store_true", help="no colours; NO_COLOR in the environment does it too"
        )
        group.add_argument("-q", "--quiet", action="store_true", help="no progress, row counts or warnings")


def console_options(options: argparse.Namespace) -> dict[str, bool]:
    """Give the options that a Console is made with."""
    return {
        "has_color": not options.no_color,
        "has_pager": not getattr(options, "no_pager", False),
        "is_quiet": options.quiet,
    }


def run_command(command: ClientCommand, invocation: Invocation) -> int:
    """Run a command to its end; errors become a line on standard error and the exit status that this returns."""
    try:
        command.run(invocation)
    except ClientError as exc:
        invocation.console.error(exc)
        return exc.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    except BrokenPipeError:
        pass  # The reader has seen enough.
    return 0


def add_list_format(parser: argparse.ArgumentParser) -> None:
    """Add `--format` to a command that shows a short list."""
    parser.add_argument(
        "--format",
        choices=LIST_FORMATS,
        default="table",
        help="how to show the list: an aligned table for people (the default), or all fields as a JSON array or CSV",
    )


def _epilog(prog: str, examples: Sequence[tuple[str, str]]) -> str:
    lines = [f"  {prog} {arguments}".rstrip() + f"\n      {meaning}" for arguments, meaning in examples]
    statuses = (
        "exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no connection,\n"
        "             4 not authorised, 130 interrupted"
    )
    return "\n".join(["examples:", *lines, "", statuses] if lines else [statuses])
