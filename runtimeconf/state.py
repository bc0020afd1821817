"""
The configuration of this process.

Only classes that a framework instantiates use it; others receive it as an argument.
"""

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
    """Return the configuration file named in *environ*, by default DEFAULT_FILE in the working directory."""
    return Path(environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_FILE)


def is_absent(environ: Mapping[str, str]) -> bool:
    """Return True if *environ* names no configuration file and the default file does not exist."""
    return not environ.get(ENVIRONMENT_VARIABLE) and not config_path(environ).exists()


def get_config() -> RuntimeConfig:
    """
    Return the configuration. The first call reads it, and later calls have the same outcome, even if it failed.

    Raises:
        ConfigError: The file cannot be used.
    """
    global _outcome  # noqa: PLW0603 (this module holds the process-wide configuration)
    with _lock:
        if _outcome is None:
            # Client commands and processes with a handover do not need the loader.
            from runtimeconf.loader import load  # noqa: PLC0415

            try:
                _outcome = load(config_path(os.environ), os.environ)
            except ConfigError as exc:
                _outcome = exc.faults
        outcome = _outcome
    if isinstance(outcome, RuntimeConfig):
        return outcome
    # A new error each time: raising the same one again would accumulate tracebacks.
    raise ConfigError(outcome)


def set_config(config: RuntimeConfig | ConfigError | None) -> None:
    """Replace the outcome of `get_config`. After None, the next call reads the file again."""
    global _outcome  # noqa: PLW0603 (as above)
    with _lock:
        _outcome = config.faults if isinstance(config, ConfigError) else config
