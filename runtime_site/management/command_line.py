"""Django's command line, with a list of the commands that have a use here."""

from __future__ import annotations

import sys

from django.conf import settings
from django.core.management import ManagementUtility, get_commands

from runtime_site.chosen_settings import unloadable

#: What the list calls an app, in its order; the apps of somebody's own project follow by their names.
_HEADINGS = {"runtime_site": "server", "runtimeclient": "client", "django.core": "django"}

#: Of the commands that others bring, those that work without a database.
_WITHOUT_DATABASE = {
    "django.core": frozenset({"check", "diffsettings", "shell", "test"}),
    "rest_framework": frozenset(),
}

_DUMMY = "django.db.backends.dummy"


def listed_commands() -> dict[str, list[str]]:
    """Return the commands that can be run here, sorted, below their headings."""
    listed: dict[str, list[str]] = {heading: [] for heading in _HEADINGS.values()}
    # Where there is none, Django itself puts its dummy there as soon as it looks.
    has_database = any(database.get("ENGINE", _DUMMY) != _DUMMY for database in settings.DATABASES.values())
    for name, app in sorted(get_commands().items()):
        if has_database or name in _WITHOUT_DATABASE.get(app, {name}):
            listed.setdefault(_HEADINGS.get(app, app), []).append(name)
    return listed


class CommandLine(ManagementUtility):
    """Runs a management command as Django does, and lists those that can be run here, ours first."""

    prog_name: str

    def execute(self) -> None:
        """Run the command; settings of `--settings` that cannot be loaded end the process in a sentence."""
        try:
            super().execute()
        except Exception as error:
            if settings.configured:
                raise
            sys.exit(unloadable("--settings", error))

    def main_help_text(self, commands_only: bool = False) -> str:
        """Return the names of the commands, below headings unless *commands_only*."""
        listed = listed_commands()
        if commands_only:
            return "\n".join(name for names in listed.values() for name in names)
        lines = [f"Type '{self.prog_name} help <subcommand>' for help on a specific subcommand."]
        for heading, names in listed.items():
            lines += ["", f"[{heading}]", *(f"    {name}" for name in names)]
        return "\n".join(lines)
