"""
Reads the headers of Arrow IPC messages, which are untrusted flatbuffers, field by field.

An encapsulated message is a continuation marker, the length of its header, the header (padded to 8 bytes) and the body
(Arrow columnar format, "Encapsulated message format"). Fields are identified by their index in `Message.fbs` and
`Schema.fbs`.
"""

import enum
import struct
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

#: Precedes the length of a header. A length of zero ends the stream.
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_PREFIX: Final = struct.Struct("<4si")
END_OF_STREAM: Final = _CONTINUATION + bytes(4)

#: The alignment of headers and bodies in bytes.
_ALIGNMENT: Final = 8

_U8, _U16 = struct.Struct("<B"), struct.Struct("<H")
_I32, _U32, _I64 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<q")

#: The indexes of fields in a Message, a RecordBatch and a DictionaryBatch.
_MESSAGE_KIND, _MESSAGE_HEADER, _MESSAGE_BODY, _MESSAGE_METADATA = 1, 2, 3, 4
_BATCH_ROWS, _BATCH_COMPRESSION = 0, 3
_DICTIONARY_BATCH = 1

#: The indexes of fields in a Schema, a Field, a KeyValue, and in the two types with text or a list.
_SCHEMA_FIELDS, _SCHEMA_METADATA = 1, 2
_FIELD_NAME, _FIELD_TYPE_KIND, _FIELD_TYPE, _FIELD_CHILDREN, _FIELD_METADATA = 0, 2, 3, 5, 6
_KEY, _VALUE = 0, 1
_TIMESTAMP, _TIMESTAMP_ZONE = 10, 1
_UNION, _UNION_NUMBERS = 14, 1


class IpcError(Exception):
    """The bytes are not an Arrow IPC message."""


def encapsulated(header: bytes, body: bytes) -> Iterator[bytes]:
    """Yield one message of a stream, with the padding that FlightData omits."""
    padding = -len(header) % _ALIGNMENT
    yield _PREFIX.pack(_CONTINUATION, len(header) + padding)
    yield header
    yield bytes(padding)
    yield body


class Kind(enum.IntEnum):
    """The kind of an Arrow message."""

    SCHEMA = 1
    DICTIONARY_BATCH = 2
    RECORD_BATCH = 3


class Table:
    """
    A table of a flatbuffer. Every read is bounds-checked.

    Raises:
        IpcError: From every method, if it would read out of bounds.
    """

    __slots__ = ("_data", "_field_count", "_position", "_vtable")

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - self._read(_I32, position)
        self._field_count = (self._read(_U16, self._vtable) - 4) // 2

    def _read(self, layout: struct.Struct, position: int) -> int:
        if not 0 <= position <= len(self._data) - layout.size:
            raise IpcError
        return int(layout.unpack_from(self._data, position)[0])

    def _offset(self, index: int) -> int:
        """Return the position of a field's value; 0 if it is absent."""
        offset = self._read(_U16, self._vtable + 4 + 2 * index) if index < self._field_count else 0
        return self._position + offset if offset else 0

    def _target(self, position: int) -> int:
        return position + self._read(_U32, position)

    def number(self, index: int, layout: struct.Struct) -> int:
        """Return the number in a field; 0 if it is absent."""
        position = self._offset(index)
        return self._read(layout, position) if position else 0

    def table(self, index: int) -> "Table | None":
        """Return the table in a field; None if it is absent."""
        position = self._offset(index)
        return Table(self._data, self._target(position)) if position else None

    def length(self, index: int) -> int:
        """Return the length of a text in bytes or of a vector in elements; 0 if it is absent."""
        position = self._offset(index)
        return self._read(_U32, self._target(position)) if position else 0

    def text(self, index: int) -> bytes:
        """Return the bytes of a text; b"" if it is absent."""
        position = self._offset(index)
        begin = self._target(position) + _U32.size if position else 0
        end = begin + self.length(index)
        if end > len(self._data):
            raise IpcError
        return self._data[begin:end]

    def tables(self, index: int) -> "Iterator[Table]":
        """Yield the tables of a vector. Elements may share one table, so the caller must bound its work."""
        position = self._offset(index)
        if position:
            vector = self._target(position)
            for number in range(self._read(_U32, vector)):
                yield Table(self._data, self._target(vector + 4 + 4 * number))


class Header(Struct, frozen=True):
    """The header of one message, with its kind and the length of its body."""

    kind: Kind
    body_bytes: int
    message: Table
    header: Table

    @property
    def rows(self) -> int:
        """The number of rows of a record batch."""
        return self.header.number(_BATCH_ROWS, _I64)

    @property
    def is_compressed(self) -> bool:
        """Whether the buffers of a record batch or dictionary are compressed."""
        batch = self.header.table(_DICTIONARY_BATCH) if self.kind is Kind.DICTIONARY_BATCH else self.header
        return batch is not None and batch.table(_BATCH_COMPRESSION) is not None


def read_header(data: bytes) -> Header:
    """
    Read the header of a message.

    Raises:
        IpcError: *data* is not a header, or its kind does not occur in a stream of record batches.
    """
    message = Table(data, struct.unpack_from("<I", data)[0] if len(data) >= _U32.size else -1)
    header = message.table(_MESSAGE_HEADER)
    body_bytes = message.number(_MESSAGE_BODY, _I64)
    try:
        kind = Kind(message.number(_MESSAGE_KIND, _U8))
    except ValueError:
        raise IpcError from None
    if header is None or body_bytes < 0:
        raise IpcError
    return Header(kind, body_bytes, message, header)


def weigh(header: Header, budget: int) -> int:
    """
    Return the rest of *budget* after subtracting the expanded size of a header (fields, names and other text).

    A flatbuffer may refer to the same part many times, so a short header can expand to a large schema. Each reference
    counts. A table counts as `TABLE_WEIGHT`, text and lists by their length.

    Raises:
        IpcError: The header exceeds *budget* or `MAX_DEPTH`, cannot be read, or contains a name that is not UTF-8.
    """
    for weight in _weights(header):
        budget -= weight
        if budget < 0:
            raise IpcError
    return budget


TABLE_WEIGHT: Final = 64
MAX_DEPTH: Final = 64


def _weights(header: Header) -> Iterator[int]:
    """Yield the weights of a header's parts. No part is read before the caller has counted the previous one."""
    yield from _pairs(header.message, _MESSAGE_METADATA)
    if header.kind is Kind.SCHEMA:
        yield from _pairs(header.header, _SCHEMA_METADATA)
        yield from _fields(header.header, _SCHEMA_FIELDS, 0)


def _pairs(table: Table, index: int) -> Iterator[int]:
    for pair in table.tables(index):
        yield TABLE_WEIGHT + pair.length(_KEY) + pair.length(_VALUE)


def _fields(table: Table, index: int, depth: int) -> Iterator[int]:
    if depth > MAX_DEPTH:
        raise IpcError
    for field in table.tables(index):
        yield TABLE_WEIGHT
        yield from _text(field, _FIELD_NAME)
        kind, content = field.number(_FIELD_TYPE_KIND, _U8), field.table(_FIELD_TYPE)
        if content is not None and kind == _TIMESTAMP:
            yield from _text(content, _TIMESTAMP_ZONE)
        elif content is not None and kind == _UNION:
            yield 4 * content.length(_UNION_NUMBERS)
        yield from _pairs(field, _FIELD_METADATA)
        yield from _fields(field, _FIELD_CHILDREN, depth + 1)


def _text(table: Table, index: int) -> Iterator[int]:
    """Weigh text before copying it. Arrow does not check that the text is UTF-8, and pyarrow would fail later."""
    yield table.length(index)
    try:
        table.text(index).decode()
    except UnicodeDecodeError:
        raise IpcError from None
