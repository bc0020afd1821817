"""What the client commands share: options, where errors go, exit statuses."""

from __future__ import annotations

import abc
import argparse
import io
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from django.core.management.base import BaseCommand, CommandError, CommandParser

from runtimeclient.client import DEFAULT_TIMEOUTS, RuntimeClient, Timeouts
from runtimeclient.credentials import ENDPOINT_VARIABLE, KEY_VARIABLE, STANDARD_INPUT, find_credential
from runtimeclient.endpoint import DEFAULT_ENDPOINT
from runtimeclient.errors import ClientError
from runtimeclient.formats import LIST_FORMATS
from runtimeclient.output import Output
from runtimeclient.screen import one_line

INTERRUPTED_STATUS = 130


class Error(CommandError):
    """What a command ends with; its text is one line, fit for a terminal."""


class ClientParser(CommandParser):
    """An argument parser whose errors are exceptions and never repeat a value: behind a misspelt option it is a key."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise Error(one_line(f"{message}. See {self.prog} --help."), returncode=2)

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


class ClientCommand(BaseCommand, abc.ABC):
    """
    Base of the client commands. A subclass adds its arguments and fills `run`.

    Errors become one line on standard error and an exit status; called from Python (`call_command`), a CommandError
    with that status as `returncode`.
    """

    requires_system_checks = ()
    # Django's own options do nothing for a client: no settings, no traceback, no colour.
    suppressed_base_arguments = {
        "--version",
        "--verbosity",
        "--settings",
        "--pythonpath",
        "--traceback",
        "--no-color",
        "--force-color",
    }
    #: Command lines and what they do, for the end of `--help`.
    examples: Sequence[tuple[str, str]] = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Make the parser: Django's, with our errors and help."""
        base = super().create_parser(prog_name, subcommand, add_help=False, **kwargs)
        return ClientParser(
            prog=base.prog,
            description=self.help,
            epilog=_epilog(base.prog, self.examples),
            parents=[base],
            formatter_class=argparse.RawDescriptionHelpFormatter,
            # An abbreviation may change its meaning with the next option.
            allow_abbrev=False,
        )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that every client command has."""
        group = parser.add_argument_group("connection")
        group.add_argument(
            "--api-key",
            metavar="KEY",
            help="the API key; for a moment other users can see it in the list of processes: a file is better",
        )
        group.add_argument(
            "--api-key-file",
            metavar="FILE",
            help=f"file that holds the API key, - for standard input; without both options {KEY_VARIABLE} of the"
            " environment is taken, and without it no key is sent",
        )
        group.add_argument(
            "--http-endpoint",
            metavar="URL",
            help=f"where the runtime is; without it {ENDPOINT_VARIABLE} of the environment, else {DEFAULT_ENDPOINT}",
        )
        group.add_argument(
            "--tls-root-certificate-file",
            metavar="FILE",
            type=Path,
            help="PEM file with the root certificates to trust instead of the usual ones (for https)",
        )
        group.add_argument(
            "--connect-timeout",
            metavar="SECONDS",
            type=_seconds,
            default=DEFAULT_TIMEOUTS.connect_s,
            help="longest wait for a connection, and for any answer but that to a query (default %(default)g)",
        )
        group.add_argument(
            "--timeout",
            metavar="SECONDS",
            type=_seconds,
            default=DEFAULT_TIMEOUTS.silence_s,
            help="longest silence while a query runs (default %(default)g)",
        )

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command of a command line and leave the process with its exit status."""
        self._called_from_command_line = True
        for stream in (sys.stdout, sys.stderr):
            _write_utf8(stream)
        try:
            options = vars(self.create_parser(argv[0], argv[1]).parse_args(argv[2:]))
            self.execute(*options.pop("args", ()), **options)
        except CommandError as exc:
            self.tell(f"Error: {exc}")
            sys.exit(exc.returncode)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED_STATUS)
        except BrokenPipeError:
            return  # The reader has seen enough.
        finally:
            _let_go(sys.stdout)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Connect, run, and translate errors."""
        # Texts bring their own line breaks, and a piece of an answer may end anywhere.
        self.stdout.ending = ""
        try:
            self.check_options(options)
            with self._connect(options) as client:
                self.run(client, Output(self.stdout), options)
        except ClientError as exc:
            raise Error(one_line(str(exc)), returncode=exc.exit_status) from exc

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise UsageError when options contradict each other. Nothing does by default."""

    @abc.abstractmethod
    def run(self, client: RuntimeClient, output: Output, options: dict[str, Any]) -> None:
        """Do what the command is for. May raise any ClientError."""

    def tell(self, line: str) -> None:
        """Say something beside the output: on standard error."""
        self.stderr.write(line, lambda text: text)

    def _connect(self, options: dict[str, Any]) -> RuntimeClient:
        credential = find_credential(options["api_key"], options["api_key_file"], os.environ)
        if credential.warning:
            self.tell(f"Warning: {one_line(credential.warning)}")
        endpoint = options["http_endpoint"]
        return RuntimeClient(
            os.environ.get(ENDPOINT_VARIABLE) or DEFAULT_ENDPOINT if endpoint is None else endpoint,
            credential.api_key,
            tls_root_certificate_file=options["tls_root_certificate_file"],
            timeouts=Timeouts(connect_s=options["connect_timeout"], silence_s=options["timeout"]),
        )


def takes_key_from_standard_input(options: dict[str, Any]) -> bool:
    """Tell whether nothing else can be read from standard input."""
    return options["api_key"] is None and options["api_key_file"] == STANDARD_INPUT


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError("must be more than 0 seconds")
    return seconds


def _epilog(prog: str, examples: Sequence[tuple[str, str]]) -> str:
    lines = [f"  {prog} {arguments}".rstrip() + f"\n      {meaning}" for arguments, meaning in examples]
    statuses = (
        "exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no connection,\n"
        "             4 not authorised, 130 interrupted"
    )
    return "\n".join(["examples:", *lines, "", statuses])


def _write_utf8(stream: TextIO) -> None:
    """Answers are UTF-8 whatever the locale says."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _let_go(stream: TextIO) -> None:
    """Pass on what is buffered, or drop it: Python would try again at its end, complain, and change the exit status."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def add_list_format(parser: CommandParser) -> None:
    """Add `--format` to a command that shows a short list."""
    parser.add_argument(
        "--format",
        choices=LIST_FORMATS,
        default="table",
        help="how to show the list: an aligned table (the default), a JSON array, or CSV",
    )
