"""The Avro files of an Iceberg table: lists of manifests, and manifests, whatever they are compressed with."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import pyarrow as pa
from pyiceberg.avro.codecs import AVRO_CODEC_KEY, KNOWN_CODECS
from pyiceberg.avro.codecs.codec import Codec
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import InputFile
from pyiceberg.schema import Schema

#: What a metadata file or a manifest may be large, decompressed (bytes). Writers make manifests of 8 MiB.
MAX_BYTES = 64 * 1024 * 1024

_CHECKSUM_BYTES = 4


class UnknownCodecError(Exception):
    """A file is compressed in a way that is not supported; `str()` is its name."""


def records(
    path: str,
    content: bytes,
    schema: Schema,
    types: Mapping[int, Callable[..., Any]],
    enums: Mapping[int, Callable[..., Enum]],
) -> list[Any]:
    """
    Return the records of the Avro file *path*, read as *schema*, *types* and *enums* say.

    Raises:
        UnknownCodecError: It is compressed in a way that is not supported.
        ValueError: It was cut short: the library takes the end of the file within a block for the end of the records.
        Exception: It is damaged; the library does not say what it may raise.
    """
    with AvroFile[Any](_Content(path, content), schema, dict(types), dict(enums)) as reader:
        # Without this key a file is not compressed (Avro specification, "Object container files").
        codec = reader.header.meta.setdefault(AVRO_CODEC_KEY, "null")
        if codec not in KNOWN_CODECS:
            raise UnknownCodecError("".join(filter(str.isalnum, codec))[:40])
        if content[-len(reader.header.sync) :] != reader.header.sync:
            raise ValueError("an Avro file that was cut short")
        return list(reader)


class _Content(InputFile):
    """A file that has been read, for the library."""

    def __init__(self, location: str, content: bytes) -> None:
        super().__init__(location)
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        """Say that it is there."""
        return True

    def open(self, seekable: bool = True) -> io.BytesIO:
        """Give the content."""
        return io.BytesIO(self._content)


class _Snappy(Codec):
    """Snappy blocks, each followed by the CRC-32 of its content; the library needs one more package for them."""

    @staticmethod
    def compress(data: bytes) -> tuple[bytes, int]:
        """Return the block of *data*, and its size."""
        packed = pa.Codec("snappy").compress(data, asbytes=True) + zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "big")
        return packed, len(packed)

    @staticmethod
    def decompress(data: bytes) -> bytes:
        """
        Return the content of a block.

        Raises:
            ValueError: It is damaged, or too large.
        """
        packed, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        content: bytes = pa.Codec("snappy").decompress(packed, _snappy_size(packed), asbytes=True)
        if zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
            raise ValueError("a wrong checksum")
        return content


def _snappy_size(packed: bytes) -> int:
    """Return the size of the content of *packed*, with which it begins: 7 bits a byte, the lowest first."""
    size = 0
    for index, byte in enumerate(packed[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size > MAX_BYTES:
                break
            return size
    raise ValueError("a block of no size, or of one that is too large")


KNOWN_CODECS["snappy"] = _Snappy
