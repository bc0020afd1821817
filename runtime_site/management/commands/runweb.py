"""`manage.py runweb`: the part that speaks HTTP."""

from typing import Any

from runtime_site.management.base import PartCommand
from runtime_site.uncaught import capture


class Command(PartCommand):
    """Run `supervisor.web`."""

    help = "Runs the HTTP server. `serve` starts it."
    part = "web"

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it with Django's apps, which the other parts do without: that set up logging for them."""
        capture()
        super().handle(*args, **options)
