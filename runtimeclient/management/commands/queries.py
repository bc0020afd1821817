"""`manage.py queries`."""

from runtimeclient.commands.queries import COMMAND
from runtimeclient.management.django_command import DjangoCommand


class Command(DjangoCommand):
    """See `runtimeclient.commands.queries`."""

    command = COMMAND
    help = COMMAND.summary
