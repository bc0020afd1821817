"""`manage.py sql`."""

from runtimeclient.commands.sql import COMMAND
from runtimeclient.management.django_command import DjangoCommand


class Command(DjangoCommand):
    """See `runtimeclient.commands.sql`."""

    command = COMMAND
    help = COMMAND.summary
