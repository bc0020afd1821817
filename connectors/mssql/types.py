"""
The types of Microsoft SQL Server, for `mssql:` sources.

The server describes the columns of a query before it runs (`sys.dm_exec_describe_first_result_set`). This description
determines how a column is read. For 100 ns timestamps, the range of values also matters.
"""

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from connectors.databases import INTEGERS, Column, Conversion, UnfitValueError

#: A type in the description, such as `decimal(10,2)`, `varchar(max)` and `int`.
_TYPE = re.compile(r"(\w+)(?:\((\d+|max)(?:,(\d+))?\))?")

#: The longest `nvarchar(n)`.
_MAX_CHARACTERS = 4000
#: The maximum number of decimal places for which the server compares a decimal and a small integer without rounding. It
#: has 38 digits for both sides, and such an integer has up to 16.
_MAX_COMPARED_SCALE = 22

#: The fractional second digits in the driver's objects.
_MICROSECONDS = 6
#: The range of days that TIMESTAMP_NS fully covers: from the first date, and before the second.
_NS_DAYS = ("1677-09-22", "2262-04-11")
#: A `datetime` has steps of 1/300 s, which the driver returns in whole milliseconds.
_DATETIME_ERROR = timedelta(milliseconds=4)

_SMALL = frozenset({"small integer"})

_SPATIAL = frozenset({"geography", "geometry"})


class MssqlColumn(Column, frozen=True, kw_only=True):
    """
    A column, and the conversion of the driver's objects to Arrow data.

    Args:
        kind: The type of the arrays.
        change: Applied to each object first; None for no change.
        error: The maximum difference between the server's value and ours, for times with finer steps on the server.
        refused: Why the column cannot be read; empty if it can.
        moments: The server type with steps of 100 ns, for which the range of values determines our type.
    """

    kind: pa.DataType
    change: Callable[[Any], Any] | None = None
    error: timedelta = timedelta(0)
    refused: str = ""
    moments: str = ""

    def range_checks(self) -> tuple[str, str]:
        """Return SQL for whether values are outside the days of TIMESTAMP_NS, and have sub-microsecond digits."""
        name = quoted(self.name)
        first, end = (f"CAST('{day}T00:00:00' AS {self.moments})" for day in _NS_DAYS)
        tests = f"{name} < {first} OR {name} >= {end}", f"DATEPART(nanosecond, {name}) % 1000 > 0"
        # Without ELSE the server warns about nulls in an aggregate.
        outside, finer = (f"MAX(CASE WHEN {test} THEN 1 ELSE 0 END)" for test in tests)
        return outside, finer

    def of_range(self, *, outside: bool, finer: bool) -> "MssqlColumn":
        """Return the column read as TIMESTAMP_NS if possible, otherwise as TIMESTAMP, otherwise as text."""
        zone = "UTC" if self.moments == "datetimeoffset" else None
        if not outside:
            return replace(self, convert=_nanoseconds_of(self.name, pa.timestamp("ns", zone)))
        if not finer:
            return replace(self, convert=_microseconds_of(self.name, pa.timestamp("us", zone)))
        return replace(self, expression=f"CONVERT(nvarchar(34), {quoted(self.name)}, 121)")


class _Reading(Struct, frozen=True, kw_only=True):
    """How columns of a type are read: the fields of `MssqlColumn`, with `{}` for the quoted name."""

    kind: pa.DataType
    expression: str = "{}"
    engine_type: str | None = None
    compared: AbstractSet[str] = frozenset()
    change: Callable[[Any], Any] | None = None
    error: timedelta = timedelta(0)
    moments: str = ""


def quoted(name: str) -> str:
    """Return *name* as a delimited identifier, in every mode of the session."""
    return f"[{name.replace(']', ']]')}]"


def column_of(name: str, declared: str | None, user_type: str | None) -> MssqlColumn:
    """
    Return how the column *name* is read.

    *declared* is the type in the server's description. *user_type* is the type of a column without such a type because
    it is a CLR type.
    """
    match = _TYPE.fullmatch(declared or "")
    base, size, scale = match.groups() if match else ("", None, None)
    reading, refused = _sized(base, size, scale) or _READINGS.get(base), ""
    if reading is None:
        kind = base or user_type or "unknown"
        form = f"{name}.STAsText()" if kind in _SPATIAL else f"CAST({name} AS nvarchar(4000))"
        refused = (
            f"The column '{name}' has the type {kind}, which the engine does not support: omit it in refresh_sql, or "
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
        moments=reading.moments,
        convert=_times_of_day if reading is _FINE["time"] else None,
    )


def _sized(base: str, size: str | None, scale: str | None) -> _Reading | None:
    """Return how a type is read if its *size* and *scale* matter; None for other types."""
    if base in {"decimal", "numeric"} and size is not None:
        digits = int(scale or 0)
        compared = _SMALL if digits <= _MAX_COMPARED_SCALE else frozenset()
        return _Reading(kind=pa.decimal128(int(size), digits), compared=compared)
    if base in {"char", "varchar"}:
        # The server converts from the column's code page, which the driver may not know.
        is_short = size is not None and size.isdecimal() and int(size) <= _MAX_CHARACTERS
        return _Reading(kind=pa.string(), expression=f"CAST({{}} AS nvarchar({size if is_short else 'max'}))")
    if base in _FINE and (size is None or int(size) > _MICROSECONDS):
        return _FINE[base]
    return None


def _moments(column: str, texts: pa.Array, fits: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return *texts* as *kind*, after checking that all fit, because rows may change after the range is known."""
    if pc.min(fits).as_py() is False:
        index = pc.index(fits, value=False).as_py()
        type_ = "TIMESTAMP_NS" if kind.unit == "ns" else "TIMESTAMP"
        problem = (
            f"a time that {type_} cannot represent; it was written during the load, so the next refresh will read it"
        )
        raise UnfitValueError(column, index, problem)
    return pc.cast(texts, pa.timestamp(kind.unit)).view(kind)


def _nanoseconds_of(column: str, kind: pa.DataType) -> Conversion:
    def convert(texts: pa.Array) -> pa.Array:
        first, end = _NS_DAYS
        fits = pc.and_(pc.greater_equal(texts, first), pc.less(texts, end))
        return _moments(column, texts, fits, kind)

    return convert


def _microseconds_of(column: str, kind: pa.DataType) -> Conversion:
    def convert(texts: pa.Array) -> pa.Array:
        short = pc.utf8_slice_codeunits(texts, 0, -1)
        return _moments(column, short, pc.ends_with(texts, "0"), kind)

    return convert


def _times_of_day(texts: pa.Array) -> pa.Array:
    moments = pc.cast(pc.binary_join_element_wise("1970-01-01", texts, " "), pa.timestamp("ns"))
    return moments.view(pa.time64("ns"))


_LONG_TEXT = _Reading(kind=pa.string(), expression="CAST({} AS nvarchar(max))")

#: Time types with steps of 100 ns, which the driver would truncate. A load's bounds have microseconds.
_FINE = {
    "time": _Reading(kind=pa.string(), expression="CONVERT(nvarchar(16), {}, 121)"),
    "datetime2": _Reading(
        kind=pa.string(),
        expression="CONVERT(nvarchar(27), {}, 121)",
        compared={"timestamp"},
        error=timedelta(microseconds=1),
        moments="datetime2",
    ),
    "datetimeoffset": _Reading(
        kind=pa.string(),
        expression="CONVERT(nvarchar(27), CAST(SWITCHOFFSET({}, '+00:00') AS datetime2), 121)",
        compared={"timestamptz"},
        error=timedelta(microseconds=1),
        moments="datetimeoffset",
    ),
}

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
    # Not compared, because there is no literal for a time.
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
