"""`manage.py runtraces`: the process that exports traces."""

from runtime_site.management.base import PartCommand


class Command(PartCommand):
    """Run `supervisor.traces`."""

    help = "Runs the process that exports traces. Only `serve` can start it."
    part = "traces"
