"""The Django app of the project itself: `manage.py check` judges the SQL of the YAML too."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks

import datasources.state
import queryengine.state
import runtimeconf.state
from runtimeconf import handover
from runtimeconf.errors import ConfigError


class RuntimeSiteConfig(AppConfig):
    """Registers the check of views and `refresh_sql`, and has the runtime start when a request needs it."""

    name = "runtime_site"

    def ready(self) -> None:
        """
        Register the check, which loads nothing until checks run; nor is anything else loaded or started here.

        A server starts the runtime before it answers. In the tests of a project, or in a shell, the first request that
        needs it does. A part of a supervised runtime has its engine in another part.
        """
        checks.register(check_statements)
        if handover.received() is None:
            queryengine.state.start_on_demand(_start_runtime)
            datasources.state.start_on_demand(_start_runtime)


def _start_runtime() -> None:
    from runtime_site import startup  # noqa: PLC0415 (a client command has no use for it)

    startup.start_once().wait_for_datasets()


def check_statements(*_: Any, **__: Any) -> list[checks.CheckMessage]:
    """Return one error for each view or `refresh_sql` that a server would refuse to start with."""
    from runtime_site import startup  # noqa: PLC0415 (as above)

    try:
        config = runtimeconf.state.get_config()
    except ConfigError:
        return []  # runtimeconf's own check says why.
    return [checks.Error(str(fault), id="runtime_site.E001") for fault in startup.statement_faults(config)]
