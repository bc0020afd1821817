"""`manage.py runweb`: the process that serves HTTP."""

from typing import Any

from runtime_site.management.base import PartCommand
from runtime_site.uncaught import capture


class Command(PartCommand):
    """Run `supervisor.web`."""

    help = "Runs the HTTP server. `serve` starts it."
    part = "web"

    def handle(self, *args: Any, **options: Any) -> None:
        """Run with Django's apps, which also set up logging. The other processes do without them."""
        capture()
        super().handle(*args, **options)
