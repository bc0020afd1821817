"""`manage.py status`."""

from runtimeclient.management.django_command import DjangoCommand

Command = DjangoCommand
