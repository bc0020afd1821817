"""The Arrow IPC stream format: a schema, record batches, an end marker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO

import pyarrow as pa

from queryengine.catalog import Column
from queryengine.encoders.plan import ARROW_PIECE_BYTES, column_names, pieces, renderers

#: The end marker (Arrow columnar format, "IPC Streaming Format").
_END = b"\xff\xff\xff\xff\0\0\0\0"


def answer_schema(columns: Sequence[Column], schema: pa.Schema) -> pa.Schema:
    """Return the schema of an answer in Arrow: that of the engine with unique names."""
    names = column_names(columns)
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Give the stream: the schema with the first rows, then messages that fit into Flight's, then the end marker."""
    renderers(columns, schema)  # Refuses what Arrow has damaged.
    answer = answer_schema(columns, schema)
    parts = (
        pa.RecordBatch.from_arrays(piece.columns, schema=answer)
        for piece, _ in pieces(batches, _size, ARROW_PIECE_BYTES)
    )
    return _with_dictionaries(answer, parts) if _has_dictionaries(answer) else _plain(answer, parts)


def _plain(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Give the stream without a writer, through which each byte would be copied three times more."""
    before = bytes(schema.serialize())
    for batch in batches:
        # One copy for all but the first, which has the schema before it.
        yield before + bytes(batch.serialize()) if before else batch.serialize().to_pybytes()
        before = b""
    yield before + _END


def _with_dictionaries(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Give the stream of a writer, which knows what dictionaries it has sent."""
    sink = BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield _taken(sink)
    yield _taken(sink)


def _has_dictionaries(schema: pa.Schema) -> bool:
    types = list(schema.types)
    while types:
        type_ = types.pop()
        if pa.types.is_dictionary(type_):
            return True
        types.extend(type_.field(number).type for number in range(type_.num_fields))
    return False


def _size(batch: pa.RecordBatch) -> int:
    """Return the bytes of the rows; a dictionary is sent once, however many rows refer to it."""
    return int(batch.nbytes - batch.slice(0, 0).nbytes)


def _taken(sink: BytesIO) -> bytes:
    """Return what was written since the last call."""
    written = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return written
