"""
The errors of the configuration.

::

    RuntimeConfError
    └── ConfigError        every fault of one YAML file, found in one pass
"""

from dataclasses import dataclass
from pathlib import Path

#: A failed start prints one line per fault, and at most this many.
MAX_SHOWN_FAULTS = 20


class RuntimeConfError(Exception):
    """Base of this room's errors; `code` is stable and public."""

    code = "configuration_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFault:
    """One fault and its location: `line` counts from 1, or is 0 for none; `yaml_path` is like `runtime.auth`."""

    file: Path
    line: int
    yaml_path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else str(self.file)
        return f"{where}: {self.yaml_path}: {self.message}" if self.yaml_path else f"{where}: {self.message}"


class ConfigError(RuntimeConfError):
    """The configuration cannot be used; `faults` lists everything that is wrong with it."""

    def __init__(self, faults: tuple[ConfigFault, ...]) -> None:
        self.faults = faults
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return one line per fault, at most MAX_SHOWN_FAULTS; the last line counts the faults left out."""
        shown = [str(fault) for fault in self.faults[:MAX_SHOWN_FAULTS]]
        if len(self.faults) > MAX_SHOWN_FAULTS:
            left_out = len(self.faults) - (MAX_SHOWN_FAULTS - 1)
            shown = [*shown[: MAX_SHOWN_FAULTS - 1], f"{self.faults[0].file}: and {left_out} more errors"]
        return shown
