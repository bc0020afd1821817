"""
The frames that travel between an engine client, the broker and an engine worker, over Unix sockets.

A frame is one byte of kind, four bytes of payload length (unsigned, network order), and the payload: a JSON object in
UTF-8, or bytes for DATA. A worker's connection carries one REQUEST there and back either HEADER, any number of DATA,
END, or at any point an ERROR; then the next REQUEST. An answer that stops before its END or ERROR was cut. A worker
that will take no further REQUEST says CLOSING: one that crosses it was not begun, nor one that meets a connection which
is closed or reset, for a worker reads all of a REQUEST first. A broker's connection carries MESSAGE frames in both
directions.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from json.encoder import c_make_encoder, encode_basestring, encode_basestring_ascii  # type: ignore[attr-defined]
from typing import Any

_HEAD = struct.Struct("!BI")

#: The longest payload of DATA, and what a stream of bytes is split into: a reader then holds no more of it at once.
MAX_DATA_BYTES = 2**31 - 1
STREAM_DATA_BYTES = 1024 * 1024

#: What is received at once, until it is known to be too little.
_READ_BYTES = 64 * 1024

#: Of a DATA payload more is to come than this: then its pieces are kept as they are, and joined at its end.
_LONG_BYTES = 64 * 1024

#: The longest JSON payload. A statement with its parameters is the largest one.
MAX_JSON_BYTES = 256 * 1024 * 1024


class Kind(enum.IntEnum):
    """What a frame is."""

    REQUEST = 1
    HEADER = 2
    DATA = 3
    END = 4
    ERROR = 5
    MESSAGE = 6
    CLOSING = 7


_KINDS = {int(kind): kind for kind in Kind}


def _encoder(write_text: Callable[[str], str]) -> Callable[[Any], str]:
    """Return what `JSONEncoder.encode` does, without white space, without making an encoder anew for each call."""
    encode = c_make_encoder(None, json.JSONEncoder().default, write_text, None, ":", ",", False, False, True)
    return lambda fields: "".join(encode(fields, 0))


# Every statement is several small frames.
_to_json = _encoder(encode_basestring)
_to_ascii_json = _encoder(encode_basestring_ascii)
_of_json = json.JSONDecoder().raw_decode


class FrameError(Exception):
    """The bytes are no frames, or not the ones expected; `str()` is for the log."""


def encode_data(*parts: bytes | memoryview, limit: int = STREAM_DATA_BYTES) -> Iterator[bytes | memoryview]:
    """
    Give the DATA frames, each of *limit* bytes at most, of *parts* that follow each other; none for no bytes.

    They come as heads and payloads, of which nothing is copied.
    """
    views = [memoryview(part) for part in parts]
    left = sum(map(len, views))
    room = 0  # in the frame that was begun
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


def encode_json(kind: Kind, fields: Mapping[str, Any]) -> bytes:
    """
    Return one frame of *kind* that holds *fields*.

    Raises:
        FrameError: *fields* are too long to be sent.
    """
    try:
        payload = _to_json(fields).encode()
    except UnicodeEncodeError:
        # Lone surrogates, which JSON bodies can bring in, survive as escapes; these take up to three times the bytes.
        payload = _to_ascii_json(fields).encode()
    if len(payload) > MAX_JSON_BYTES:
        raise FrameError("a frame would be too long")
    return _HEAD.pack(kind, len(payload)) + payload


class FrameDecoder:
    """
    Takes bytes as they come, in any pieces, and gives whole frames. One connection has one; not for two threads.

    A frame whose head announces more than *max_json_bytes* of JSON is refused before its payload is waited for.
    """

    def __init__(self, *, max_json_bytes: int = MAX_JSON_BYTES) -> None:
        self._buffer = bytearray()
        self._max_json_bytes = max_json_bytes
        #: A long DATA payload under way, which is not to go through the buffer, and how much of it is still to come.
        self._long: list[bytes | memoryview] = []
        self.missing = 0
        self._follows_long = False

    @property
    def wanted(self) -> int:
        """
        How many bytes should be received next, so that as little as possible is copied.

        It is what a long payload still misses, and after one the head of what follows, so that none begins in between.
        """
        return self.missing or (_HEAD.size if self._follows_long else _READ_BYTES)

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[Kind, bytes]]:
        """
        Add *data*, and give each frame that is complete when it is asked for.

        Raises:
            FrameError: What came is no frame.
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
        """Whether every byte so far belonged to a whole frame."""
        return not self._buffer and not self._long and not self.missing


def decode_json(payload: bytes) -> dict[str, Any]:
    """
    Return the fields of a JSON payload.

    Raises:
        FrameError: It is not a JSON object.
    """
    try:
        text = payload.decode()
        fields, end = _of_json(text)
    except (ValueError, RecursionError):
        raise FrameError("a payload is not JSON") from None
    if end != len(text):
        raise FrameError("a payload is more than JSON")
    if not isinstance(fields, dict):
        raise FrameError("a payload is not a JSON object")
    return fields
