"""
When a dataset is loaded again. All times are in seconds of the refresher's clock, which never steps.

Only `refresh_cron` looks at the time of day, at the end of each load. A source that is down is tried at most once per
interval, and less often the longer it is down.
"""

from datetime import UTC, datetime

from cronsim import CronSim

from runtimeconf.model import AccelerationConfig

#: After failures in a row the pause is 1, 2, 4 and then this many intervals ...
MOST_INTERVALS = 8
#: ... but at most this many seconds, or one interval if that is longer.
LONGEST_PAUSE_S = 600.0

#: Seconds until the next try of a dataset without data and without a refresh_check_interval: the first pause, which
#: doubles, and the longest.
FIRST_RETRY_S = 2.0
LAST_RETRY_S = 60.0

#: The default of refresh_jitter_max, as a part of the interval.
JITTER_PART = 0.1


def pause_s(acceleration: AccelerationConfig, failures: int, *, must_load: bool) -> float | None:
    """
    Return the seconds from the end of a load to the next scheduled one; None if none is scheduled.

    Args:
        acceleration: The settings of the dataset.
        failures: The number of loads that failed in a row.
        must_load: Whether to try until a load succeeds, even without an interval.
    """
    doubled = 2.0 ** min(max(failures - 1, 0), 10)
    intervals = (acceleration.refresh_check_interval_s, acceleration.retention_check_interval_s)
    declared = [interval_s for interval_s in intervals if interval_s is not None and acceleration.enabled]
    pauses = [min(interval_s * doubled, _longest_s(interval_s)) for interval_s in declared]
    if not pauses and must_load and _may_retry(acceleration, failures):
        pauses.append(min(FIRST_RETRY_S * doubled, LAST_RETRY_S))
    if acceleration.refresh_cron is not None and acceleration.enabled:
        now = datetime.now(UTC)
        pauses.append((next(CronSim(acceleration.refresh_cron, now)) - now).total_seconds())
    return min(pauses, default=None)


def _longest_s(interval_s: float) -> float:
    return max(interval_s, min(MOST_INTERVALS * interval_s, LONGEST_PAUSE_S))


def _may_retry(acceleration: AccelerationConfig, failures: int) -> bool:
    """Return whether a first load that failed *failures* times in a row is tried again."""
    most = acceleration.refresh_retry_max_attempts
    return failures == 0 or (acceleration.refresh_retry_enabled and (most is None or failures <= most))


def jitter_s(acceleration: AccelerationConfig, chance: float) -> float:
    """Return the random delay of a load; *chance* is a random number from 0 to 1."""
    if not (acceleration.enabled and acceleration.refresh_jitter_enabled):
        return 0.0
    most_s = acceleration.refresh_jitter_max_s
    if most_s is None:
        most_s = JITTER_PART * (acceleration.refresh_check_interval_s or 0.0)
    if acceleration.retention_check_interval_s is not None:  # Rows that have to go do not wait for long.
        most_s = min(most_s, acceleration.retention_check_interval_s)
    return chance * most_s
