"""Arrow IPC streams as FlightData messages, without a look at the values (Arrow Flight, `Flight.proto`, FlightData)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Final

import pyarrow as pa

from flightapi.errors import AnswerCutError
from flightapi.protocol.ipc import CONTINUATION, PREFIX, Head, IpcError, Kind, read_head
from queryengine.encoders.plan import ARROW_PIECE_BYTES, pieces

#: The longest message of protobuf; no client takes one that is longer.
MAX_MESSAGE_BYTES: Final = 2**31 - 1

#: The keys of FlightData's fields `data_header` (2) and `data_body` (1000), both of bytes.
_DATA_HEADER: Final = b"\x12"
_DATA_BODY: Final = b"\xc2\x3e"


def flight_data(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """
    Turn an Arrow IPC stream into serialised FlightData: the schema, dictionaries and record batches, one message each.

    The end marker is swallowed; nothing is decoded; each body is copied once. Each message is given as soon as it is
    whole, wherever *chunks* begin and end. What *chunks* raise passes through.

    Raises:
        AnswerCutError: The stream ends before its end marker, goes on after it, or is no Arrow stream.
    """
    stream = _Stream(chunks)
    is_begun = False
    while (data := stream.next_head()) is not None:
        head = _head(data)
        if (head.kind is Kind.SCHEMA) is is_begun:
            raise AnswerCutError  # one schema, and that first
        is_begun = True
        body = stream.take(head.body_bytes)
        yield _message(data, head, body)
    if not is_begun or not stream.is_over():
        raise AnswerCutError


def table_data(table: pa.Table) -> Iterator[bytes]:
    """Give *table* as serialised FlightData, cut so that each message fits into 4 MiB where one row does."""
    return flight_data(_stream_of(table))


def _stream_of(table: pa.Table) -> Iterator[bytes]:
    sink = BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for piece, _ in pieces(table.to_batches(), lambda batch: int(batch.nbytes), ARROW_PIECE_BYTES):
            writer.write_batch(piece)
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()


def _head(data: bytes) -> Head:
    try:
        head = read_head(data)
    except IpcError:
        raise AnswerCutError from None
    if head.body_bytes + len(data) > MAX_MESSAGE_BYTES:
        raise AnswerCutError
    return head


def _message(data: bytes, head: Head, body: list[memoryview]) -> bytes:
    """Return FlightData. A schema has no body; anything else says how long its body is, even when that is nothing."""
    parts: list[bytes | memoryview] = [_DATA_HEADER, _varint(len(data)), data]
    if head.kind is not Kind.SCHEMA:
        parts += [_DATA_BODY, _varint(head.body_bytes), *body]
    return b"".join(parts)


def _varint(number: int) -> bytes:
    """Return *number*, not negative, as protobuf writes lengths: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class _Stream:
    """The bytes of *chunks*, taken by length and not copied where they are only passed on."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._waiting: deque[memoryview] = deque()

    def next_head(self) -> bytes | None:
        """
        Return the head of the next message; None at the end marker.

        Raises:
            AnswerCutError: The stream ends, or something else comes.
        """
        marker, length = PREFIX.unpack(b"".join(self.take(PREFIX.size)))
        if marker != CONTINUATION or length < 0:
            raise AnswerCutError
        return b"".join(self.take(length)) if length else None

    def take(self, length: int) -> list[memoryview]:
        """
        Take *length* bytes, in as many parts as they came in.

        Raises:
            AnswerCutError: There are fewer.
        """
        taken = []
        while length:
            if not self._waiting and not self._pull():
                raise AnswerCutError
            part = self._waiting.popleft()
            if len(part) > length:
                self._waiting.appendleft(part[length:])
                part = part[:length]
            taken.append(part)
            length -= len(part)
        return taken

    def is_over(self) -> bool:
        """Whether nothing follows; it waits for the chunks to end."""
        return not self._waiting and not self._pull()

    def _pull(self) -> bool:
        """Get the next chunk that is not empty; False when there is none."""
        for chunk in self._chunks:
            if chunk:
                self._waiting.append(memoryview(chunk))
                return True
        return False
