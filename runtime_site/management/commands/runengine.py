"""`manage.py runengine`: the part that runs statements."""

from runtime_site.management.base import PartCommand


class Command(PartCommand):
    """Run `supervisor.engine`."""

    help = "Runs the part of the runtime that runs statements. `serve` starts it; by hand it needs the YAML."
    part = "engine"
