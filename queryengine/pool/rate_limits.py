"""
The requests of each key within the last minute, counted for all processes of a runtime.

At most `requests_per_minute` requests are allowed in any 60 seconds. They are counted by the second, so a request is
forgotten up to a second late. A refused request does not count.
"""

import threading
import time
from collections.abc import Callable

from queryengine.engine import Allowance

#: The seconds over which requests are counted.
WINDOW_S = 60


class RateLimits:
    """The counts of all keys that have a limit. Safe from any thread. *clock* gives seconds, as `time.monotonic`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: By key, the number of its requests in each second, oldest first.
        self._counts: dict[str, dict[int, int]] = {}

    def take(self, key: str, per_minute: int, instead_of: int | None = None) -> Allowance:
        """
        Count a request of *key*, unless it made *per_minute* requests within the last minute.

        *instead_of* is the `counted_at` of an earlier part of the same request. It is forgotten, so that a request of
        several calls counts once, at its last call.
        """
        second = int(self._clock())
        with self._lock:
            counts = self._counts.setdefault(key, {})
            for old in [one for one in counts if one < second - WINDOW_S]:
                del counts[old]
            if instead_of is not None and instead_of in counts:
                counts[instead_of] -= 1
                if not counts[instead_of]:
                    del counts[instead_of]
            used = sum(counts.values())
            if is_allowed := used < per_minute:
                used += 1
                counts[second] = counts.get(second, 0) + 1
            reset_s = next(iter(counts)) + WINDOW_S + 1 - second
        return Allowance(
            limit=per_minute,
            remaining=max(0, per_minute - used),
            reset_s=reset_s,
            is_allowed=is_allowed,
            counted_at=second,
        )
