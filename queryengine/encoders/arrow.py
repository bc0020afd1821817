"""The Arrow IPC stream format: a schema, record batches, an end marker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from queryengine.encoders.parts import Parts
from queryengine.encoders.plan import ARROW_PIECE_BYTES, column_names, pieces, renderers
from queryengine.manifest import Column


def answer_schema(columns: Sequence[Column], schema: pa.Schema) -> pa.Schema:
    """Return the schema of an answer in Arrow: that of the engine with unique names."""
    names = column_names(columns)
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """Give the stream: the schema with the first rows, then messages that fit into Flight's, then the end marker."""
    answer = checked_schema(columns, schema)
    sink = Sink()
    with pa.ipc.new_stream(sink, answer) as writer:
        for batch in cut(answer, batches):
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()


def checked_schema(columns: Sequence[Column], schema: pa.Schema) -> pa.Schema:
    """As `answer_schema`; raises SqlError for a type that Arrow has damaged."""
    renderers(columns, schema)
    return answer_schema(columns, schema)


def cut(answer: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the rows of *batches*, by the names of *answer*, in messages of at most `ARROW_PIECE_BYTES` or one row."""
    for piece, _ in pieces(batches, _size, ARROW_PIECE_BYTES):
        yield pa.RecordBatch.from_arrays(piece.columns, schema=answer)


class Sink:
    """
    The file that an Arrow writer writes to. It keeps what it gets: buffers of batches as they are, without a copy.

    A chunk lives as long as the batch it was made of, so whoever writes takes it before the next.
    """

    closed = False  # which pyarrow asks of a file

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []

    def write(self, data: bytes | pa.Buffer) -> int:
        """Keep *data*."""
        self._parts.append(data if isinstance(data, bytes) else memoryview(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing waits."""

    def take(self) -> Parts:
        """Return what was written since the last call."""
        parts, self._parts = self._parts, []
        return parts


def _size(batch: pa.RecordBatch) -> int:
    """Return the bytes of the rows; a dictionary is sent once, however many rows refer to it."""
    return int(batch.nbytes - batch.slice(0, 0).nbytes)
