"""`manage.py runtraces`: the part that exports traces."""

from runtime_site.management.base import PartCommand


class Command(PartCommand):
    """Run `supervisor.traces`."""

    help = "Runs the part of the runtime that exports traces. Only `serve` starts it, if the YAML has runtime.traces."
    part = "traces"
