"""
Speculative execution: a short statement runs while it is described, and the result is kept for the call that claims it.

A client calls GetFlightInfo, which needs the schema of the result, and then DoGet for the rows. For a short statement
the engine does the same work for both, so GetFlightInfo runs the statement and keeps the result. The result is handed
out once, to the same key, for the ticket's statement and parameters, and only while the same data is published. An
unclaimed result is dropped, and a later claim runs the statement again.

Some clients prepare a statement for each execution. A deterministic statement runs when it is prepared. Its result can
be claimed with the handle at first, and with the ticket after GetFlightInfo.

Speculation stops after a few milliseconds, so it is wasted on a long statement. A statement that exceeded this budget
is not speculated on again for a while. The same applies to statements that differ from it only in literals.
"""

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

#: Seconds that a statement may run speculatively.
BUDGET_S = 0.02

#: Seconds that a result is kept, and seconds that a statement over the budget is not tried again. The second value is
#: small because a short statement may only have waited for a CPU.
RESULT_TTL_S = 5.0
BACKOFF_S = 5.0

#: The maximum length in characters of statements that are speculated on.
MAX_CHARACTERS = 10_000

#: The maximum number of statements over the budget that are remembered.
MAX_BACKOFFS = 1_000

_LITERAL = re.compile(r"'[^']*'|[0-9]+")


class SpeculationBudget:
    """Decides how long a statement may run speculatively. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._backoffs: OrderedDict[int, float] = OrderedDict()  # by the hash of the normalized text, oldest first

    def of(self, sql: str) -> float:
        """Return the seconds for which *sql* may run speculatively; 0.0 if it should not."""
        if len(sql) > MAX_CHARACTERS:
            return 0.0
        with self._lock:
            since = self._backoffs.get(_normalized(sql), -math.inf)
        return 0.0 if self._clock() < since + BACKOFF_S else BUDGET_S

    def back_off(self, sql: str) -> None:
        """Do not speculate on *sql*, and statements that differ only in literals, for `BACKOFF_S` seconds."""
        normalized = _normalized(sql)
        with self._lock:
            self._backoffs[normalized] = self._clock()
            self._backoffs.move_to_end(normalized)
            if len(self._backoffs) > MAX_BACKOFFS:
                self._backoffs.popitem(last=False)


def _normalized(sql: str) -> int:
    return hash(_LITERAL.sub("0", sql))
