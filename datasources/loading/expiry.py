"""
`refresh_data_window` and `retention_period`: leave out rows whose `time_column` is too old.

Rows without a time are also left out. Timestamps without a time zone, and dates, are in UTC.
"""

from datetime import UTC, datetime, timedelta

from datasources.errors import SourceError
from datasources.sql import identifier, literal
from queryengine.manifest import Column
from runtimeconf.model import DatasetConfig

#: The numeric time formats, with their units per second.
_UNITS = {"unix_seconds": 1, "unix_millis": 1000}


def window_of(dataset: DatasetConfig) -> float | None:
    """Return the age in seconds beyond which a load of *dataset* leaves out rows; None for no limit."""
    acceleration = dataset.acceleration
    ages = (acceleration.refresh_data_window_s, acceleration.retention_period_s)
    return min((age for age in ages if age is not None and acceleration.enabled), default=None)


def retention_of(dataset: DatasetConfig) -> float | None:
    """Return the age in seconds beyond which served rows of *dataset* are dropped; None for no limit."""
    acceleration = dataset.acceleration
    # A full load replaces all rows, so its window also limits the age of served rows.
    limit_s = window_of(dataset) if acceleration.refresh_mode == "full" else acceleration.retention_period_s
    return limit_s if acceleration.enabled else None


def format_problem(dataset: DatasetConfig, column: Column) -> str | None:
    """Return why the `time_format` does not fit the type of *column*, the `time_column`; None if it fits."""
    is_time = column.type.startswith(("DATE", "TIMESTAMP"))
    counts = (dataset.time_format or "timestamp") in _UNITS
    if is_time is not counts:
        return None
    meant = "remove time_format" if is_time else f"set time_format to {' or '.join(_UNITS)}"
    return f"The time_column of {dataset.name} is of type {column.type:.80}: {meant}."


def kept(dataset: DatasetConfig, column: Column, age_s: float, now: float) -> str:
    """
    Return the SQL condition for rows of *dataset* whose time in *column* is at most *age_s* seconds before *now*.

    Raises:
        SourceError: The `time_format` does not fit the type of *column*.
    """
    oldest = datetime.fromtimestamp(now, UTC) - timedelta(seconds=age_s)
    if (problem := format_problem(dataset, column)) is not None:
        raise SourceError(problem)
    per_second = _UNITS.get(dataset.time_format or "timestamp")
    if per_second is not None:
        limit = str(int(oldest.timestamp() * per_second))
    elif column.type.startswith(("TIMESTAMP WITH", "TIMESTAMPTZ")):
        # The engine compares TIMESTAMPTZ_NS with no other type.
        limit = f"{literal(oldest.isoformat())}::{column.type}"
    else:
        limit = f"{literal(oldest.replace(tzinfo=None).isoformat())}::TIMESTAMP"
    return f"{identifier(column.name)} >= {limit}"
