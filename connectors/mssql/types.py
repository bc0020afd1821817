"""
The types of Microsoft SQL Server, for `mssql:` sources.

The server describes the columns of a query before it runs (`sys.dm_exec_describe_first_result_set`); that description
alone decides how a column is read.
"""

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from connectors.databases import INTEGERS, Column

#: A type of the description, such as `decimal(10,2)`, `varchar(max)` and `int`.
_TYPE = re.compile(r"(\w+)(?:\((\d+|max)(?:,(\d+))?\))?")

#: The longest `nvarchar(n)`.
_MAX_CHARACTERS = 4000
#: The most digits after the point for which the server compares a decimal and a small integer without rounding one: it
#: has 38 digits for both sides, and such an integer up to 16.
_MAX_COMPARED_SCALE = 22

#: The digits of a second that the engine has.
_MICROSECONDS = 6
#: A `datetime` has steps of 1/300 s, which the driver gives in whole milliseconds.
_DATETIME_ERROR = timedelta(milliseconds=4)

_SMALL = frozenset({"small integer"})

_SPATIAL = frozenset({"geography", "geometry"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MssqlColumn(Column):
    """
    A column and how the objects of the driver become Arrow data.

    Args:
        kind: The type of its arrays.
        change: Applied to each object first; None to leave it.
        error: The most by which a value of the server differs from ours, for times that have finer steps there.
        refused: Why the column cannot be read, empty if it can.
    """

    kind: pa.DataType
    change: Callable[[Any], Any] | None = None
    error: timedelta = timedelta(0)
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """How columns of one type are read: the fields of `MssqlColumn`, with `{}` for the quoted name."""

    kind: pa.DataType
    expression: str = "{}"
    engine_type: str | None = None
    compared: AbstractSet[str] = frozenset()
    change: Callable[[Any], Any] | None = None
    error: timedelta = timedelta(0)


def quoted(name: str) -> str:
    """Return *name* as a delimited identifier, in every mode of the session."""
    return f"[{name.replace(']', ']]')}]"


def column_of(name: str, declared: str | None, user_type: str | None) -> MssqlColumn:
    """
    Return how the column *name* is read.

    *declared* is its type in the description of the server, and *user_type* that of a column which has no such type,
    because it is one of the CLR's.
    """
    match = _TYPE.fullmatch(declared or "")
    base, size, scale = match.groups() if match else ("", None, None)
    reading, refused = _sized(base, size, scale) or _READINGS.get(base), ""
    if reading is None:
        kind = base or user_type or "unknown"
        form = f"{name}.STAsText()" if kind in _SPATIAL else f"CAST({name} AS nvarchar(4000))"
        refused = (
            f"The column '{name}' has the type {kind}, which the engine does not have: leave it out in refresh_sql, or "
            f"read a view that has {form}."
        )
        reading = _Reading(kind=pa.null(), expression="NULL")
    return MssqlColumn(
        name=name,
        expression=reading.expression.format(quoted(name)),
        engine_type=reading.engine_type,
        compared=reading.compared,
        kind=reading.kind,
        change=reading.change,
        error=reading.error,
        refused=refused,
    )


def _sized(base: str, size: str | None, scale: str | None) -> _Reading | None:
    """Return how a type is read for which its *size* and *scale* matter; None for others."""
    if base in {"decimal", "numeric"} and size is not None:
        digits = int(scale or 0)
        compared = _SMALL if digits <= _MAX_COMPARED_SCALE else frozenset()
        return _Reading(kind=pa.decimal128(int(size), digits), compared=compared)
    if base in {"char", "varchar"}:
        # The server converts from the code page of the column, which the driver may not know.
        is_short = size is not None and size.isdecimal() and int(size) <= _MAX_CHARACTERS
        return _Reading(kind=pa.string(), expression=f"CAST({{}} AS nvarchar({size if is_short else 'max'}))")
    if base in _FINE and (size is None or int(size) > _MICROSECONDS):
        return replace(_READINGS[base], error=timedelta(microseconds=1))
    return None


_LONG_TEXT = _Reading(kind=pa.string(), expression="CAST({} AS nvarchar(max))")

#: The types of times that may have more digits than the engine's, and can be compared.
_FINE = frozenset({"datetime2", "datetimeoffset"})

_READINGS = {
    "bit": _Reading(kind=pa.bool_()),
    "tinyint": _Reading(kind=pa.uint8(), compared=INTEGERS),
    "smallint": _Reading(kind=pa.int16(), compared=INTEGERS),
    "int": _Reading(kind=pa.int32(), compared=INTEGERS),
    "bigint": _Reading(kind=pa.int64(), compared=INTEGERS),
    "real": _Reading(kind=pa.float32()),
    "float": _Reading(kind=pa.float64(), compared=_SMALL | {"double"}),
    "money": _Reading(kind=pa.decimal128(19, 4), expression="CAST({} AS decimal(19,4))"),
    "smallmoney": _Reading(kind=pa.decimal128(10, 4), expression="CAST({} AS decimal(10,4))"),
    "date": _Reading(kind=pa.date32(), compared={"date"}),
    # Not compared: there is no literal for a time.
    "time": _Reading(kind=pa.time64("us")),
    "smalldatetime": _Reading(kind=pa.timestamp("us"), compared={"timestamp"}),
    "datetime": _Reading(kind=pa.timestamp("us"), compared={"timestamp"}, error=_DATETIME_ERROR),
    "datetime2": _Reading(kind=pa.timestamp("us"), compared={"timestamp"}),
    "datetimeoffset": _Reading(kind=pa.timestamp("us", "UTC"), compared={"timestamptz"}),
    **dict.fromkeys(("nchar", "nvarchar"), _Reading(kind=pa.string())),
    **dict.fromkeys(("text", "ntext", "xml"), _LONG_TEXT),
    "json": replace(_LONG_TEXT, engine_type="JSON"),
    # `timestamp` is the old name of `rowversion`.
    **dict.fromkeys(("binary", "varbinary", "timestamp"), _Reading(kind=pa.binary())),
    "image": _Reading(kind=pa.binary(), expression="CAST({} AS varbinary(max))"),
    "uniqueidentifier": _Reading(kind=pa.string(), change=str, engine_type="UUID"),
}
