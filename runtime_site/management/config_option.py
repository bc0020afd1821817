"""The option `--config`, for the commands that read the runtime YAML."""

from __future__ import annotations

import os
from pathlib import Path

from django.core.management.base import CommandParser

import runtimeconf.state


def add_config_option(parser: CommandParser) -> None:
    """Declare `--config FILE`; its value, `config`, is for `use_config`."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the runtime YAML (default: the file named by RUNTIME_CONFIG, else runtime.yaml)",
    )


def use_config(file: Path | None) -> None:
    """Read the configuration of this process from *file*, if given."""
    if file is not None:
        os.environ[runtimeconf.state.ENVIRONMENT_VARIABLE] = str(file)
        runtimeconf.state.set_config(None)
