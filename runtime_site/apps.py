"""The project's Django app, which adds the configured SQL to Django's system checks."""

from typing import Any

from django.apps import AppConfig
from django.core import checks

import datasources.state
import queryengine.state
import runtimeconf.state
from runtimeconf import handover
from runtimeconf.errors import ConfigError


class RuntimeSiteConfig(AppConfig):
    """Registers the check of views and `refresh_sql`, and starts the runtime when a request needs it."""

    name = "runtime_site"

    def ready(self) -> None:
        """
        Register the check, without importing or starting anything yet.

        A server starts the runtime before it serves requests. In a project's tests or in a shell, the first request
        that needs the runtime starts it. A process of a supervised runtime uses the engine of another process.
        """
        checks.register(check_statements)
        if handover.received() is None:
            queryengine.state.start_on_demand(_start_runtime)
            datasources.state.start_on_demand(_start_runtime)


def _start_runtime() -> None:
    from supervisor import startup  # noqa: PLC0415 (client commands do not need it)

    startup.start_once().wait_for_datasets()


def check_statements(*_: Any, **__: Any) -> list[checks.CheckMessage]:
    """Return an error for each view or `refresh_sql` that would stop a server from starting."""
    from supervisor import startup  # noqa: PLC0415 (as above)

    try:
        config = runtimeconf.state.get_config()
    except ConfigError:
        return []  # runtimeconf's own check reports the reason.
    try:
        startup.with_checked_statements(config)
    except ConfigError as error:
        return [checks.Error(str(fault), id="runtime_site.E001") for fault in error.faults]
    return []
