"""`manage.py runflight`: the process that serves Arrow Flight SQL."""

from runtime_site.management.base import PartCommand


class Command(PartCommand):
    """Run `supervisor.flight`."""

    help = "Runs the Arrow Flight SQL server. `serve` starts it."
    part = "flight"
