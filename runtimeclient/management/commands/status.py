"""`manage.py status`."""

from runtimeclient.commands.status import COMMAND
from runtimeclient.management.django_command import DjangoCommand


class Command(DjangoCommand):
    """See `runtimeclient.commands.status`."""

    command = COMMAND
    help = COMMAND.summary
