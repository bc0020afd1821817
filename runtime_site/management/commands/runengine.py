"""`manage.py runengine`: the process that runs statements."""

from runtime_site.management.base import PartCommand


class Command(PartCommand):
    """Run `supervisor.engine`."""

    help = "Runs the processes that run statements. `serve` starts them."
    part = "engine"
