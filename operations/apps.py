"""The Django app of the command `apikey`."""

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    """An app with a command that serves no requests, so it needs no key set."""

    name = "operations"
    answers_requests = False
