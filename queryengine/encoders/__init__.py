"""
Results as bytes: record batches in, chunks out, in each format that a caller may ask for.

All encoders stream: they pull a batch when the one before is written and keep none. A batch is cut into pieces first,
so that memory stays small whatever its rows hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import pyarrow as pa

from queryengine.encoders import arrow, csv, flight, json, vnd
from queryengine.encoders.parts import Parts, joined
from queryengine.engine import Encoding
from queryengine.manifest import Column

CONTENT_TYPES: Mapping[Encoding, str] = MappingProxyType(
    {
        "json": "application/json",
        "csv": "text/csv; charset=utf-8",
        "arrow": "application/vnd.apache.arrow.stream",
        "vnd": "application/vnd.spiceai.sql.v1+json",
        "flight": "application/x-protobuf",
    }
)

_ENCODERS: Mapping[Encoding, Callable[..., Iterator[bytes | Parts]]] = MappingProxyType(
    {"json": json.encode, "csv": csv.encode, "arrow": arrow.encode, "vnd": vnd.encode, "flight": flight.encode}
)


def encode(
    encoding: Encoding, columns: tuple[Column, ...], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[bytes]:
    """
    Encode a result. The bytes are a complete answer only when the iterator ends without an exception.

    Args:
        encoding: The format.
        columns: Name and DuckDB type of each column, as the statement names them: names may repeat.
        schema: Of the batches: the Arrow types that DuckDB exports after `values.arrow_projection`.
        batches: Pulled one at a time; what they raise passes through.

    Raises:
        SqlError: A column's type has no exact form in the format; before the first chunk.
        ResourceLimitError: One row alone is too large to be made into text.
    """
    return map(joined, encode_parts(encoding, columns, schema, batches))


def encode_parts(
    encoding: Encoding, columns: tuple[Column, ...], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[Parts]:
    """As `encode`, for whoever can send what is not in one place: each chunk may refer to the batch it was made of."""
    for chunk in _ENCODERS[encoding](columns, schema, batches):
        yield (chunk,) if isinstance(chunk, bytes) else chunk
