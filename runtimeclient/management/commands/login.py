"""`manage.py login`."""

from runtimeclient.commands.login import COMMAND
from runtimeclient.management.django_command import DjangoCommand


class Command(DjangoCommand):
    """See `runtimeclient.commands.login`."""

    command = COMMAND
    help = COMMAND.summary
