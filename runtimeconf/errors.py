"""
What can be wrong with a configuration.

::

    RuntimeConfError
    └── ConfigError        every fault of one YAML file, found in one pass
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: One line per fault on standard error, at most this many (CONTRACT: a start prints no wall of text).
MAX_SHOWN_FAULTS = 20


class RuntimeConfError(Exception):
    """Base of this room's errors; `code` is stable and public."""

    code = "configuration_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFault:
    """One fault: where it is (`line` counts from 1, 0 when there is none; `yaml_path` like `runtime.auth`) and why."""

    file: Path
    line: int
    yaml_path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        return f"{place}: {self.yaml_path}: {self.message}" if self.yaml_path else f"{place}: {self.message}"


class ConfigError(RuntimeConfError):
    """The configuration cannot be used; `faults` names everything that is wrong with it."""

    def __init__(self, faults: tuple[ConfigFault, ...]) -> None:
        self.faults = faults
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """One line per fault, MAX_SHOWN_FAULTS lines at most, the last of which counts what is left out."""
        shown = [str(fault) for fault in self.faults[:MAX_SHOWN_FAULTS]]
        if len(self.faults) > MAX_SHOWN_FAULTS:
            left_out = len(self.faults) - (MAX_SHOWN_FAULTS - 1)
            shown = [*shown[: MAX_SHOWN_FAULTS - 1], f"{self.faults[0].file}: and {left_out} more faults"]
        return shown
