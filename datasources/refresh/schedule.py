"""
Decides when a dataset is loaded again. All times are in seconds on the refresher's monotonic clock.

Only `refresh_cron` depends on the time of day, which is read at the end of each load. A failed load is retried after a
pause that grows with the number of failures. While the last good data is served, the pause is never longer than the
interval.
"""

from datetime import UTC, datetime

from cronsim import CronSim
from msgspec import Struct

from runtimeconf.model import AccelerationConfig


class Backoff(Struct, frozen=True):
    """
    The pauses before retries: the first pause, which doubles after every *failures_per_step* failures, and the longest.

    A random time of up to *jitter* times the pause is added to each pause.
    """

    first_s: float
    longest_s: float
    failures_per_step: int
    jitter: float

    def pause_s(self, failures: int, chance: float) -> float:
        """Return the seconds from the last of *failures* consecutive failures to the retry."""
        steps = min((failures - 1) // self.failures_per_step, 10)
        return min(self.first_s * 2.0**steps, self.longest_s) * (1 + self.jitter * chance)


#: For datasets without data to serve. The pause doubles at every second failure, so it never exceeds 8 s within the
#: first 20 s of an outage. A runtime that starts before its database has data within 10 s after the database is up.
WITHOUT_DATA = Backoff(first_s=2.0, longest_s=60.0, failures_per_step=2, jitter=0.0)

#: For datasets whose last good data is served. Jitter is needed because a source read by many runtimes fails for all
#: of them at once.
WITH_DATA = Backoff(first_s=5.0, longest_s=300.0, failures_per_step=1, jitter=0.5)

#: The default of refresh_jitter_max, as a fraction of the interval.
JITTER_PART = 0.1


def pause_s(
    acceleration: AccelerationConfig, failures: int, *, has_data: bool, must_load: bool, chance: float = 0.0
) -> float | None:
    """
    Return the seconds from the end of a load to the next one; None if none is scheduled.

    Args:
        acceleration: The settings of the dataset.
        failures: The number of consecutive failed loads.
        has_data: Whether the dataset can be read.
        must_load: Whether to retry until a load succeeds, even if the dataset is not refreshed periodically.
        chance: A random number from 0 to 1.
    """
    regular_s = _regular_s(acceleration)
    if regular_s is not None:
        regular_s += jitter_s(acceleration, chance)
    if not failures or not _may_retry(acceleration, failures) or (regular_s is None and not must_load):
        return regular_s
    if not has_data:
        return WITHOUT_DATA.pause_s(failures, chance)
    retry_s = WITH_DATA.pause_s(failures, chance)
    return retry_s if regular_s is None else min(retry_s, regular_s)


def _regular_s(acceleration: AccelerationConfig) -> float | None:
    """Return the seconds until the next load if there are no failures."""
    if not acceleration.enabled:
        return None
    intervals = (acceleration.refresh_check_interval_s, acceleration.retention_check_interval_s)
    pauses = [interval_s for interval_s in intervals if interval_s is not None]
    if acceleration.refresh_cron is not None:
        now = datetime.now(UTC)
        pauses.append((next(CronSim(acceleration.refresh_cron, now)) - now).total_seconds())
    return min(pauses, default=None)


def _may_retry(acceleration: AccelerationConfig, failures: int) -> bool:
    """Return whether a load that failed *failures* times in a row is retried before the next scheduled load."""
    most = acceleration.refresh_retry_max_attempts
    return acceleration.refresh_retry_enabled and (most is None or failures <= most)


def jitter_s(acceleration: AccelerationConfig, chance: float) -> float:
    """Return the random delay of a load. *chance* is a random number from 0 to 1."""
    if not (acceleration.enabled and acceleration.refresh_jitter_enabled):
        return 0.0
    most_s = acceleration.refresh_jitter_max_s
    if most_s is None:
        most_s = JITTER_PART * (acceleration.refresh_check_interval_s or 0.0)
    if acceleration.retention_check_interval_s is not None:  # Expired rows must be dropped soon.
        most_s = min(most_s, acceleration.retention_check_interval_s)
    return chance * most_s
