"""`manage.py login`."""

from runtimeclient.management.django_command import DjangoCommand

Command = DjangoCommand
