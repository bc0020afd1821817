"""`manage.py runwatch`: the process that collects metrics and history from the other processes."""

from runtime_site.management.base import PartCommand


class Command(PartCommand):
    """Run `supervisor.watch`."""

    help = "Runs the process that collects metrics and history. `serve` starts it."
    part = "watch"
