"""`manage.py serve`: the production runtime, with all processes under one supervisor."""

from typing import Any

from django.core.management.base import CommandParser

from runtime_site.management.base import PartCommand
from supervisor import serve


class Command(PartCommand):
    """Check the configuration, start the parts, and serve until SIGTERM."""

    help = "Starts the runtime: checks the configuration, loads the datasets and serves until SIGTERM or Ctrl-C."
    part = "serve"
    exit_code = 1

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument(
            "--ready-message",
            metavar="TEXT",
            default="",
            help="text to print once every dataset is loaded",
        )

    def handed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the message and the values that `serve` inherits. Raises the ConfigError of `serve.inherited`."""
        return {"ready_message": options["ready_message"], **serve.inherited()}
