"""What the types, columns and bounds of an Iceberg table are to the engine."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg import types
from pyiceberg.conversions import from_bytes
from pyiceberg.table.name_mapping import MappedField

from datasources.sources.lake_parquet import Column

_PRIMITIVES: Mapping[type[types.IcebergType], pa.DataType] = {
    types.BooleanType: pa.bool_(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.DateType: pa.date32(),
    types.TimeType: pa.time64("us"),
    types.TimestampType: pa.timestamp("us"),
    types.TimestamptzType: pa.timestamp("us", "UTC"),
    types.StringType: pa.string(),
    types.UUIDType: pa.uuid(),
    types.BinaryType: pa.binary(),
    types.FixedType: pa.binary(),
}

#: Of these the lowest and the highest value are exact.
_BOUNDED = (
    types.IntegerType,
    types.LongType,
    types.DecimalType,
    types.DateType,
    types.TimestampType,
    types.TimestamptzType,
)


def column_of(field: types.NestedField) -> Column:
    """
    Return the column, or the part of one, that *field* describes; its key is its id.

    Raises:
        TypeError: It is of a type that is not known here.
    """
    kind = field.field_type
    inner: tuple[types.NestedField, ...] = ()
    if isinstance(kind, types.StructType):
        inner = kind.fields
    elif isinstance(kind, types.ListType):
        inner = (kind.element_field,)
    elif isinstance(kind, types.MapType):
        inner = (kind.key_field, kind.value_field)
    parts = tuple(column_of(part) for part in inner)
    return Column(field.name, field.field_id, _arrow(kind, parts), not field.required, parts)


def _arrow(kind: types.IcebergType, parts: Sequence[Column]) -> pa.DataType:
    if isinstance(kind, types.StructType):
        return pa.struct([pa.field(part.name, part.type) for part in parts])
    if isinstance(kind, types.ListType):
        return pa.list_(parts[0].type)
    if isinstance(kind, types.MapType):
        return pa.map_(parts[0].type, parts[1].type)
    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    found = _PRIMITIVES.get(type(kind))
    if found is None:
        raise TypeError(f"no such type: {kind}")
    return found


def bound_of(kind: types.IcebergType, column: Column, encoded: bytes | None) -> object:
    """Return the lowest or the highest value of a column in a file; None where it is not known exactly."""
    if encoded is None or not isinstance(kind, _BOUNDED):
        return None
    try:
        return value_of(column, from_bytes(kind, encoded)).as_py()
    except (ValueError, OverflowError, struct.error, pa.ArrowException):
        # Written when the column was narrower, or no such value.
        return None


def value_of(column: Column, value: Any) -> pa.Scalar:
    """
    Return a value as the library gives it, which has dates and times as numbers, as one of *column*.

    Raises:
        ValueError, OverflowError, pa.ArrowException: It is none.
    """
    return pa.scalar(value, column.type)


def ids_of_names(fields: Sequence[MappedField], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Give the id of each column, by the names that lead to it, for files that have no ids."""
    for field in fields:
        for name in field.names:
            if field.field_id is not None:
                yield (*path, name), field.field_id
            yield from ids_of_names(field.fields, (*path, name))
