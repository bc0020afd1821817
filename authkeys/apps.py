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

#: What prevents the key set from being built.
BuildError = (RuntimeConfError, AuthKeysError, StateDirectoryError, OSError)

#: The app whose commands talk to a running runtime, and other commands that do, or that only print. An app of which
#: that is true as well has the attribute `answers_requests = False`.
_CLIENT_APP = "runtimeclient"
_CLIENTS = frozenset({"", "help", "version", "check", "healthcheck", "reload"})
_HELP = frozenset({"--help", "-h", "--version"})
#: Commands with the option `--config` that answer requests.
_CONFIGURABLE = frozenset({"runserver", "runweb"})
#: Commands of Django that answer requests, of servers or of tests. Its others work on the database or on files.
_SERVING = frozenset({"runserver", "testserver", "test"})
#: Programs that run management commands, and the packages whose `__main__` does.
_PROGRAMS = frozenset({"manage.py", "django-admin", "querykeep"})
_PACKAGES = frozenset({"django", "querykeep"})


class AuthKeysConfig(AppConfig):
    """Builds the key set from the supervisor's handover, or from the YAML."""

    name = "authkeys"

    def ready(self) -> None:
        """
        Build the key set, in every process that may answer requests: servers, tests, scripts, other commands.

        Client commands, `help` and `check` defer it: they must work without a YAML and must not create a state
        directory. Nobody may call a process whose key set could not be built. Other commands of Django (`shell`,
        `collectstatic`) go on, and so does a process for which no YAML is named or found; each request gets the error.
        Any other process ends.

        Raises:
            RuntimeConfError, AuthKeysError, StateDirectoryError, OSError: The key set cannot be built.
            SystemExit: The same, for a management command. `runweb`, which may have a supervisor, ends with EX_CONFIG.
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
    """Return the management command that these *arguments* of a process name, "" for none; None for other programs."""
    program = Path(arguments[0] if arguments else "")
    if program.name in _PROGRAMS or (program.name == "__main__.py" and program.parent.name in _PACKAGES):
        return "".join(arguments[1:2])
    return None


def may_defer(command: str, arguments: Sequence[str]) -> bool:
    """Return whether *command*, of a process with these *arguments*, needs no key set: it answers no requests."""
    app = get_commands().get(command)
    silent = {config.name for config in apps.get_app_configs() if not getattr(config, "answers_requests", True)}
    return command in _CLIENTS or app in {_CLIENT_APP, *silent} or not _HELP.isdisjoint(arguments[1:])


def is_upkeep(command: str) -> bool:
    """Return whether *command* is one of Django's that answer no requests, such as `collectstatic`."""
    return command not in _SERVING and str(get_commands().get(command, "")).startswith("django.")


def _config_option(arguments: Sequence[str]) -> str | None:
    """Return the value of `--config` as the command will read it, which parses its options later."""
    parser = ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--config")
    try:
        return str(parser.parse_known_args(arguments[2:])[0].config or "")
    except ArgumentError:
        return None  # The command will say what is wrong with it.
