"""
`refresh_mode: append`: add newer rows to the served ones.

A row is newer if its `time_column` is greater than the greatest served value. A null, NaN or infinite time is never
newer and never the greatest. The first load includes such rows, and later loads leave them out.
"""

import os
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
from msgspec import Struct
from msgspec.structs import replace

from datasources.deadline import Deadline
from datasources.errors import SourceError
from datasources.loading.columns import columns_of, find_column
from datasources.sources.source import Bound
from datasources.sql import identifier, literal
from queryengine.manifest import Column
from runtimeconf.model import DatasetConfig, RefreshMode

#: The types of a time_column. Strings are not supported because '10' sorts before '9'.
_ORDERED = re.compile(
    r"U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|DATE"
    r"|TIMESTAMP(?:_S|_MS|_NS)?|TIMESTAMP WITH TIME ZONE|TIMESTAMPTZ_NS"
)
#: The time_column types that have infinite values.
_UNBOUNDED = re.compile(r"FLOAT|DOUBLE|DATE|TIMESTAMP.*")

#: SQL that converts the greatest value to a Python type for a source, rounded down. Nanoseconds are truncated.
_HINTS = {
    "TIMESTAMP_NS": "{}::TIMESTAMP - INTERVAL 1 MICROSECOND",
    "TIMESTAMP WITH TIME ZONE": "{} AT TIME ZONE 'UTC'",
    "TIMESTAMPTZ_NS": "({}::TIMESTAMPTZ AT TIME ZONE 'UTC') - INTERVAL 1 MICROSECOND",
}

_COPY_BYTES = 64 * 1024 * 1024


def time_column_of(dataset: DatasetConfig) -> str | None:
    """Return the `time_column` used to append to *dataset*; None if each refresh replaces all rows."""
    acceleration = dataset.acceleration
    return dataset.time_column if acceleration.enabled and acceleration.refresh_mode == "append" else None


def in_mode(dataset: DatasetConfig, mode: RefreshMode | None) -> DatasetConfig:
    """
    Return *dataset* with the refresh mode *mode*; None means as declared.

    A full load of an append dataset keeps the append mode, because its rows must still have the `time_column`.
    """
    if mode != "append" or dataset.acceleration.refresh_mode == "append":
        return dataset
    return replace(dataset, acceleration=replace(dataset.acceleration, refresh_mode="append"))


class Watermark(Struct, frozen=True):
    """The time *column*, and the condition for rows newer than those served, as SQL and as *bounds* for a source."""

    column: Column
    condition: str
    bounds: tuple[Bound, ...]


def find_time_column(dataset: DatasetConfig, columns: Sequence[Column]) -> Column:
    """
    Return the `time_column` among the *columns* of the source.

    Raises:
        SourceError: The column is missing, or its type has no order.
    """
    wanted = str(dataset.time_column)
    column = find_column(wanted, columns)
    if column is None:
        raise SourceError(
            f"The source of {dataset.name} has no column '{wanted}', which is declared as its time_column."
        )
    if _ORDERED.fullmatch(column.type) is None:
        raise SourceError(
            f"The time_column '{wanted}' of {dataset.name} is of type {column.type:.80}: a time_column must be "
            "a number, a date or a timestamp."
        )
    return column


def check_result(dataset: DatasetConfig, of_source: Column, columns: Sequence[Column]) -> None:
    """
    Check that the *columns* of a `refresh_sql` include the time column of the source.

    Raises:
        SourceError: The time column is missing from *columns*.
    """
    column = find_column(of_source.name, columns)
    if column is None or column.type != of_source.type:
        raise SourceError(
            f"The refresh_sql of {dataset.name} must keep the time_column '{of_source.name}' as it is "
            f"({of_source.type:.80}): the next refresh uses it to find newer rows."
        )


def watermark(connection: duckdb.DuckDBPyConnection, table: str, name: str) -> Watermark | None:
    """
    Return the greatest time in *table*, a quoted name; None if there is none.

    The time zone of *connection* must be UTC. *name* is the `time_column`.

    Raises:
        duckdb.Error: The table cannot be read.
    """
    column = find_column(name, columns_of(connection, table))
    if column is None:
        return None
    quoted = identifier(column.name)
    # The engine lacks isfinite for TIMESTAMPTZ_NS, but the coarser type has the same infinities.
    coarser = "::TIMESTAMPTZ" if column.type == "TIMESTAMPTZ_NS" else ""
    finite = f"isfinite({quoted}{coarser})" if _UNBOUNDED.fullmatch(column.type) else "true"
    only_finite = "" if finite == "true" else f"FILTER ({finite})"  # Without a filter, the column statistics suffice.
    as_hint = _HINTS.get(column.type, "{}").format("m")
    row = connection.execute(
        f"SELECT m::VARCHAR, {as_hint} FROM (SELECT max({quoted}) {only_finite} AS m FROM {table})"  # noqa: S608 - quoted by us
    ).fetchone()
    if row is None or row[0] is None:
        return None
    text, value = row
    if isinstance(value, datetime) and column.type.startswith(("TIMESTAMP WITH", "TIMESTAMPTZ")):
        value = value.replace(tzinfo=UTC)
    # Python has no times before the year 1 or after 9999.
    is_hint = isinstance(value, int | float | Decimal | date)
    bounds = (Bound(column.name.lower(), ">", value),) if is_hint else ()
    return Watermark(column, f"{quoted} > CAST({literal(text)} AS {column.type}) AND {finite}", bounds)


def copy(source: Path, target: Path, deadline: Deadline) -> None:
    """
    Copy a file to a new file. The copy shares blocks with the original if the file system supports it.

    Raises:
        OSError: A file cannot be read or written, or *target* exists.
        SnapshotError: *deadline* has passed.
    """
    with source.open("rb", buffering=0) as old, target.open("xb", buffering=0) as new:
        try:
            while os.copy_file_range(old.fileno(), new.fileno(), _COPY_BYTES):
                deadline.check()
        except OSError:  # The file system does not support the call. After any other error, this copy fails too.
            shutil.copyfileobj(old, new)
