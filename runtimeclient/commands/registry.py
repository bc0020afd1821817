"""The commands by name. A command's module is imported only when the command is needed."""

from __future__ import annotations

import importlib

from runtimeclient import COMMANDS
from runtimeclient.commands.base import ClientCommand, Parser

PROG = "querykeep"


def load_command(name: str) -> ClientCommand:
    """Return the command of that name, importing only its module."""
    command: ClientCommand = importlib.import_module(f"runtimeclient.commands.{name}").COMMAND
    return command


def command_parser(command: ClientCommand, prog: str) -> Parser:
    """Create the parser of one command of the program *prog*."""
    parser = Parser(prog=f"{prog} {command.name}")
    command.configure(parser, prog)
    return parser


def program_parser(prog: str = PROG) -> Parser:
    """Create the parser of all commands, for the help, the manual page and shell completion."""
    from runtimeclient.distribution import version  # noqa: PLC0415 (importlib.metadata is slow to import)

    parser = Parser(
        prog=prog,
        description="Talk to a Querykeep runtime: run SQL, inspect datasets, and refresh data.",
        epilog=f"{prog} COMMAND --help shows the options of a command, with examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {version()}".rstrip())
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in COMMANDS:
        command = load_command(name)
        command.configure(subparsers.add_parser(name, help=command.summary), prog)
    return parser
