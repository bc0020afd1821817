"""`manage.py datasets`."""

from runtimeclient.commands.datasets import COMMAND
from runtimeclient.management.django_command import DjangoCommand


class Command(DjangoCommand):
    """See `runtimeclient.commands.datasets`."""

    command = COMMAND
    help = COMMAND.summary
