"""Map the types, columns and bounds of an Iceberg table to Arrow."""

import struct
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyiceberg import types
from pyiceberg.conversions import from_bytes
from pyiceberg.table.name_mapping import MappedField

from datasources.sources import lake_parquet
from datasources.sources.lake_parquet import FIELD_ID, Column

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

#: Types whose bounds in manifests are exact.
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
    Return the column for *field*; its key is the field id, and so are those of its parts.

    Raises:
        TypeError: Its type is not known here.
    """
    return lake_parquet.column_of(_arrow(field), lambda part: int(part.metadata[FIELD_ID]))


def _arrow(field: types.NestedField) -> pa.Field:
    kind = field.field_type
    if isinstance(kind, types.StructType):
        made = pa.struct(map(_arrow, kind.fields))
    elif isinstance(kind, types.ListType):
        made = pa.list_(_arrow(kind.element_field))
    elif isinstance(kind, types.MapType):
        made = pa.map_(_arrow(kind.key_field), _arrow(kind.value_field))
    elif isinstance(kind, types.DecimalType):
        made = pa.decimal128(kind.precision, kind.scale)
    elif (made := _PRIMITIVES.get(type(kind))) is None:
        raise TypeError(f"no such type: {kind}")
    return pa.field(field.name, made, not field.required, {FIELD_ID: str(field.field_id)})


def bound_of(kind: types.IcebergType, column: Column, encoded: bytes | None) -> object:
    """Decode the lower or upper bound of a column in a file; None if it is not exact."""
    if encoded is None or not isinstance(kind, _BOUNDED):
        return None
    try:
        # The library represents dates and times as numbers.
        return pa.scalar(from_bytes(kind, encoded), column.type).as_py()
    except (ValueError, OverflowError, struct.error, pa.ArrowException):
        # It was written when the column was narrower, or is damaged.
        return None


def ids_of_names(fields: Sequence[MappedField], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path of names and the id of each column, for files without ids."""
    for field in fields:
        for name in field.names:
            if field.field_id is not None:
                yield (*path, name), field.field_id
            yield from ids_of_names(field.fields, (*path, name))
