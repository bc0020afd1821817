"""
Encodes results: converts record batches to chunks of bytes, in each format that a caller can request.

All encoders stream. They pull a batch after writing the previous one, and keep no batch. They first cut each batch into
pieces, so memory use stays small even if rows are wide.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa

from queryengine.encoders import arrow, csv, flight, json, vnd
from queryengine.engine import Encoding, Parts
from queryengine.manifest import Column

ENCODERS: Mapping[Encoding, Callable[..., Iterator[Parts]]] = {
    "json": json.encode,
    "ndjson": json.encode_lines,
    "csv": csv.encode,
    "arrow": arrow.encode,
    "vnd": vnd.encode,
    "flight": flight.encode,
}


def encode_parts(
    encoding: Encoding, columns: tuple[Column, ...], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[Parts]:
    """
    Encode a result. The bytes are complete only if the iterator ends without an exception.

    Each chunk consists of parts, which may refer to the memory of their batch.

    Args:
        encoding: The format.
        columns: The name and DuckDB type of each column. Names are those in the statement, and may repeat.
        schema: The schema of the batches, with the Arrow types that DuckDB exports after `values.select_list`.
        batches: The batches, pulled one at a time. Their exceptions pass through.

    Raises:
        SqlError: The format cannot represent a column's type exactly. Raised before the first chunk.
        ResourceLimitError: A single row is too large to encode as text.
    """
    return ENCODERS[encoding](columns, schema, batches)
