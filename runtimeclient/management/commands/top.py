"""`manage.py top`."""

from runtimeclient.management.django_command import DjangoCommand

Command = DjangoCommand
