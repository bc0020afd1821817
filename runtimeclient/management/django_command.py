"""The commands as Django management commands, for `django.core.management.call_command` and `manage.py help`."""

import argparse
import os
import sys
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError

from runtimeclient.commands.base import Command, Invocation, Parser, command_parser, load_command
from runtimeclient.errors import ClientError
from runtimeclient.main import run
from runtimeclient.output.terminal import Console, Streams
from runtimeclient.output.text import one_line


class DjangoParser(Parser):
    """The parser of a command, with Django's errors."""

    def error(self, message: str) -> NoReturn:
        """Reject the arguments."""
        raise CommandError(one_line(f"{message}. See {self.prog} --help."), returncode=2)


class DjangoCommand(BaseCommand):
    """
    Any of the commands, as chosen by Django.

    `call_command` raises CommandError with the exit status as `returncode`.
    """

    requires_system_checks = ()
    command: Command

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        """Create the parser of the command."""
        self.command = load_command(subcommand)
        parser = command_parser(self.command, os.path.basename(prog_name), DjangoParser)  # noqa: PTH119 (as Django)
        # Django reads these options; the commands do not have them.
        parser.set_defaults(force_color=False, skip_checks=True)
        return parser

    def run_from_argv(self, argv: list[str]) -> None:
        """Run a command line and exit with its status."""
        sys.exit(run(os.path.basename(argv[0]), argv[1:]))  # noqa: PTH119

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run the command on the streams that the caller passed to Django."""
        # Output contains its own line breaks, and a chunk may end anywhere.
        self.stdout.ending = self.stderr.ending = ""
        self.stderr.style_func = None
        namespace = argparse.Namespace(**options)
        console = Console(Streams(sys.stdin, self.stdout, self.stderr), os.environ, namespace)
        try:
            self.command.call(Invocation(namespace, console, dict(os.environ), "manage.py"))
        except ClientError as exc:
            raise CommandError(one_line(str(exc)), returncode=exc.exit_status) from exc
