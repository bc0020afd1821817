"""
Results as bytes: record batches in, chunks out, in each format that a caller may request.

All encoders stream: they pull a batch once the previous one is written, and keep none. They first cut a batch into
pieces, so that memory use stays small however wide its rows are.
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
    Encode a result. The bytes are complete only when the iterator ends without an exception.

    Each chunk is in parts, which may refer to the batch that it was made of.

    Args:
        encoding: The format.
        columns: Name and DuckDB type of each column, as the statement names them: names may repeat.
        schema: The schema of the batches: the Arrow types that DuckDB exports after `values.select_list`.
        batches: Pulled one at a time; their exceptions pass through.

    Raises:
        SqlError: A column's type has no exact form in the format; raised before the first chunk.
        ResourceLimitError: A single row is too large to encode as text.
    """
    return ENCODERS[encoding](columns, schema, batches)
