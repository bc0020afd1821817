"""The Django app: builds the key set when Django is set up."""

import os
import sys
from argparse import ArgumentError, ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from django.apps import AppConfig, apps
from django.core.management import get_commands

from authkeys import state
from authkeys.errors import AuthKeysError
from runtimeconf import handover
from runtimeconf.errors import RuntimeConfError
from runtimeconf.state import ENVIRONMENT_VARIABLE, is_absent
from system.errors import StateDirectoryError

#: Errors that prevent the key set from being built.
BuildError = (RuntimeConfError, AuthKeysError, StateDirectoryError, OSError)

#: The app whose commands connect to a running runtime or only print. Other apps with such commands have the attribute
#: `answers_requests = False`.
_CLIENT_APP = "runtimeclient"
_CLIENTS = frozenset({"", "help", "version", "check", "healthcheck", "reload"})
_HELP = frozenset({"--help", "-h", "--version"})
#: Commands that serve requests and have the option `--config`.
_CONFIGURABLE = frozenset({"runserver", "runweb"})
#: Django commands that handle requests from clients or tests. Django's other commands work on the database or on files.
_SERVING = frozenset({"runserver", "testserver", "test"})
#: Programs that run management commands, and packages whose `__main__` does.
_PROGRAMS = frozenset({"manage.py", "django-admin", "querykeep"})
_PACKAGES = frozenset({"django", "querykeep"})


class AuthKeysConfig(AppConfig):
    """Builds the key set from the supervisor's handover or from the configuration file."""

    name = "authkeys"

    def ready(self) -> None:
        """
        Build the key set in every process that can serve requests: servers, tests, scripts and other commands.

        Client commands, `help` and `check` defer this, because they must work without a configuration file and must not
        create a state directory. If the key set cannot be built, all callers are refused. Django's other commands
        (`shell`, `collectstatic`) continue in this case, as does a process without a configuration file; each request
        then gets the error. Any other process exits.

        Raises:
            RuntimeConfError, AuthKeysError, StateDirectoryError, OSError: The key set cannot be built.
            SystemExit: The same, for a management command. `runweb`, which can have a supervisor, exits with EX_CONFIG.
        """
        if handover.received() is not None:
            state.ensure_built()
            return
        command = management_command(sys.argv)
        if command is not None and may_defer(command, sys.argv):
            state.build_on_demand()
            return
        if command in _CONFIGURABLE and (file := _config_option(sys.argv)):
            os.environ[ENVIRONMENT_VARIABLE] = file
        try:
            state.ensure_built()
        except BuildError as error:
            if is_absent(os.environ) or (command is not None and is_upkeep(command)):
                state.refuse_with(error)
            elif command is not None:
                sys.stderr.write(f"{error}\n")
                sys.exit(os.EX_CONFIG if command == "runweb" else 1)
            else:
                raise


def management_command(arguments: Sequence[str]) -> str | None:
    """Return the management command in a process's *arguments*, "" if there is none; None for other programs."""
    program = Path(arguments[0] if arguments else "")
    if program.name in _PROGRAMS or (program.name == "__main__.py" and program.parent.name in _PACKAGES):
        return "".join(arguments[1:2])
    return None


def may_defer(command: str, arguments: Sequence[str]) -> bool:
    """Return True if *command*, run with *arguments*, needs no key set because it serves no requests."""
    app = get_commands().get(command)
    silent = {config.name for config in apps.get_app_configs() if not getattr(config, "answers_requests", True)}
    return command in _CLIENTS or app in {_CLIENT_APP, *silent} or not _HELP.isdisjoint(arguments[1:])


def is_upkeep(command: str) -> bool:
    """Return True if *command* is a Django command that serves no requests, such as `collectstatic`."""
    return command not in _SERVING and str(get_commands().get(command, "")).startswith("django.")


def _config_option(arguments: Sequence[str]) -> str | None:
    """Return the value of `--config` as the command itself will parse it later."""
    parser = ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--config")
    try:
        return str(parser.parse_known_args(arguments[2:])[0].config or "")
    except ArgumentError:
        return None  # The command will report the error itself.
