"""
The frames between an engine client, the broker and an engine worker, over Unix sockets.

A frame is one byte of kind, four bytes of payload length (unsigned, network order), and the payload: a JSON object in
UTF-8 (`queryengine.pool.messages`), or bytes for DATA.

On a worker's connection the client sends a REQUEST. The worker answers with HEADER, any number of DATA and END, or with
ERROR at any point; then the next REQUEST may follow. An answer without END or ERROR was cut; therefore each piece of a
stream follows a PROGRESS, with the figures so far. A worker that accepts no further REQUEST sends CLOSING. It has not
started a REQUEST that crosses this frame, nor one sent to a connection that turns out to be closed or reset, because it
reads a REQUEST to its end first.

A broker's connection carries MESSAGE frames in both directions.
"""

import enum
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

_HEAD = struct.Struct("!BI")

#: The largest payload of DATA, and the size into which a stream of bytes is split to bound the memory of a reader.
MAX_DATA_BYTES = 2**31 - 1
STREAM_DATA_BYTES = 1024 * 1024

#: How much is received at once, until a frame is known to be larger.
_READ_BYTES = 64 * 1024

#: A DATA payload that misses at least this much is kept in pieces, which are joined at its end.
_LONG_BYTES = 64 * 1024

#: The largest JSON payload. A statement with its parameters is the largest kind.
MAX_JSON_BYTES = 256 * 1024 * 1024


class Kind(enum.IntEnum):
    """The kind of a frame."""

    REQUEST = 1
    HEADER = 2
    DATA = 3
    END = 4
    ERROR = 5
    MESSAGE = 6
    CLOSING = 7
    PROGRESS = 8


_KINDS = {int(kind): kind for kind in Kind}


_to_json = msgspec.json.Encoder().encode


class FrameError(Exception):
    """The bytes are not frames, or not the ones expected; `str()` is for the log."""


def encode_data(*parts: bytes | memoryview, limit: int = STREAM_DATA_BYTES) -> Iterator[bytes | memoryview]:
    """
    Split *parts*, which follow each other, into DATA frames of at most *limit* bytes; no frame for no bytes.

    Yields heads and payloads separately, so that no payload is copied.
    """
    views = [memoryview(part) for part in parts]
    left = sum(map(len, views))
    room = 0  # in the current frame
    for view in views:
        rest = view
        while rest:
            if not room:
                room = min(left, limit)
                yield _HEAD.pack(Kind.DATA, room)
            part, rest = rest[:room], rest[room:]
            yield part
            room -= len(part)
            left -= len(part)


def encode(kind: Kind, content: Any) -> bytes:
    """
    Return a frame of *kind* that carries *content*, a struct or a mapping, as JSON.

    Raises:
        FrameError: It is too large to be sent.
        UnicodeEncodeError: It contains a lone surrogate.
        TypeError, ValueError, RecursionError: It contains something else that JSON does not know.
    """
    payload = _to_json(content)
    if len(payload) > MAX_JSON_BYTES:
        raise FrameError("a frame would be too long")
    return _HEAD.pack(kind, len(payload)) + payload


class FrameDecoder:
    """
    Assembles frames from bytes in pieces of any size. For one connection and one thread.

    A frame whose head announces more than *max_json_bytes* of JSON is refused before its payload arrives.
    """

    def __init__(self, *, max_json_bytes: int = MAX_JSON_BYTES) -> None:
        self._buffer = bytearray()
        self._max_json_bytes = max_json_bytes
        #: The pieces of a long DATA payload, which bypasses the buffer, and how many of its bytes are missing.
        self._long: list[bytes | memoryview] = []
        self.missing = 0
        self._follows_long = False

    @property
    def wanted(self) -> int:
        """
        The number of bytes to receive next, so that as little as possible is copied.

        It is the missing part of a long payload, and after one only the head of the next frame: then a long payload
        never starts in the buffer.
        """
        return self.missing or (_HEAD.size if self._follows_long else _READ_BYTES)

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[Kind, bytes]]:
        """
        Add *data*, and yield the frames that are complete.

        Raises:
            FrameError: The bytes are not a frame.
        """
        if self.missing:
            part = data if len(data) <= self.missing else data[: self.missing]
            self._long.append(part)
            self.missing -= len(part)
            data = data[len(part) :]
        self._buffer += data
        return self._whole_frames()

    def _whole_frames(self) -> Iterator[tuple[Kind, bytes]]:
        if self._long and not self.missing:
            payload = b"".join(self._long)
            self._long.clear()
            self._follows_long = True
            yield Kind.DATA, payload
        buffer = self._buffer
        while len(buffer) >= _HEAD.size:
            number, length = _HEAD.unpack_from(buffer)
            kind = _KINDS.get(number)
            if kind is None:
                raise FrameError(f"kind {number} is unknown")
            if length > (MAX_DATA_BYTES if kind is Kind.DATA else self._max_json_bytes):
                raise FrameError("a frame is too long")
            end = _HEAD.size + length
            if len(buffer) < end:
                self._follows_long = False
                if kind is Kind.DATA and end - len(buffer) >= _LONG_BYTES:
                    if len(buffer) > _HEAD.size:
                        self._long.append(bytes(memoryview(buffer)[_HEAD.size :]))
                    self.missing = end - len(buffer)
                    buffer.clear()
                return
            payload = bytes(memoryview(buffer)[_HEAD.size : end])
            del buffer[:end]
            yield kind, payload

    @property
    def is_between_frames(self) -> bool:
        """Whether all bytes so far belong to complete frames."""
        return not self._buffer and not self._long and not self.missing
