"""`manage.py refresh`."""

from runtimeclient.management.django_command import DjangoCommand

Command = DjangoCommand
