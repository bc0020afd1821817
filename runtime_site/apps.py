"""The Django app of the project itself: `manage.py check` judges the SQL of the YAML too."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks, signals
from django.core.cache import close_caches
from django.core.handlers.base import reset_urlconf
from django.db import close_old_connections, reset_queries

import runtimeconf.state
from runtime_site import startup
from runtimeconf import handover
from runtimeconf.errors import ConfigError


class RuntimeSiteConfig(AppConfig):
    """Registers the checks, has the runtime start when it is needed, and spares requests what they do not need."""

    name = "runtime_site"

    def ready(self) -> None:
        """Register the check, which loads nothing until checks run; nor is anything else loaded or started here."""
        checks.register(check_statements)
        if handover.received() is None:  # A part of a supervised runtime has its engine in another part.
            startup.start_on_demand()
        # Of what Django resets before or after each request there is nothing: databases, caches, URL configurations.
        signals.request_started.disconnect(reset_queries)
        signals.request_started.disconnect(close_old_connections)
        signals.request_finished.disconnect(close_old_connections)
        signals.request_finished.disconnect(close_caches)
        signals.request_finished.disconnect(reset_urlconf)


def check_statements(*_: Any, **__: Any) -> list[checks.CheckMessage]:
    """Return one error for each view or `refresh_sql` that a server would refuse to start with."""
    try:
        config = runtimeconf.state.get_config()
    except ConfigError:
        return []  # runtimeconf's own check says why.
    return [checks.Error(str(fault), id="runtime_site.E001") for fault in startup.statement_faults(config)]
