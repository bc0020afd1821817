"""The one configuration of this process. Only classes that a framework makes ask here; all else is handed it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from runtimeconf.errors import ConfigError, ConfigFault
from runtimeconf.model import RuntimeConfig

ENVIRONMENT_VARIABLE = "RUNTIME_CONFIG"
DEFAULT_FILE = "runtime.yaml"

_lock = threading.Lock()
_outcome: RuntimeConfig | tuple[ConfigFault, ...] | None = None


def config_path(environ: Mapping[str, str]) -> Path:
    """The YAML file that *environ* names; an unset or empty variable means DEFAULT_FILE in the working directory."""
    return Path(environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_FILE)


def get_config() -> RuntimeConfig:
    """
    Give the configuration; the first call reads it, later ones give the same outcome, failure included.

    Raises:
        ConfigError: The file cannot be used.
    """
    global _outcome  # noqa: PLW0603 (this module is the one place of the process-wide configuration)
    with _lock:
        if _outcome is None:
            # A client command reads no YAML, nor does a part that is handed the configuration.
            from runtimeconf.loader import load  # noqa: PLC0415

            try:
                _outcome = load(config_path(os.environ), os.environ)
            except ConfigError as exc:
                _outcome = exc.faults
        outcome = _outcome
    if isinstance(outcome, RuntimeConfig):
        return outcome
    # A new error each time: one that is raised again collects the traceback of every caller.
    raise ConfigError(outcome)


def set_config(config: RuntimeConfig | None) -> None:
    """Use *config* from now on, or with None forget what was read: the next call of `get_config` reads anew."""
    global _outcome  # noqa: PLW0603 (as above)
    with _lock:
        _outcome = config
