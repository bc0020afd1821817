"""The Arrow IPC stream format: a schema, record batches, an end marker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO

import pyarrow as pa

from queryengine.catalog import Column
from queryengine.encoders.plan import ARROW_PIECE_BYTES, column_names, pieces, renderers


def answer_schema(columns: Sequence[Column], schema: pa.Schema) -> pa.Schema:
    """Return the schema of an answer in Arrow: that of the engine with unique names."""
    names = column_names(columns)
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Give the stream: the schema with the first rows, then messages that fit into Flight's, then the end marker."""
    renderers(columns, schema)  # Refuses what Arrow has damaged.
    answer = answer_schema(columns, schema)
    sink = BytesIO()
    with pa.ipc.new_stream(sink, answer) as writer:
        for piece, _ in pieces(batches, _size, ARROW_PIECE_BYTES):
            writer.write_batch(pa.RecordBatch.from_arrays(piece.columns, schema=answer))
            yield _taken(sink)
    yield _taken(sink)


def _size(batch: pa.RecordBatch) -> int:
    """Return the bytes of the rows; a dictionary is sent once, however many rows refer to it."""
    return int(batch.nbytes - batch.slice(0, 0).nbytes)


def _taken(sink: BytesIO) -> bytes:
    """Return what was written since the last call."""
    written = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return written
