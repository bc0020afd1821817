"""`manage.py apikey`."""

from runtimeclient.management.django_command import DjangoCommand

Command = DjangoCommand
