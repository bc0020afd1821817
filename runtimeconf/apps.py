"""The Django app: `manage.py check` reports configuration errors and warnings."""

import os
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks

from runtimeconf.errors import ConfigError
from runtimeconf.state import get_config, is_absent


def check_configuration(
    app_configs: Sequence[AppConfig] | None = None,  # noqa: ARG001 (Django's interface of checks)
    **kwargs: Any,  # noqa: ARG001 (as above)
) -> list[checks.CheckMessage]:
    """
    Return the configuration errors, or the warnings if there are no errors.

    The file is not read before this call.
    """
    try:
        config = get_config()
    except ConfigError as exc:
        if is_absent(os.environ):  # Migrations and tests of a user's project can run without a configuration file.
            return [
                checks.Warning(f"{line}. Until then nobody may call", id="runtimeconf.W002") for line in exc.lines()
            ]
        return [checks.Error(line, id="runtimeconf.E001") for line in exc.lines()]
    return [checks.Warning(line, id="runtimeconf.W001") for line in config.warnings]


class RuntimeConfConfig(AppConfig):
    """Registers the check."""

    name = "runtimeconf"

    def ready(self) -> None:
        """Register the check without reading the configuration file, because client commands must start without one."""
        checks.register(check_configuration)
