"""The Django app of the command."""

from django.apps import AppConfig


class DoctorConfig(AppConfig):
    """Has a command that answers no requests, so it needs no key set."""

    name = "doctor"
    answers_requests = False
