"""
When a dataset is loaded again: seconds in, seconds out. The clock is the refresher's, and never steps.

A source that is down is asked once an interval at most, and the longer it is down the less often.
"""

from __future__ import annotations

from runtimeconf.model import AccelerationConfig

#: After failures in a row a dataset waits for 1, 2, 4 and then this many intervals ...
MOST_INTERVALS = 8
#: ... but not longer than so many seconds, unless its interval is.
LONGEST_PAUSE_S = 600.0

#: Seconds until a dataset that serves nothing yet and has no refresh_check_interval is tried again: doubled up to the
#: second number.
FIRST_RETRY_S = 2.0
LAST_RETRY_S = 60.0

#: What refresh_jitter_max is when the YAML leaves it out, in parts of the interval.
JITTER_PART = 0.1


def pause_s(acceleration: AccelerationConfig, failures: int, *, must_load: bool) -> float | None:
    """
    Return the seconds from the end of a load to the next one that nobody asks for; None: there is none.

    Args:
        acceleration: What the YAML says.
        failures: How many loads have failed in a row.
        must_load: Whether it is to be tried until it succeeds, with or without an interval.
    """
    doubled = 2.0 ** min(max(failures - 1, 0), 10)
    interval_s = acceleration.refresh_check_interval_s if acceleration.enabled else None
    if interval_s is not None:
        longest_s = max(interval_s, min(MOST_INTERVALS * interval_s, LONGEST_PAUSE_S))
        return min(interval_s * doubled, longest_s)
    return min(FIRST_RETRY_S * doubled, LAST_RETRY_S) if must_load else None


def jitter_s(acceleration: AccelerationConfig, chance: float) -> float:
    """Return the seconds that a load is put off; *chance* is a random number from 0 to 1."""
    if not (acceleration.enabled and acceleration.refresh_jitter_enabled):
        return 0.0
    most_s = acceleration.refresh_jitter_max_s
    if most_s is None:
        most_s = JITTER_PART * (acceleration.refresh_check_interval_s or 0.0)
    return chance * most_s
