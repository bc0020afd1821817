"""
The requests of each key within the last minute, counted for all processes of a runtime.

At most `requests_per_minute` requests are allowed in any 60 seconds. They are counted by the second, so a request is
forgotten up to a second late. A refused request does not count.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from queryengine.engine import Allowance

#: The seconds over which requests are counted.
WINDOW_S = 60


class RateLimits:
    """The counts of all keys that have a limit. Safe from any thread. *clock* gives seconds, as `time.monotonic`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: By key, the second and the number of its requests, oldest first.
        self._counts: dict[str, deque[tuple[int, int]]] = {}

    def take(self, key: str, per_minute: int) -> Allowance:
        """Count a request of *key*, unless it made *per_minute* requests within the last minute."""
        second = int(self._clock())
        with self._lock:
            counts = self._counts.setdefault(key, deque())
            while counts and counts[0][0] < second - WINDOW_S:
                counts.popleft()
            used = sum(count for _, count in counts)
            if is_allowed := used < per_minute:
                used += 1
                latest = counts.pop()[1] if counts and counts[-1][0] == second else 0
                counts.append((second, latest + 1))
            reset_s = counts[0][0] + WINDOW_S + 1 - second
        return Allowance(limit=per_minute, remaining=max(0, per_minute - used), reset_s=reset_s, is_allowed=is_allowed)
