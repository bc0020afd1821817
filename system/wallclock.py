"""Times for people: ISO 8601 in UTC, to the millisecond. Waits use a clock that cannot be set."""

import time
from datetime import UTC, datetime


def since_boot() -> float:
    """Return the seconds since the machine booted. Unlike `time.monotonic`, this includes time spent suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def utc_at(timestamp: float) -> str:
    """Return the time *timestamp* (`time.time()`)."""
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_now() -> str:
    """Return the current time."""
    return utc_at(time.time())


def utc_in(seconds: float) -> str:
    """Return the time in *seconds* from now."""
    return utc_at(time.time() + seconds)


def seconds_since(time: str) -> float:
    """Return the seconds since *time*; 0 if the clock was set back in between."""
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds())
