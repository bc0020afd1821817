"""
The frames that engine clients, the broker and engine workers exchange over Unix sockets.

A frame consists of one byte for the kind, four bytes for the payload length (unsigned, network byte order), and the
payload. The payload is a JSON object in UTF-8 (`queryengine.pool.messages`), or bytes for DATA.

On a worker's connection, the client sends a REQUEST. The worker responds with HEADER, any number of DATA frames, and
END, or with ERROR at any point. Then the next REQUEST may follow. A response without END or ERROR is incomplete.
Because this can happen, a PROGRESS frame with the current timings precedes each piece of a stream. A worker that
accepts no further REQUEST sends CLOSING. If a REQUEST crosses this frame, or was sent to a connection that turns out to
be closed or reset, the worker has not started it, because it first reads a REQUEST to its end. CLOSING is also the
response of an engine that has been replaced and may not read the newest data.

A broker's connection carries MESSAGE frames in both directions.
"""

import enum
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

_HEAD = struct.Struct("!BI")

#: The maximum DATA payload, and the size into which a byte stream is split to limit the reader's memory use.
MAX_DATA_BYTES = 2**31 - 1
STREAM_DATA_BYTES = 1024 * 1024

#: The number of bytes to receive at once, until a frame is known to be larger.
_READ_BYTES = 64 * 1024

#: A DATA payload with at least this many missing bytes is kept in pieces, which are joined at the end.
_LONG_BYTES = 64 * 1024

#: The maximum JSON payload. The largest payloads are statements with their parameters.
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
    """The bytes are not frames, or not the expected frames. `str()` is for the log."""


def encode_data(*parts: bytes | memoryview, limit: int = STREAM_DATA_BYTES) -> Iterator[bytes | memoryview]:
    """
    Split the consecutive *parts* into DATA frames of at most *limit* bytes. Without bytes, there is no frame.

    Headers and payloads are yielded separately, so that no payload is copied.
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
    Return a frame of *kind* with *content*, a struct or a mapping, as JSON.

    Raises:
        FrameError: *content* is too large to be sent.
        UnicodeEncodeError: *content* contains a lone surrogate.
        TypeError, ValueError, RecursionError: *content* contains anything else that JSON does not support.
    """
    payload = _to_json(content)
    if len(payload) > MAX_JSON_BYTES:
        raise FrameError("a frame would be too long")
    return _HEAD.pack(kind, len(payload)) + payload


class FrameDecoder:
    """
    Assembles frames from pieces of any size. For one connection and one thread.

    A frame whose header announces more than *max_json_bytes* of JSON is refused before its payload arrives.
    """

    def __init__(self, *, max_json_bytes: int = MAX_JSON_BYTES) -> None:
        self._buffer = bytearray()
        self._max_json_bytes = max_json_bytes
        #: The pieces of a long DATA payload, which bypasses the buffer, and the number of its missing bytes.
        self._long: list[bytes | memoryview] = []
        self.missing = 0
        self._follows_long = False

    @property
    def wanted(self) -> int:
        """
        The number of bytes to receive next, chosen to minimise copying.

        For a long payload, this is the missing part. After a long payload, it is only the header of the next frame, so
        that another long payload does not start in the buffer.
        """
        return self.missing or (_HEAD.size if self._follows_long else _READ_BYTES)

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[Kind, bytes]]:
        """
        Add *data*, and yield the complete frames.

        Raises:
            FrameError: The bytes are not a valid frame.
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
