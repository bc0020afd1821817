"""`manage.py logout`."""

from runtimeclient.commands.logout import COMMAND
from runtimeclient.management.django_command import DjangoCommand


class Command(DjangoCommand):
    """See `runtimeclient.commands.logout`."""

    command = COMMAND
    help = COMMAND.summary
