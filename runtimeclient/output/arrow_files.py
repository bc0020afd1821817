"""
Writes a result to an Arrow or Parquet file in bounded memory.

This is the only module that needs pyarrow, an extra. The lengths in the stream come from the network, so they are
checked before pyarrow allocates memory for them.
https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
"""

import struct
from collections.abc import Iterator
from contextlib import closing
from typing import IO, Any

from runtimeclient.distribution import install_command
from runtimeclient.errors import IncompleteResultError, OutputError, UsageError
from runtimeclient.http.results import SqlResult

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as exc:
    raise UsageError(f"The formats arrow and parquet need pyarrow: {install_command('arrow')}") from exc

_CONTINUATION = b"\xff\xff\xff\xff"
_MAX_METADATA = 16 << 20
_MAX_BODY = 256 << 20
_MAX_BATCH_ROWS = 1 << 24
# The number of rows in a Parquet row group, large enough to compress well.
_ROW_GROUP_ROWS = 122_880
_ROW_GROUP_BYTES = 64 << 20
# The union MessageHeader of format/Message.fbs.
_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3


def write_arrow_result(answer: SqlResult, format_: str, stream: IO[bytes]) -> None:
    """
    Write the rows of an Arrow result to *stream* as `arrow` (an IPC file, also called Feather 2) or `parquet`.

    Raises:
        IncompleteResultError: The result is incomplete, or not an Arrow stream that can be read safely.
        OutputError: The file cannot be written, or the format does not support a type.
    """
    with closing(_CheckedStream(answer.chunks())) as checked:
        try:
            reader = pa.ipc.open_stream(pa.PythonFile(checked, mode="r"))
            batches = _batches(reader, answer)
            if format_ == "arrow":
                _write_file(reader.schema, batches, stream)
            else:
                _write_parquet(reader.schema, batches, stream)
        except pa.ArrowNotImplementedError as exc:
            raise OutputError(f"This result cannot be written as {format_}: {_first_line(exc)}") from exc
        except (pa.ArrowException, EOFError) as exc:
            raise IncompleteResultError(f"The result is not a valid Arrow stream: {_first_line(exc)}") from exc
        checked.end()


def _batches(reader: Any, answer: SqlResult) -> Iterator[Any]:
    for batch in reader:
        batch.validate()
        for column in batch.columns:
            # Detect offsets outside a buffer here, because the writer would crash. Times and decimals have none, and
            # Arrow would refuse 24:00:00 and a 39th digit.
            if not (pa.types.is_time(column.type) or pa.types.is_decimal(column.type)):
                column.validate(full=True)
        answer.rows_read += batch.num_rows
        yield batch


def _write_file(schema: Any, batches: Iterator[Any], stream: IO[bytes]) -> None:
    with pa.ipc.new_file(stream, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_parquet(schema: Any, batches: Iterator[Any], stream: IO[bytes]) -> None:
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        held: list[Any] = []
        rows = size = 0
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= _ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(held, schema))
                held, rows, size = [], 0, 0
        if held:
            writer.write_table(pa.Table.from_batches(held, schema))


def _first_line(exc: BaseException) -> str:
    return str(exc).partition("\n")[0]


class _CheckedStream:
    """
    A file object from which pyarrow reads an IPC stream. Each message is checked first.

    Compressed bodies are rejected because they state how much memory to allocate, and a runtime never sends them.
    """

    closed = False

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._received = bytearray()
        self._checked = bytearray()
        self._messages = self._check_messages()

    def read(self, size: int) -> bytes:
        """Return *size* checked bytes, or fewer at the end of the stream."""
        while len(self._checked) < size:
            message = next(self._messages, None)
            if message is None:
                break
            self._checked += message
        given = bytes(self._checked[:size])
        del self._checked[:size]
        return given

    def end(self) -> None:
        """Check that the result is complete and nothing follows. Raises IncompleteResultError."""
        if next(self._messages, None) or self._received or any(self._chunks):
            raise _malformed("data follows its end")

    def close(self) -> None:
        """Free the buffers."""
        self._received.clear()
        self._checked.clear()

    def _check_messages(self) -> Iterator[bytes]:
        length = -1
        while length != 0 and (self._receive(8) or self._received):
            self._need(8)
            (length,) = struct.unpack_from("<i", self._received, 4)
            if self._received[:4] != _CONTINUATION or not 0 <= length <= _MAX_METADATA:
                raise _malformed("a message has an invalid prefix")
            self._need(end := 8 + length)
            if length:
                self._need(end := end + _body_length(bytes(self._received[8:end])))
            yield bytes(self._received[:end])
            del self._received[:end]

    def _need(self, size: int) -> None:
        if not self._receive(size):
            raise _malformed("it is cut off")

    def _receive(self, size: int) -> bool:
        while len(self._received) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._received += chunk
        return True


def _malformed(reason: str) -> IncompleteResultError:
    return IncompleteResultError(f"The result is not a valid Arrow stream: {reason}.")


class _Table:
    """A flatbuffer table (https://flatbuffers.dev/internals/). `struct` checks every offset."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if self._fields < 0:
            raise struct.error
        (self._size,) = struct.unpack_from("<H", data, self._fields)

    def has(self, field: int) -> bool:
        """Return whether a field is present."""
        return bool(self._offset(field))

    def number(self, field: int, kind: str) -> int:
        """Read a number; 0 if it is absent."""
        offset = self._offset(field)
        value: int = struct.unpack_from(kind, self._data, self._at + offset)[0] if offset else 0
        return value

    def table(self, field: int) -> "_Table":
        """Read a required table."""
        at = self._at + self._offset(field)
        return _Table(self._data, at + struct.unpack_from("<I", self._data, at)[0])

    def _offset(self, field: int) -> int:
        at = 4 + 2 * field
        offset: int = struct.unpack_from("<H", self._data, self._fields + at)[0] if at + 2 <= self._size else 0
        return offset


def _body_length(metadata: bytes) -> int:
    """
    Check the metadata of a message and return the length of its body.

    Field numbers in format/Message.fbs: Message: 1 header_type, 2 header, 3 bodyLength; RecordBatch: 0 length,
    3 compression; DictionaryBatch: 1 data.
    """
    try:
        message = _Table(metadata, struct.unpack_from("<I", metadata)[0])
        kind, body = message.number(1, "<B"), message.number(3, "<q")
        if not 0 <= body <= _MAX_BODY:
            raise _malformed(f"a message is longer than {_MAX_BODY >> 20} MiB")
        if kind == _SCHEMA:
            return body
        if kind not in {_DICTIONARY, _RECORDS}:
            raise _malformed("a message has an unknown type")
        records = message.table(2)
        if kind == _DICTIONARY:
            records = records.table(1)
        if records.has(3):
            raise _malformed("it is compressed, which runtimes do not support")
        if not 0 <= records.number(0, "<q") <= _MAX_BATCH_ROWS:
            raise _malformed("a batch has too many rows")
    except struct.error as exc:
        raise _malformed("a message cannot be read") from exc
    return body
