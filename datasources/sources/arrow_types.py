"""View Arrow arrays, nested ones too, as other types of the same layout."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

#: The type in which DuckDB sends a HUGEINT. The 16 bytes are those of the number, so 39 digits are exact.
SENT_HUGEINT = pa.decimal128(38, 0)
#: The type that DuckDB reads as a HUGEINT.
HUGEINT = pa.opaque(pa.binary(16), "hugeint", "DuckDB")


def viewed(array: pa.Array, other: Callable[[pa.DataType], pa.DataType]) -> pa.Array:
    """Return *array* with *other* applied to each type that is not nested; nothing is copied."""
    kind = viewed_type(array.type, other)
    return array if kind == array.type else array.view(kind)


def viewed_type(kind: pa.DataType, other: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return the type that `viewed` gives an array of type *kind*."""

    def field(part: pa.Field) -> pa.Field:
        return part.with_type(viewed_type(part.type, other))

    if pa.types.is_map(kind):
        return pa.map_(field(kind.key_field), field(kind.item_field), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(field(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([field(part) for part in kind])
    return other(kind)
