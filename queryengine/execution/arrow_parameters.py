"""
Converts parameters in an Arrow record batch to values that DuckDB accepts.

The bytes come from a caller, so they are read only in the process that runs statements, which can be killed.
"""

import re
from typing import Any

import duckdb
import pyarrow as pa

from queryengine.engine import ArrowParameters, GatedStatement, Parameters
from queryengine.errors import ParameterError
from queryengine.execution.parameters import bind

#: The prefixes that clients put before a name or a position: `$id`, `:id`, `@id`.
_MARKS = "$:@"
_POSITION = re.compile(r"[$?]([1-9]\d{0,4})")


def values_of(statement: GatedStatement, parameters: Parameters | None) -> list[Any] | dict[str, Any] | None:
    """Return *parameters* as DuckDB accepts them for *statement*. Raises ParameterError if they do not fit."""
    if isinstance(parameters, ArrowParameters):
        named = not all(name.isdecimal() for name in statement.parameters)
        return bind(statement.parameters, from_arrow(parameters, named=named))
    return bind(statement.parameters, parameters)


def from_arrow(stream: bytes, *, named: bool) -> list[Any] | dict[str, Any]:
    """
    Return the values of the only row in *stream*, an Arrow IPC stream.

    The values are in column order, or by column name if the statement has *named* parameters. If all columns are called
    `$1`, `$2` and so on, their names are positions.

    Raises:
        ParameterError: *stream* cannot be read, does not have one row, or has a type or name that is not supported.
    """
    try:
        batch = _one_row(stream)
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError) as exc:
        raise ParameterError("The parameters are not a single readable Arrow record batch.") from exc
    names = batch.schema.names
    values = [_value(name, column) for name, column in zip(names, batch.columns, strict=True)]
    if named:
        by_name = {name.lstrip(_MARKS): value for name, value in zip(names, values, strict=True)}
        if len(by_name) != len(values):
            raise ParameterError("A parameter is set twice.")
        return by_name
    positions = [found and int(found[1]) for found in map(_POSITION.fullmatch, names)]
    if positions and set(positions) == set(range(1, len(values) + 1)):
        return [value for _, value in sorted(zip(positions, values, strict=True), key=lambda pair: pair[0] or 0)]
    return values


def _one_row(stream: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(stream) as reader:
        found = None
        for batch in reader:
            if not batch.num_rows:
                continue
            if batch.num_rows > 1 or found is not None:
                raise ParameterError("Only one row of parameters is accepted: execute the statement once per row.")
            # Offsets and lengths come from the sender.
            batch.validate(full=True)
            found = batch
    if found is None:
        raise ParameterError("The parameters have no rows.")
    return found


def _value(name: str, column: pa.Array) -> Any:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    zone = getattr(column.type, "tz", None)
    try:
        if zone and column.type.unit == "ns" and not (column.cast(pa.int64())[0].as_py() or 0) % 1000:
            # The engine cannot compare its times with nanoseconds with those that have a zone.
            column = column.cast(pa.timestamp("us", "UTC"))
        if column.type in (pa.time64("ns"), pa.timestamp("ns", zone)):
            # Python has fewer digits than the engine. Without its zone, a timestamp is written in UTC.
            is_time = pa.types.is_time(column.type)
            text = (column if is_time else column.cast(pa.timestamp("ns"))).cast(pa.string())[0].as_py()
            return None if text is None else duckdb.Value(text, duckdb.type("TIME_NS" if is_time else "TIMESTAMP_NS"))
        return column[0].as_py()
    except (pa.ArrowException, ValueError, ArithmeticError, NotImplementedError, TypeError) as exc:
        raise ParameterError(f"The value of ${name[:40]} has the type {column.type}, which is not supported.") from exc
