"""`manage.py runrefresh`: the process that loads the data."""

from typing import Any

from django.core.management.base import CommandParser

from runtime_site.management.base import PartCommand


class Command(PartCommand):
    """Run `supervisor.refresh`."""

    help = "Runs the process that loads data. `serve` starts it."
    part = "refresh"

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument(
            "--once",
            nargs="*",
            metavar="DATASET",
            help="load these datasets (default: all whose sources have changed), print the results, and exit",
        )

    def handed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the datasets to load once."""
        return {} if options["once"] is None else {"once": options["once"]}
