"""
The heads of Arrow IPC messages: flatbuffers, read field by field and without trust.

An encapsulated message is a continuation marker, the length of its head, the head (padded to 8 bytes) and the body
(Arrow columnar format, "Encapsulated message format"). Nothing here touches a body. Fields are named by their place in
`Message.fbs` and `Schema.fbs`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

#: What stands before the length of a head. A length of zero after it ends the stream.
CONTINUATION: Final = b"\xff\xff\xff\xff"
PREFIX: Final = struct.Struct("<4si")
END_OF_STREAM: Final = CONTINUATION + bytes(4)

#: Heads and bodies begin at multiples of this.
ALIGNMENT: Final = 8

_U8, _U16 = struct.Struct("<B"), struct.Struct("<H")
_I32, _U32, _I64 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<q")

#: The places of fields in a Message, a RecordBatch and a DictionaryBatch.
_MESSAGE_KIND, _MESSAGE_HEADER, _MESSAGE_BODY, _MESSAGE_METADATA = 1, 2, 3, 4
_BATCH_ROWS, _BATCH_COMPRESSION = 0, 3
_DICTIONARY_BATCH = 1

#: The places of fields in a Schema, a Field, a KeyValue, and in the two types that hold text or a list.
_SCHEMA_FIELDS, _SCHEMA_METADATA = 1, 2
_FIELD_NAME, _FIELD_TYPE_KIND, _FIELD_TYPE, _FIELD_CHILDREN, _FIELD_METADATA = 0, 2, 3, 5, 6
_KEY, _VALUE = 0, 1
_TIMESTAMP, _TIMESTAMP_ZONE = 10, 1
_UNION, _UNION_NUMBERS = 14, 1


class IpcError(Exception):
    """The bytes are no Arrow IPC message."""


class Kind(enum.IntEnum):
    """What an Arrow message holds."""

    SCHEMA = 1
    DICTIONARY_BATCH = 2
    RECORD_BATCH = 3


class Table:
    """
    A table of a flatbuffer. Every read is checked against the bytes that there are.

    Raises:
        IpcError: By every method, when it would read outside of them.
    """

    __slots__ = ("_data", "_places", "_position", "_vtable")

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - self._read(_I32, position)
        self._places = (self._read(_U16, self._vtable) - 4) // 2

    def _read(self, layout: struct.Struct, position: int) -> int:
        if not 0 <= position <= len(self._data) - layout.size:
            raise IpcError
        return int(layout.unpack_from(self._data, position)[0])

    def _place(self, index: int) -> int:
        """Return where the value of a field stands; 0 when the table does not have it."""
        offset = self._read(_U16, self._vtable + 4 + 2 * index) if index < self._places else 0
        return self._position + offset if offset else 0

    def _target(self, place: int) -> int:
        return place + self._read(_U32, place)

    def number(self, index: int, layout: struct.Struct) -> int:
        """Return the number in a field; 0 when it is absent."""
        place = self._place(index)
        return self._read(layout, place) if place else 0

    def table(self, index: int) -> Table | None:
        """Return the table in a field; None when it is absent."""
        place = self._place(index)
        return Table(self._data, self._target(place)) if place else None

    def length(self, index: int) -> int:
        """Return how many bytes a text, or elements a vector, has; 0 when it is absent."""
        place = self._place(index)
        return self._read(_U32, self._target(place)) if place else 0

    def text(self, index: int) -> bytes:
        """Return the bytes of a text; none when it is absent."""
        place = self._place(index)
        begin = self._target(place) + _U32.size if place else 0
        end = begin + self.length(index)
        if end > len(self._data):
            raise IpcError
        return self._data[begin:end]

    def tables(self, index: int) -> Iterator[Table]:
        """Give the tables of a vector. Several may be one and the same: whoever walks on counts."""
        place = self._place(index)
        if place:
            vector = self._target(place)
            for number in range(self._read(_U32, vector)):
                yield Table(self._data, self._target(vector + 4 + 4 * number))


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one message: what it holds and how long its body is."""

    kind: Kind
    body_bytes: int
    message: Table
    header: Table

    @property
    def rows(self) -> int:
        """The rows of a record batch."""
        return self.header.number(_BATCH_ROWS, _I64)

    @property
    def is_compressed(self) -> bool:
        """Whether the buffers of a record batch or dictionary are compressed."""
        batch = self.header.table(_DICTIONARY_BATCH) if self.kind is Kind.DICTIONARY_BATCH else self.header
        return batch is not None and batch.table(_BATCH_COMPRESSION) is not None


def read_head(data: bytes) -> Head:
    """
    Read the head of a message.

    Raises:
        IpcError: It is none, or of a kind that no stream of record batches has.
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
    return Head(kind, body_bytes, message, header)


def weigh(head: Head, budget: int) -> int:
    """
    Return what is left of *budget* after what a reader makes of a head: its fields, names and other text.

    A flatbuffer may refer to the same part from many places, so that a short head becomes a large schema. Each place
    counts here: a table as `TABLE_WEIGHT`, text and lists by their length.

    Raises:
        IpcError: It is more than *budget*, or deeper than `MAX_DEPTH`, or cannot be read, or a name is not UTF-8.
    """
    scale = _Scale(budget)
    scale.pairs(head.message, _MESSAGE_METADATA)
    if head.kind is Kind.SCHEMA:
        scale.pairs(head.header, _SCHEMA_METADATA)
        scale.fields(head.header, _SCHEMA_FIELDS, 0)
    return scale.budget


TABLE_WEIGHT: Final = 64
MAX_DEPTH: Final = 64


class _Scale:
    """Adds up what a head weighs, and stops as soon as it is too much."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def _add(self, weight: int) -> None:
        self.budget -= weight
        if self.budget < 0:
            raise IpcError

    def pairs(self, table: Table, index: int) -> None:
        for pair in table.tables(index):
            self._add(TABLE_WEIGHT + pair.length(_KEY) + pair.length(_VALUE))

    def fields(self, table: Table, index: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise IpcError
        for field in table.tables(index):
            self._add(TABLE_WEIGHT)
            self._text(field, _FIELD_NAME)
            self._type(field)
            self.pairs(field, _FIELD_METADATA)
            self.fields(field, _FIELD_CHILDREN, depth + 1)

    def _type(self, field: Table) -> None:
        kind, content = field.number(_FIELD_TYPE_KIND, _U8), field.table(_FIELD_TYPE)
        if content is not None and kind == _TIMESTAMP:
            self._text(content, _TIMESTAMP_ZONE)
        elif content is not None and kind == _UNION:
            self._add(4 * content.length(_UNION_NUMBERS))

    def _text(self, table: Table, index: int) -> None:
        """Weigh text before it is copied. Arrow hands it on unchecked, and Python fails on what is not UTF-8."""
        self._add(table.length(index))
        try:
            table.text(index).decode()
        except UnicodeDecodeError:
            raise IpcError from None
