"""The option `--config`, and the base of `serve` and of the commands that run one process (`runrefresh`, ...)."""

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

import authkeys.state
import runtimeconf.state
from supervisor import part_process, parts
from supervisor.errors import StartError


def add_config_option(parser: CommandParser) -> None:
    """Declare `--config FILE`. Its value, `config`, is for `use_config`."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the configuration file (default: the one named by RUNTIME_CONFIG, else runtime.yaml)",
    )


def use_config(file: Path | None) -> None:
    """Read the configuration of this process from *file*, if given."""
    if file is not None:
        os.environ[runtimeconf.state.ENVIRONMENT_VARIABLE] = str(file)
        runtimeconf.state.set_config(None)
        # The access object may have been built from another file when Django was set up.
        authkeys.state.set_access(None)


class PartCommand(BaseCommand):
    """Runs the function `serve` of a part's module in `supervisor` until SIGTERM."""

    part: ClassVar[parts.Program]
    exit_code: ClassVar[int] = parts.CANNOT_START  # the exit code if the part cannot start
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add_config_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the configuration and run the process, or exit with an error if it cannot start."""
        try:
            use_config(options["config"])
            part_process.run(self.part, lambda: self.handed(options))
        except StartError as error:
            self.stderr.write(str(error))
            sys.exit(self.exit_code)

    def handed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON values that the process needs from the *options*."""
        return {}
