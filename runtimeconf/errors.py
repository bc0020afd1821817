"""
Configuration errors.

::

    RuntimeConfError
    └── ConfigError        all errors in one configuration file, found in one pass
"""

from pathlib import Path

from msgspec import Struct

#: The maximum number of errors that a failed startup prints, one per line.
MAX_SHOWN_FAULTS = 20


class RuntimeConfError(Exception):
    """Base of this package's errors. `code` is stable and public."""

    code = "configuration_error"


class ConfigFault(Struct, frozen=True, kw_only=True):
    """
    One error and its location.

    `line` counts from 1 and is 0 if unknown; `yaml_path` is a path such as `runtime.auth`.
    """

    file: Path
    line: int
    yaml_path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else str(self.file)
        return f"{where}: {self.yaml_path}: {self.message}" if self.yaml_path else f"{where}: {self.message}"


class ConfigError(RuntimeConfError):
    """The configuration cannot be used. `faults` lists all errors in it."""

    def __init__(self, faults: tuple[ConfigFault, ...]) -> None:
        self.faults = faults
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return at most MAX_SHOWN_FAULTS lines, one per error. If errors are omitted, the last line counts them."""
        shown = [str(fault) for fault in self.faults[:MAX_SHOWN_FAULTS]]
        if len(self.faults) > MAX_SHOWN_FAULTS:
            left_out = len(self.faults) - (MAX_SHOWN_FAULTS - 1)
            shown = [*shown[: MAX_SHOWN_FAULTS - 1], f"{self.faults[0].file}: and {left_out} more errors"]
        return shown
