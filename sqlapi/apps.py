"""The Django app of the HTTP API."""

from __future__ import annotations

from django.apps import AppConfig


class SqlApiConfig(AppConfig):
    """Views, parsing, content negotiation, errors."""

    name = "sqlapi"
