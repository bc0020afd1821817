"""`manage.py runflight`: the part that serves Arrow Flight SQL."""

from runtime_site.management.base import PartCommand


class Command(PartCommand):
    """Run `supervisor.flight`."""

    help = "Runs the part of the runtime that speaks Arrow Flight SQL. `serve` starts it; by hand it needs the YAML."
    part = "flight"
