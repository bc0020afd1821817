"""The time for what is deleted because of its age, and is lost if the machine's clock was wrong."""

import logging
import threading
import time

from system.wallclock import since_boot

logger = logging.getLogger(__name__)

#: Seconds by which the clock must be set forward to count as a leap, and until a leap is believed.
LEAP_S = 60.0
SETTLED_S = 3600.0


class SettledClock:
    """
    The machine's clock. If it is set forward, the former time goes on for another `SETTLED_S`.

    It is compared with the seconds since the boot, which nobody can set and which include suspended time. Any thread
    may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._believed = self._shown = time.time() - since_boot()  # the time of the boot
        self._shown_since = 0.0

    def now(self) -> float:
        """Return the time, as `time.time` does."""
        with self._lock:
            booted_s = since_boot()
            shown = time.time() - booted_s
            if abs(shown - self._shown) > LEAP_S:
                self._shown, self._shown_since = shown, booted_s
                if shown > self._believed + LEAP_S:
                    leap = {"leap_s": round(shown - self._believed), "for_s": SETTLED_S}
                    logger.warning("The clock was set forward: rows expire by the former time", extra={"fields": leap})
            if shown <= self._believed + LEAP_S or booted_s >= self._shown_since + SETTLED_S:
                self._believed = self._shown = shown
            return booted_s + self._believed
