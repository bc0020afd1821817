"""The Django app of this room: `manage.py check` shows what is wrong with the YAML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks

from runtimeconf.errors import ConfigError
from runtimeconf.state import get_config

FAULT_ID = "runtimeconf.E001"
WARNING_ID = "runtimeconf.W001"


def check_configuration(
    app_configs: Sequence[AppConfig] | None = None,  # noqa: ARG001 (Django's interface of checks)
    **kwargs: Any,  # noqa: ARG001 (as above)
) -> list[checks.CheckMessage]:
    """Give the faults of the configuration as errors, or its warnings; the file is read here, not before."""
    try:
        config = get_config()
    except ConfigError as exc:
        return [checks.Error(line, id=FAULT_ID) for line in exc.lines()]
    return [checks.Warning(line, id=WARNING_ID) for line in config.warnings]


class RuntimeConfConfig(AppConfig):
    """Registers the check."""

    name = "runtimeconf"

    def ready(self) -> None:
        """Register the check without reading anything: a client command must start where no YAML is."""
        checks.register(check_configuration)
