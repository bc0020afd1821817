"""`manage.py cancel`."""

from runtimeclient.management.django_command import DjangoCommand

Command = DjangoCommand
