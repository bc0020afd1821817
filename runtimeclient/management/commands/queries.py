"""`manage.py queries`."""

from runtimeclient.management.django_command import DjangoCommand

Command = DjangoCommand
