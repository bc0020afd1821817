"""How long recent statements took, as recorded by a client process."""

import re
from typing import Final

from queryengine.bounded_dict import BoundedDict

#: A statement that ran for less than so many milliseconds was short.
SHORT_MS: Final = 1000.0

_REMEMBERED: Final = 10_000
_CHARACTERS: Final = 4096
#: Statements that differ in these are alike: literals of text and numbers, and white space.
_LITERALS: Final = re.compile(r"'[^']*'|\b[0-9][0-9.eE]*\b|\s+")


class Durations:
    """The statements that ran to their end, and whether each was short. Thread-safe."""

    def __init__(self) -> None:
        self._short: BoundedDict[int, bool] = BoundedDict(_REMEMBERED)

    def learn(self, sql: str, run_ms: float) -> None:
        """Remember that *sql* ran for this long; infinity if it did not end."""
        self._short[_alike(sql)] = run_ms < SHORT_MS

    def is_short(self, sql: str) -> bool:
        """Say whether a statement like *sql* was short the last time."""
        return self._short.get(_alike(sql), False)


def _alike(sql: str) -> int:
    return hash(_LITERALS.sub(" ", sql[:_CHARACTERS]))
