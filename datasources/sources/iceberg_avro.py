"""
The Avro files of an Iceberg table (manifest lists and manifests), rewritten without compression.

pyiceberg parses the result. Left alone it needs an extra package for Snappy, sets no limit on the size of a block, and
reads a file that was cut short within a block as complete. The format is that of the Avro specification, "Object
container files".
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Mapping

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, OutputFile

#: The most bytes of a metadata file or of a manifest, decompressed. Writers make manifests of 8 MiB.
MAX_BYTES = 64 * 1024 * 1024

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_CHECKSUM_BYTES = 4
_RAW_DEFLATE = -15


class UnknownCodecError(Exception):
    """A file uses a compression codec that is not supported; `str()` is its name."""


class AvroContent(FileIO):
    """
    A file system for pyiceberg that holds one file: the Avro file *content*, without compression.

    Raises:
        UnknownCodecError: The compression codec is not supported.
        ValueError: The file is damaged or was cut short, or holds more than `MAX_BYTES`.
        Exception: The file is damaged; the decompressors raise many types.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._content = _uncompressed(content)

    def new_input(self, location: str) -> InputFile:
        """Return the file, whatever its *location*."""
        return _Input(location, self._content)

    def new_output(self, location: str) -> OutputFile:
        """Refuse to write."""
        raise NotImplementedError

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Refuse to delete."""
        raise NotImplementedError


class _Input(InputFile):
    def __init__(self, location: str, content: bytes) -> None:
        super().__init__(location)
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        """Return True."""
        return True

    def open(self, seekable: bool = True) -> io.BytesIO:
        """Return the content as a stream."""
        return io.BytesIO(self._content)


def _uncompressed(content: bytes) -> bytes:
    source, target = io.BytesIO(content), io.BytesIO()
    if source.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("not an Avro file")
    header: dict[bytes, bytes] = {}
    while count := _read_long(source):
        if count < 0:  # The size of the map block in bytes follows.
            _read_long(source)
        for _ in range(abs(count)):
            name = _read_bytes(source)
            header[name] = _read_bytes(source)
    sync = _read(source, _SYNC_BYTES)
    codec = header.get(b"avro.codec", b"null").decode()
    if codec not in _CODECS:
        raise UnknownCodecError("".join(filter(str.isalnum, codec))[:40])
    header[b"avro.codec"] = b"null"
    target.write(_MAGIC + _long(len(header)))
    for pair in header.items():
        for text in pair:
            target.write(_long(len(text)) + text)
    target.write(_long(0) + sync)
    while source.tell() < len(content):
        records, block = _read_long(source), _CODECS[codec](_read_bytes(source))
        if target.tell() + len(block) > MAX_BYTES or _read(source, _SYNC_BYTES) != sync:
            raise ValueError("too large, or no end of a block where it should be")
        target.write(_long(records) + _long(len(block)) + block + sync)
    return target.getvalue()


def _read(source: io.BytesIO, size: int) -> bytes:
    data = source.read(size) if size >= 0 else b""
    if len(data) != size:
        raise ValueError("cut short")
    return data


def _read_bytes(source: io.BytesIO) -> bytes:
    return _read(source, _read_long(source))


def _read_long(source: io.BytesIO) -> int:
    value = _read_varint(source)
    return (value >> 1) ^ -(value & 1)


def _read_varint(source: io.BytesIO) -> int:
    """Read an integer of at most 64 bits: 7 bits a byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        (byte,) = _read(source, 1)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise ValueError("an integer of more than 64 bits")


def _long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _deflate(block: bytes) -> bytes:
    unpacking = zlib.decompressobj(_RAW_DEFLATE)
    content = unpacking.decompress(block, MAX_BYTES)
    if not unpacking.eof:
        raise ValueError("cut short, or too large")
    return content


def _snappy(block: bytes) -> bytes:
    """Decompress a Snappy block, which begins with the size of its content and ends with the CRC-32 of it."""
    packed, checksum = block[:-_CHECKSUM_BYTES], block[-_CHECKSUM_BYTES:]
    size = _read_varint(io.BytesIO(packed))
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
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": lambda block: _streamed("zstd", block),
    "bzip2": lambda block: _streamed("bz2", block),
}
