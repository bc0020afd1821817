"""The Django app of the HTTP API."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.signals import request_started

from sqlapi.sql_request import CONTENT_TYPE


class SqlApiConfig(AppConfig):
    """Keeps Django from reading what the API reads itself."""

    name = "sqlapi"

    def ready(self) -> None:
        """Look at each request before Django does."""
        request_started.connect(_keep_content_type, dispatch_uid="sqlapi.content_type")


def _keep_content_type(*, environ: dict[str, Any], **_: Any) -> None:
    # Django parses Content-Type before any middleware runs, and fails with a 500 on charsets that do not exist.
    environ[CONTENT_TYPE] = environ.pop("CONTENT_TYPE", "")
