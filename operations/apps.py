"""The Django app of the command `apikey`."""

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    """Has a command that answers no requests, so it needs no key set."""

    name = "operations"
    answers_requests = False
