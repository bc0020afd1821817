"""Start a command from a command line: `querykeep ...`, and the client commands of `manage.py`."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from runtimeclient import COMMANDS
from runtimeclient.argv import prepare_process
from runtimeclient.command import (
    INTERRUPTED_STATUS,
    ClientCommand,
    Invocation,
    Parser,
    console_options,
    run_command,
)
from runtimeclient.console import Console, Streams
from runtimeclient.errors import ClientError

PROG = "querykeep"
_DESCRIPTION = "Talk to a Querykeep runtime: run SQL, look at what it serves, and have it load data again."


def load_command(name: str) -> ClientCommand:
    """Give the command of that name; only its own module is imported."""
    command: ClientCommand = importlib.import_module(f"runtimeclient.commands.{name}").COMMAND
    return command


def command_parser(command: ClientCommand, prog: str) -> Parser:
    """Make the parser of one command of the program *prog*."""
    made = Parser(prog=f"{prog} {command.name}")
    command.fill(made, prog)
    return made


def whole_parser(prog: str = PROG) -> Parser:
    """Make the parser of all commands, for the help, the manual and the completion of shells."""
    parser = Parser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=f"{prog} COMMAND --help shows the options of a command, with examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in COMMANDS:
        command = load_command(name)
        command.fill(subparsers.add_parser(name, help=command.summary), prog)
    return parser


def main() -> None:
    """Run `querykeep` with the arguments of this process, and leave it."""
    prepare_process()
    sys.exit(run(PROG, sys.argv[1:]))


def run(prog: str, arguments: Sequence[str]) -> int:
    """Run the command that *arguments* begin with on the streams of this process; give its exit status."""
    for stream in (sys.stdout, sys.stderr):
        _write_utf8(stream)
    try:
        return run_on(Streams(sys.stdin, sys.stdout, sys.stderr), os.environ, prog, arguments)
    except SystemExit as exc:  # --help and --version
        return exc.code if isinstance(exc.code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    finally:
        _let_go(sys.stdout)


def run_on(streams: Streams, environ: Mapping[str, str], prog: str, arguments: Sequence[str]) -> int:
    """
    Run the command that *arguments* begin with; give its exit status.

    Raises:
        SystemExit: For `--help` and `--version`, which go to the standard output of the process.
    """
    name = arguments[0] if arguments else "--help"
    try:
        if name not in COMMANDS:
            parser = whole_parser(prog)
            parser.parse_args([name])
            parser.error("name a command")
        command = load_command(name)
        options = command_parser(command, prog).parse_args(arguments[1:])
    except ClientError as exc:
        Console(streams, environ).error(exc)
        return exc.exit_status
    console = Console(streams, environ, **console_options(options))
    return run_command(command, Invocation(options, console, environ, prog))


def _version() -> str:
    from runtimeclient.distribution import version  # noqa: PLC0415 (only the help of all commands asks for it)

    return f"{PROG} {version()}".rstrip()


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
