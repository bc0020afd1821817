"""The Django app of the project itself: `manage.py check` judges the SQL of the YAML too."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks

import runtimeconf.state
from runtime_site import startup
from runtimeconf.errors import ConfigError


class RuntimeSiteConfig(AppConfig):
    """Registers the check of views and `refresh_sql`, which needs the engine's parser."""

    name = "runtime_site"

    def ready(self) -> None:
        """Register the check; it loads nothing until checks run."""
        checks.register(check_statements)


def check_statements(*_: Any, **__: Any) -> list[checks.CheckMessage]:
    """Return one error for each view or `refresh_sql` that a server would refuse to start with."""
    try:
        config = runtimeconf.state.get_config()
    except ConfigError:
        return []  # runtimeconf's own check says why.
    return [checks.Error(str(fault), id="runtime_site.E001") for fault in startup.statement_faults(config)]
