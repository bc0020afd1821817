"""
Encodes results for Arrow Flight. Each chunk is a serialised FlightData message (`Flight.proto`), with an uncopied body.

FlightData contains an Arrow IPC message in two fields: the header, and the body if the message has one.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

import pyarrow as pa

from queryengine.encoders import arrow
from queryengine.engine import Parts, length
from queryengine.errors import ResourceLimitError
from queryengine.manifest import Column

#: The maximum length of a protobuf message. Clients reject longer messages.
MAX_MESSAGE_BYTES: Final = 2**31 - 1

#: The body of a shorter message is copied, because a stream writer would cost more.
_COPIED_BYTES: Final = 64 * 1024

#: The protobuf keys of the fields `data_header` (2) and `data_body` (1000), both of type bytes.
_DATA_HEADER: Final = b"\x12"
_DATA_BODY: Final = b"\xc2\x3e"

#: The prefix of an encapsulated message: the continuation marker, and the length of the header.
_PREFIX: Final = struct.Struct("<4xi")


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """Yield the schema, dictionaries and record batches. Batches stay below the 4 MiB that clients accept."""
    answer = arrow.answer_schema(columns, schema)
    return messages(answer, arrow.cut(answer, batches))


def messages(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """
    Yield *schema*, and each of *batches* with the dictionaries that it needs.

    Raises:
        ResourceLimitError: A batch exceeds the maximum message length.
    """
    batches = iter(batches)
    if not any(map(_has_dictionary, schema.types)):
        yield _flight_data(_split(schema.serialize())[0], None)
        for batch in batches:
            if batch.nbytes > _COPIED_BYTES:
                yield from islice(_streamed(schema, chain([batch], batches)), 1, None)
                return
            head, body = _split(batch.serialize())
            yield _flight_data(head, [body])
        return
    yield from _streamed(schema, batches)


def _streamed(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """Yield the messages of a stream writer, which handles dictionaries and does not copy bodies."""
    sink = arrow.Sink()
    with pa.ipc.new_stream(sink, schema) as writer:
        written = 0
        for batch in batches:
            writer.write_batch(batch)
            before, written = written, writer.stats.num_messages
            yield from _one(sink.take()) if written == before + 1 else _several(sink.take())
    yield from _several(sink.take())  # the schema, if there was no batch


def _has_dictionary(type_: pa.DataType) -> bool:
    return pa.types.is_dictionary(type_) or any(_has_dictionary(type_.field(i).type) for i in range(type_.num_fields))


def _split(message: pa.Buffer) -> tuple[bytes, memoryview]:
    """Return the header and the body of an encapsulated message."""
    view = memoryview(message)
    end = _PREFIX.size + _PREFIX.unpack_from(view)[0]
    return bytes(view[_PREFIX.size : end]), view[end:]


def _one(parts: Parts) -> Iterator[Parts]:
    """Yield the only message in *parts*."""
    head = b""
    body = iter(parts)
    while len(head) < _PREFIX.size or len(head) < _PREFIX.size + _PREFIX.unpack_from(head)[0]:
        head += bytes(next(body))
    yield _flight_data(head[_PREFIX.size :], list(body))


def _several(parts: Parts) -> Iterator[Parts]:
    """Yield all messages in *parts*, except the end marker."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(b"".join(parts))):
        yield _flight_data(
            message.metadata.to_pybytes(), None if message.type == "schema" else [memoryview(message.body)]
        )


def _flight_data(head: bytes, body: Parts | None) -> Parts:
    """Return FlightData. A schema has no body. Any other message includes the body length, even if it is 0."""
    start = _DATA_HEADER + _varint(len(head)) + head
    if body is None:
        return [start]
    body_bytes = length(body)
    start += _DATA_BODY + _varint(body_bytes)
    if len(start) + body_bytes > MAX_MESSAGE_BYTES:
        raise ResourceLimitError("One row takes more than 2 GiB, which no message can hold: select less of it.")
    return [start, *body]


def _varint(number: int) -> bytes:
    """Return the non-negative *number* as a protobuf varint: seven bits per byte, lowest bits first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
