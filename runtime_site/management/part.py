"""The base of the commands that run one part (`runrefresh`, `runengine`, ...), started by `serve` or by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from django.core.management.base import BaseCommand, CommandParser

import authkeys.state
from runtime_site import parts, startup
from runtime_site.management.config_option import add_config_option, use_config
from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from system.state_directory import prepare_state_dir


class PartBase(BaseCommand):
    """Runs one part of the runtime until SIGTERM."""

    part: ClassVar[parts.PartName]
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add_config_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve with the handover; without one, check the YAML and execute this part again with only what it needs."""
        handed = handover.received()
        try:
            if handed is None:
                self._execute(options["config"], self.handed(options))
            prepare_state_dir(handed[0].state_dir)  # It may have been removed or changed since the runtime started.
            self.serve(*handed)
        except startup.StartError as error:
            self.stderr.write(str(error))
            sys.exit(parts.CANNOT_START)

    def handed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON values that `serve` needs from the *options*."""
        return {}

    def serve(self, config: RuntimeConfig, extra: dict[str, Any]) -> None:
        """
        Serve until SIGTERM.

        Raises:
            StartError: It cannot start, and a restart would not help.
        """
        raise NotImplementedError

    def _execute(self, file: Path | None, extra: dict[str, Any]) -> NoReturn:
        use_config(file)
        config = startup.checked_config()
        startup.log_warnings(config)
        parts.execute(self.part, config, authkeys.state.get_access(), **extra)
