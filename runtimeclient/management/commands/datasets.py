"""`manage.py datasets`."""

from runtimeclient.management.django_command import DjangoCommand

Command = DjangoCommand
