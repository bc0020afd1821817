"""`manage.py logout`."""

from runtimeclient.management.django_command import DjangoCommand

Command = DjangoCommand
