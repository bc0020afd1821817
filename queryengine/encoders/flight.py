"""
Arrow Flight: each chunk is one serialised FlightData message (`Flight.proto`), whose body is not copied.

FlightData holds an Arrow IPC message in two fields: the head, and the body if it has one.
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

#: The longest protobuf message; clients reject longer ones.
MAX_MESSAGE_BYTES: Final = 2**31 - 1

#: The body of a shorter message is copied: a stream writer would cost more.
_COPIED_BYTES: Final = 64 * 1024

#: The keys of the fields `data_header` (2) and `data_body` (1000), both of bytes.
_DATA_HEADER: Final = b"\x12"
_DATA_BODY: Final = b"\xc2\x3e"

#: The prefix of an encapsulated message: the continuation marker, and the length of the head.
_PREFIX: Final = struct.Struct("<4xi")


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """Give the schema, dictionaries and record batches; batches stay below the 4 MiB that clients accept."""
    answer = arrow.answer_schema(columns, schema)
    return messages(answer, arrow.cut(answer, batches))


def messages(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """
    Give *schema*, and each of *batches* with the dictionaries that it needs.

    Raises:
        ResourceLimitError: A batch is longer than a message can be.
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
    """Give the messages of a stream writer: it handles dictionaries, and does not copy bodies."""
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
    """Return the head and the body of an encapsulated message."""
    view = memoryview(message)
    end = _PREFIX.size + _PREFIX.unpack_from(view)[0]
    return bytes(view[_PREFIX.size : end]), view[end:]


def _one(parts: Parts) -> Iterator[Parts]:
    """Give the only message in *parts*."""
    head = b""
    body = iter(parts)
    while len(head) < _PREFIX.size or len(head) < _PREFIX.size + _PREFIX.unpack_from(head)[0]:
        head += bytes(next(body))
    yield _flight_data(head[_PREFIX.size :], list(body))


def _several(parts: Parts) -> Iterator[Parts]:
    """Give all messages in *parts*, none of the end marker."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(b"".join(parts))):
        yield _flight_data(
            message.metadata.to_pybytes(), None if message.type == "schema" else [memoryview(message.body)]
        )


def _flight_data(head: bytes, body: Parts | None) -> Parts:
    """Return FlightData. A schema has no body; any other message states the length of its body, even if it is 0."""
    start = _DATA_HEADER + _varint(len(head)) + head
    if body is None:
        return [start]
    body_bytes = length(body)
    start += _DATA_BODY + _varint(body_bytes)
    if len(start) + body_bytes > MAX_MESSAGE_BYTES:
        raise ResourceLimitError("One row is larger than 2 GiB, the maximum message size: select fewer columns.")
    return [start, *body]


def _varint(number: int) -> bytes:
    """Return *number*, not negative, as protobuf writes lengths: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
