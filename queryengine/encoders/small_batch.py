"""
A few rows of Python values as a record batch: for an answer of a few rows DuckDB's own way to Arrow costs more.

The values and types are those that DuckDB would export. Only rows that `brief.plan` knows the types of come here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from queryengine.encoders.small_rows import UnsureError, plain_date, plain_time, plain_timestamp
from queryengine.manifest import Column
from queryengine.values import parse_type

#: What makes of a value, which may be None, what Arrow takes; for types that are not here Python's value is that.
_TAKEN: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        **dict.fromkeys(("UUID", "UHUGEINT"), str),
        "DATE": plain_date,
        "TIME": plain_time,
        **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), plain_timestamp),
    }
)


def fits(schema: pa.Schema) -> bool:
    """Say whether rows of *schema* can be made here: a dictionary would have to be DuckDB's own."""
    return not any(pa.types.is_dictionary(field.type) for field in schema)


def batch(columns: Sequence[Column], schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """
    Return *rows*, at least one, of *columns*, whose Arrow fields are *schema*.

    Raises:
        UnsureError: A value may be another one in Arrow: the answer is to be computed as record batches.
    """
    try:
        arrays = [
            pa.array(_taken(column, values), field.type)
            for column, field, values in zip(columns, schema, zip(*rows, strict=True), strict=True)
        ]
    except (pa.ArrowException, OverflowError) as exc:  # A HUGEINT of 39 digits is more than decimals should hold.
        raise UnsureError from exc
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _taken(column: Column, values: Sequence[Any]) -> Sequence[Any]:
    take = _TAKEN.get(parse_type(column.type).name)
    return values if take is None else [None if value is None else take(value) for value in values]
