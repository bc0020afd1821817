"""`manage.py cancel`."""

from runtimeclient.commands.cancel import COMMAND
from runtimeclient.management.django_command import DjangoCommand


class Command(DjangoCommand):
    """See `runtimeclient.commands.cancel`."""

    command = COMMAND
    help = COMMAND.summary
