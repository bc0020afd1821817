"""The Django app of the command."""

from django.apps import AppConfig


class DoctorConfig(AppConfig):
    """An app with a command that serves no requests, so it needs no key set."""

    name = "doctor"
    answers_requests = False
