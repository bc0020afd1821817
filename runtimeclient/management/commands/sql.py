"""`manage.py sql`."""

from runtimeclient.management.django_command import DjangoCommand

Command = DjangoCommand
