"""`manage.py history`."""

from runtimeclient.management.django_command import DjangoCommand

Command = DjangoCommand
