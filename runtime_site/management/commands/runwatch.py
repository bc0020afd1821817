"""`manage.py runwatch`: the part that counts and remembers what happens in the others."""

from runtime_site.management.base import PartCommand


class Command(PartCommand):
    """Run `supervisor.watch`."""

    help = "Runs the part of the runtime that counts and remembers. `serve` starts it; by hand it needs the YAML."
    part = "watch"
