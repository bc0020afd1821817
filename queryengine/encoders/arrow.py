"""Encodes results in the Arrow IPC stream format: a schema, record batches and an end marker."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from queryengine.encoders.nulls import cleared
from queryengine.encoders.plan import ARROW_PIECE_BYTES, pieces, renderers
from queryengine.engine import Parts
from queryengine.manifest import Column
from queryengine.values import unique_names


def answer_schema(columns: Sequence[Column], schema: pa.Schema) -> pa.Schema:
    """
    Return the schema of a result in Arrow: the engine's schema with unique names.

    Raises:
        SqlError: Arrow cannot represent a type exactly.
    """
    renderers(columns, schema)
    names = unique_names(column.name for column in columns)
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """Yield the schema with the first rows, then messages that fit into Flight messages, then the end marker."""
    answer = answer_schema(columns, schema)
    sink = Sink()
    with pa.ipc.new_stream(sink, answer) as writer:
        for batch in cut(answer, batches):
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()


def cut(answer: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Yield the rows of *batches*, with the names in *answer*, in pieces of at most `ARROW_PIECE_BYTES` or one row.

    The memory behind nulls is cleared.
    """
    for piece, _ in pieces(map(cleared, batches), _size, ARROW_PIECE_BYTES):
        yield pa.RecordBatch.from_arrays(piece.columns, schema=answer)


class Sink:
    """
    The file that an Arrow writer writes to. It keeps the buffers of batches without copying them.

    A chunk is valid only as long as its batch, so it must be taken before the next batch is written.
    """

    closed = False  # an attribute that pyarrow requires of a file

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []

    def write(self, data: bytes | pa.Buffer) -> int:
        """Keep *data*."""
        self._parts.append(data if isinstance(data, bytes) else memoryview(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing, because nothing is buffered."""

    def take(self) -> Parts:
        """Return the bytes written since the last call."""
        parts, self._parts = self._parts, []
        return parts


def _size(batch: pa.RecordBatch) -> int:
    """Return the bytes of the rows without dictionaries, which are sent once. For small batches, it is a bound."""
    # The buffers contain these rows, and often others. Adding up buffer sizes takes a quarter of the time.
    at_most = sum(buffer.size for column in batch.columns for buffer in column.buffers() if buffer is not None)
    return at_most if at_most <= ARROW_PIECE_BYTES else int(batch.nbytes - batch.slice(0, 0).nbytes)
