"""
Maps a cluster's types to the types that the runtime uses: DuckDB types for the encoders, and Arrow types.

Batches are cast to these Arrow types, so that a statement has the same schema whether it is described or run. The
cluster uses its own conventions for list member names, timestamp zones and nullability.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from queryengine.errors import SqlError
from queryengine.manifest import Column
from queryengine.values import quoted

#: By message field: the cluster's name of each simple type, the DuckDB type for the encoders, and the Arrow type.
_SIMPLE: Final[dict[str, tuple[str, str, pa.DataType]]] = {
    "null": ("void", "NULL", pa.null()),
    "boolean": ("boolean", "BOOLEAN", pa.bool_()),
    "byte": ("tinyint", "TINYINT", pa.int8()),
    "short": ("smallint", "SMALLINT", pa.int16()),
    "integer": ("int", "INTEGER", pa.int32()),
    "long": ("bigint", "BIGINT", pa.int64()),
    "float": ("float", "FLOAT", pa.float32()),
    "double": ("double", "DOUBLE", pa.float64()),
    "string": ("string", "VARCHAR", pa.string()),
    "char": ("string", "VARCHAR", pa.string()),
    "var_char": ("string", "VARCHAR", pa.string()),
    "binary": ("binary", "BLOB", pa.binary()),
    "date": ("date", "DATE", pa.date32()),
    "timestamp": ("timestamp", "TIMESTAMP WITH TIME ZONE", pa.timestamp("us", "UTC")),
    "timestamp_ntz": ("timestamp_ntz", "TIMESTAMP", pa.timestamp("us")),
}

#: The types without an exact equivalent here, with the cluster's names.
_INEXACT: Final[dict[str, str]] = {
    "calendar_interval": "interval",
    "year_month_interval": "interval year to month",
    "day_time_interval": "interval day to second",
    "time": "time",
    "variant": "variant",
}

#: The maximum number of digits in a decimal. Sail declares more for some functions.
_MAX_PRECISION: Final = 38


def name_of(kind: Any) -> str:
    """Return the cluster's name for the type in the message *kind*."""
    field = kind.WhichOneof("kind")
    match field:
        case "decimal":
            return f"decimal({kind.decimal.precision},{kind.decimal.scale})"
        case "array":
            return f"array<{name_of(kind.array.element_type)}>"
        case "map":
            return f"map<{name_of(kind.map.key_type)},{name_of(kind.map.value_type)}>"
        case "struct":
            members = [f"{member.name}:{name_of(member.data_type)}" for member in kind.struct.fields]
            return f"struct<{','.join(members)}>"
    return _SIMPLE[field][0] if field in _SIMPLE else _INEXACT.get(str(field), "unknown")


def schema_of(row: Any) -> tuple[tuple[Column, ...], pa.Schema]:
    """
    Return the columns and the Arrow schema of a result whose rows have the type in the message *row*.

    Raises:
        SqlError: A column has a type without an exact equivalent, or there are no columns. Rows without columns cannot
            be sent.
    """
    if not row.struct.fields:
        raise SqlError("The statement selects no columns.")
    columns, fields = [], []
    for member in row.struct.fields:
        found = _types_of(member.data_type)
        if found is None:
            kind = name_of(member.data_type)
            raise SqlError(f'Column "{member.name}" has the type {kind}, which cannot be sent: cast it to STRING.')
        columns.append(Column(name=member.name, type=found[0]))
        fields.append(pa.field(member.name, found[1]))
    return tuple(columns), pa.schema(fields)


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """
    Return *batch* with the types of *schema*.

    Raises:
        pyarrow.ArrowException: The batch has other columns.
    """
    columns: Sequence[pa.Array] = batch.columns
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _types_of(kind: Any) -> tuple[str, pa.DataType] | None:
    """Return the DuckDB type and the Arrow type of the message *kind*; None if it has no exact equivalent."""
    field = kind.WhichOneof("kind")
    if field in _SIMPLE:
        return _SIMPLE[field][1:]
    match field:
        case "decimal" if 0 <= kind.decimal.scale <= kind.decimal.precision <= _MAX_PRECISION:
            precision, scale = kind.decimal.precision, kind.decimal.scale
            return f"DECIMAL({precision},{scale})", pa.decimal128(precision, scale)
        case "array" if element := _types_of(kind.array.element_type):
            return f"{element[0]}[]", pa.list_(element[1])
        case "map":
            key, value = _types_of(kind.map.key_type), _types_of(kind.map.value_type)
            if key and value and not pa.types.is_null(key[1]):
                return f"MAP({key[0]}, {value[0]})", pa.map_(key[1], value[1])
        case "struct":
            members = [(member.name, _types_of(member.data_type)) for member in kind.struct.fields]
            known = [(name, found) for name, found in members if found]
            if len({name for name, _ in known}) == len(members):  # Arrow casts members by their names.
                text = ", ".join(f"{quoted(name)} {found[0]}" for name, found in known)
                return f"STRUCT({text})", pa.struct([pa.field(name, found[1]) for name, found in known])
    return None
