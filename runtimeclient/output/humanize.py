"""Durations, sizes, counts and statements in a readable form."""

from datetime import UTC, datetime

# Seconds and name of a unit, and of the unit below it.
_PERIODS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
# Length of a statement in a table.
_SHOWN_CHARACTERS = 80
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def duration(seconds: float) -> str:
    """Format a duration in one or two units: `412 ms`, `3.2 s`, `2 min 5 s`, `3 h 12 min`."""
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    unit_s, unit, part_s, part = next(period for period in _PERIODS if whole >= period[0])
    rest = whole % unit_s // part_s
    return f"{whole // unit_s} {unit}" + (f" {rest} {part}" if rest else "")


def age(moment: str, now: datetime) -> str:
    """
    Return how long ago a time was; a time that cannot be parsed is returned unchanged.

    Args:
        moment: ISO 8601; UTC if it has no zone.
        now: A time with a zone.
    """
    try:
        then = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return elapsed((now - then).total_seconds())


def elapsed(seconds: float) -> str:
    """Format an age in whole seconds; a negative one, from clocks that differ, is 0 s."""
    return duration(round(seconds)) if seconds >= 59.5 else f"{max(round(seconds), 0)} s"


def size(count: int) -> str:
    """Format a number of bytes in powers of 1,000: `823 B`, `12.3 MB`."""
    value = float(count)
    for unit in _UNITS:
        if value < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: `1 row`, `336,776 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def beginning(sql: str) -> str:
    """Return the beginning of a statement on one line."""
    text = " ".join(sql.split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
