"""Times for people: ISO 8601 in UTC, to the millisecond. Waits use the monotonic clock instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def utc_now() -> str:
    """Return the current time."""
    return utc_in(0.0)


def utc_in(seconds: float) -> str:
    """Return the time in *seconds* from now."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_since(time: str) -> float:
    """Return the seconds since *time*; 0 if the clock was set back in between."""
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds())
