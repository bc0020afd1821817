"""`manage.py check`: Django's checks, and those of YAML, data and machine."""

from typing import Any

from django.core import checks
from django.core.management.base import CommandParser
from django.core.management.commands import check

from runtime_site.management.part import add_config_option, use_config
from runtime_site.system_checks import check_runtime


class Command(check.Command):
    """Check without starting or changing anything."""

    help = "Checks the YAML, the SQL in it, the files of its datasets and the machine. Nothing is started."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        add_config_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the checks of every command, and those that look at machine and data."""
        use_config(options["config"])
        checks.register(check_runtime)
        super().handle(*args, **options)
