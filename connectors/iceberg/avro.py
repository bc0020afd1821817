"""
Rewrites the Avro files of an Iceberg table (manifest lists and manifests) without compression.

pyiceberg parses the result. On its own, pyiceberg needs an extra package for Snappy, does not limit the block size, and
reads a file that was truncated within a block as complete. It also rounds doubles, so they are declared as eight bytes.
The format is defined in the Avro specification, "Object container files".
"""

import io
import itertools
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import pyarrow as pa
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.io import InputFile

#: The maximum decompressed bytes of a metadata file or a manifest. Writers create manifests of 8 MiB.
MAX_BYTES = 64 * 1024 * 1024

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_CHECKSUM_BYTES = 4
_RAW_DEFLATE = -15
_DOUBLE = struct.Struct("<d")


class UnknownCodecError(Exception):
    """A file uses an unsupported compression codec. `str()` is the codec's name."""


class AvroContent(InputFile):
    """
    The uncompressed Avro file *content*, in a form that pyiceberg can open.

    Raises:
        UnknownCodecError: The compression codec is not supported.
        ValueError: The file is damaged, or contains more than `MAX_BYTES`.
        EOFError: The file was truncated.
        Exception: The file is damaged. The decompressors raise many types.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__("")
        self._content = _uncompressed(content)

    def new_input(self, location: str) -> Self:
        """Return the file for any *location*. pyiceberg expects a file system here."""
        return self

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        """Return True."""
        return True

    def open(self, seekable: bool = True) -> io.BytesIO:
        """Return the content as a stream."""
        return io.BytesIO(self._content)


class _Decoder(StreamingBinaryDecoder):
    def read_int(self) -> int:
        value = self.read_varint()
        return (value >> 1) ^ -(value & 1)

    def read_varint(self) -> int:
        """Read an integer of at most 64 bits: 7 bits per byte, the lowest first."""
        value = 0
        for shift in range(0, 70, 7):
            (byte,) = self.read(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("an integer of more than 64 bits")


def _uncompressed(content: bytes) -> bytes:
    source, stream = _Decoder(content), io.BytesIO()
    target = BinaryEncoder(stream)
    if source.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("not an Avro file")
    header: dict[bytes, bytes] = {}
    while count := source.read_int():
        if count < 0:  # The size of the map block in bytes follows.
            source.read_int()
        for _ in range(abs(count)):
            name = source.read_bytes()
            header[name] = source.read_bytes()
    sync = source.read(_SYNC_BYTES)
    codec = header.get(b"avro.codec", b"null").decode()
    if codec not in _CODECS:
        raise UnknownCodecError("".join(filter(str.isalnum, codec))[:40])
    header[b"avro.codec"] = b"null"
    _declare_bytes(header)
    target.write(_MAGIC)
    target.write_int(len(header))
    for pair in header.items():
        for text in pair:
            target.write_bytes(text)
    target.write_int(0)
    target.write(sync)
    while source.tell() < len(content):
        records, block = source.read_int(), _CODECS[codec](source.read_bytes())
        if stream.tell() + len(block) > MAX_BYTES or source.read(_SYNC_BYTES) != sync:
            raise ValueError("too large, or without a block end where one is expected")
        target.write_int(records)
        target.write_bytes(block)
        target.write(sync)
    return stream.getvalue()


def _declare_bytes(header: dict[bytes, bytes]) -> None:
    """Replace the doubles in the schema in *header*, because pyiceberg's compiled decoder rounds them to floats."""
    schema = header.get(b"avro.schema")
    if schema is not None:
        header[b"avro.schema"] = json.dumps(_without_doubles(json.loads(schema), itertools.count())).encode()


def _without_doubles(schema: Any, numbers: Iterator[int]) -> Any:
    """Return the Avro type *schema* with eight bytes in place of each double. Each such type needs its own name."""
    if schema == "double":
        return {"type": "fixed", "name": f"querykeep_double_{next(numbers)}", "size": _DOUBLE.size}
    if isinstance(schema, list):
        return [_without_doubles(part, numbers) for part in schema]
    if isinstance(schema, dict):
        nested = {"type", "fields", "items", "values"}
        return {name: _without_doubles(part, numbers) if name in nested else part for name, part in schema.items()}
    return schema


def double_of(value: object) -> object:
    """Return the double in the eight bytes *value*; null stays null."""
    return _DOUBLE.unpack(value)[0] if isinstance(value, bytes) else value


def unpacked(block: bytes, window_bits: int = _RAW_DEFLATE) -> bytes:
    """
    Decompress *block* with zlib. *window_bits* selects the header type.

    Raises:
        ValueError: The block was truncated, or contains more than `MAX_BYTES`.
        zlib.error: The block is damaged.
    """
    unpacking = zlib.decompressobj(window_bits)
    content = unpacking.decompress(block, MAX_BYTES)
    if not unpacking.eof:
        raise ValueError("cut short, or too large")
    return content


def _snappy(block: bytes) -> bytes:
    """Decompress a Snappy block, which begins with the size of its content and ends with the content's CRC-32."""
    packed, checksum = block[:-_CHECKSUM_BYTES], block[-_CHECKSUM_BYTES:]
    size = _Decoder(packed).read_varint()
    if size > MAX_BYTES:
        raise ValueError("too large")
    content: bytes = pa.Codec("snappy").decompress(packed, size, asbytes=True)
    if zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
        raise ValueError("a wrong checksum")
    return content


def _streamed(codec: str, block: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(block), codec) as stream:
        content: bytes = stream.read(MAX_BYTES + 1)
    return content


_CODECS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": lambda block: block,
    "deflate": unpacked,
    "snappy": _snappy,
    "zstandard": lambda block: _streamed("zstd", block),
    "bzip2": lambda block: _streamed("bz2", block),
}
