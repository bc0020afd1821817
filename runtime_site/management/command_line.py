"""Django's command line, which lists only the commands that work here."""

import os
import signal
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from django.conf import settings
from django.core.management import ManagementUtility, get_commands

from runtime_site.chosen_settings import unloadable
from runtime_site.uncaught import begin_logging

#: The headings of the list, in order. The apps of a user's own project follow under their names.
_HEADINGS = {"runtime_site": "server", "runtimeclient": "client", "django.core": "django"}

#: The commands of other apps that work without a database.
_WITHOUT_DATABASE = {
    "django.core": frozenset({"check", "diffsettings", "shell", "test"}),
    "rest_framework": frozenset(),
}

_DUMMY = "django.db.backends.dummy"


def listed_commands() -> dict[str, list[str]]:
    """Return the available commands by heading, sorted."""
    listed: dict[str, list[str]] = {heading: [] for heading in _HEADINGS.values()}
    # Without a database, Django adds its dummy engine on first access.
    has_database = any(database.get("ENGINE", _DUMMY) != _DUMMY for database in settings.DATABASES.values())
    for name, app in sorted(get_commands().items()):
        if has_database or name in _WITHOUT_DATABASE.get(app, {name}):
            listed.setdefault(_HEADINGS.get(app, app), []).append(name)
    return listed


def run_without_apps(argv: list[str]) -> None:
    """
    Run the command in *argv* like `manage.py` does, but without Django's apps.

    Logging is set up as usual. The apps, with REST framework, would take 16 MB and 0.2 s of CPU.
    """
    begin_logging()
    import_module(f"runtime_site.management.commands.{argv[1]}").Command().run_from_argv(argv)


class CommandLine(ManagementUtility):
    """Runs management commands as Django does, and lists the available ones, ours first."""

    prog_name: str

    def execute(self) -> None:
        """
        Run the command; exit with one sentence if the settings named by `--settings` cannot be loaded.

        If the reader of the output has gone (`check | head`), end by SIGPIPE, like other programs.
        """
        try:
            try:
                super().execute()
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGPIPE)
        except Exception as error:
            if settings.configured:
                raise
            sys.exit(unloadable("--settings", error))

    def fetch_command(self, subcommand: str) -> Any:
        """Return a command. Exit with 2, as for any wrong usage, if it does not exist."""
        if subcommand not in get_commands():
            _ = settings.INSTALLED_APPS  # raises if the command is missing because the settings cannot be loaded
            near = "".join(f" Did you mean {name}?" for name in get_close_matches(subcommand, get_commands(), 1))
            sys.stderr.write(f"Error: Unknown command: {subcommand!r}.{near} See {self.prog_name} help.\n")
            sys.exit(2)
        return super().fetch_command(subcommand)

    def main_help_text(self, commands_only: bool = False) -> str:
        """Return the names of the commands, with headings unless *commands_only*."""
        listed = listed_commands()
        if commands_only:
            return "\n".join(name for names in listed.values() for name in names)
        lines = [f"Type '{self.prog_name} help <subcommand>' for help on a specific subcommand."]
        for heading, names in listed.items():
            lines += ["", f"[{heading}]", *(f"    {name}" for name in names)]
        return "\n".join(lines)
