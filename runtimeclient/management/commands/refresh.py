"""`manage.py refresh`."""

from runtimeclient.commands.refresh import COMMAND
from runtimeclient.management.django_command import DjangoCommand


class Command(DjangoCommand):
    """See `runtimeclient.commands.refresh`."""

    command = COMMAND
    help = COMMAND.summary
