"""
Files that are made to harm who reads them, in the manner of the bad samples that the projects of each format collect.

Parquet is written here from its parts, since no library writes a file that lies about itself: the format's thrift
definition (parquet.thrift) names the fields by the numbers used below, and its compact protocol is encoded here.
"""

import gzip
import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MAGIC = b"PAR1"

# Types of the compact protocol.
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12

#: Of parquet.thrift: page types, encodings, codecs, and the physical type of texts.
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
PLAIN, RLE_DICTIONARY, DELTA_BINARY_PACKED = 0, 8, 5
UNCOMPRESSED, GZIP = 0, 2
INT64, BYTE_ARRAY = 2, 6

#: One field of a struct: its type and its encoded value.
_Field = tuple[int, bytes]


def varint(number: int) -> bytes:
    """Encode an unsigned number."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _signed(number: int) -> bytes:
    return varint(((number << 1) ^ (number >> 63)) & (2**64 - 1))


def _i32(number: int) -> _Field:
    return _I32, _signed(number)


def _i64(number: int) -> _Field:
    return _I64, _signed(number)


def _told(claimed: int | None, true: int) -> int:
    """Return what the file says of a number: what is true, unless it lies."""
    return true if claimed is None else claimed


def _binary(value: bytes) -> _Field:
    return _BINARY, varint(len(value)) + value


def _list(items: Sequence[_Field], claimed: int | None = None) -> _Field:
    """Encode a list that says it has *claimed* items."""
    count = _told(claimed, len(items))
    kind = items[0][0]
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)
    return _LIST, head + b"".join(value for _, value in items)


def _struct(fields: Mapping[int, _Field]) -> _Field:
    out, last = bytearray(), 0
    for number, (kind, value) in sorted(fields.items()):
        out += bytes([(number - last) << 4 | kind]) + value
        last = number
    return _STRUCT, bytes(out) + b"\0"


def plain(values: Sequence[bytes]) -> bytes:
    """Encode texts one after another."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


@dataclass(frozen=True, kw_only=True)
class Parquet:
    """
    A Parquet file of one required column `a` with a dictionary page and a data page.

    The defaults are a good file of three texts; a field that is given replaces what would be true.
    """

    kind: int = BYTE_ARRAY
    codec: int = UNCOMPRESSED
    encoding: int = RLE_DICTIONARY
    dictionary: bytes = field(default_factory=lambda: plain([b"x", b"yy"]))
    #: Bit width, then runs: one bit-packed group of eight with the indices 0, 1, 0.
    body: bytes = b"\x01\x03\x02"
    num_rows: int = 3
    group_rows: int | None = None
    chunk_values: int | None = None
    page_values: int | None = None
    dictionary_values: int = 2
    uncompressed: int | None = None
    compressed: int | None = None
    dictionary_uncompressed: int | None = None
    chunk_compressed: int | None = None
    data_offset: int | None = None
    dictionary_offset: int | None = None
    name: bytes = b"a"
    columns: int = 1
    children: int | None = None
    schema_items: int | None = None
    groups: int | None = None
    footer_length: int | None = None

    def content(self) -> bytes:
        """Return the file."""
        page = gzip.compress(self.body) if self.codec == GZIP else self.body
        words = gzip.compress(self.dictionary) if self.codec == GZIP else self.dictionary
        out = io.BytesIO()
        out.write(MAGIC)
        dictionary_at = out.tell()
        head = {1: _i32(self.dictionary_values), 2: _i32(PLAIN)}
        size = _told(self.dictionary_uncompressed, len(self.dictionary))
        out.write(_page(_DICTIONARY_PAGE, size, len(words), 7, head) + words)
        data_at = out.tell()
        head = {1: _i32(_told(self.page_values, self.num_rows)), 2: _i32(self.encoding), 3: _i32(3), 4: _i32(3)}
        sizes = _told(self.uncompressed, len(self.body)), _told(self.compressed, len(page))
        out.write(_page(_DATA_PAGE, *sizes, 5, head) + page)
        footer = self._footer(dictionary_at, data_at, out.tell())
        return out.getvalue() + footer + struct.pack("<I", _told(self.footer_length, len(footer))) + MAGIC

    def _footer(self, dictionary_at: int, data_at: int, end: int) -> bytes:
        length = _told(self.chunk_compressed, end - dictionary_at)
        metadata = {
            1: _i32(self.kind),
            2: _list([_i32(PLAIN), _i32(self.encoding)]),
            3: _list([_binary(self.name)]),
            4: _i32(self.codec),
            5: _i64(_told(self.chunk_values, self.num_rows)),
            6: _i64(length),
            7: _i64(length),
            9: _i64(_told(self.data_offset, data_at)),
            11: _i64(_told(self.dictionary_offset, dictionary_at)),
        }
        chunk = _struct({2: _i64(data_at), 3: _struct(metadata)})
        group_rows = _i64(_told(self.group_rows, self.num_rows))
        group = _struct({1: _list([chunk] * self.columns), 2: _i64(length), 3: group_rows})
        root = _struct({4: _binary(b"schema"), 5: _i32(_told(self.children, self.columns))})
        leaves = [
            _struct({1: _i32(self.kind), 3: _i32(0), 4: _binary(self.name + str(number).encode() * (number > 0))})
            for number in range(self.columns)
        ]
        fields = {
            1: _i32(1),
            2: _list([root, *leaves], self.schema_items),
            3: _i64(self.num_rows),
            4: _list([group], self.groups),
        }
        return _struct(fields)[1]


def _page(kind: int, uncompressed: int, compressed: int, number: int, head: Mapping[int, _Field]) -> bytes:
    return _struct({1: _i32(kind), 2: _i32(uncompressed), 3: _i32(compressed), number: _struct(head)})[1]


def sparse(path: Path, head: bytes, size: int) -> None:
    """Write *head*, and zeros up to *size* bytes that take no space on the disk."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


def gzip_bomb(path: Path, head: bytes, block: bytes, blocks: int) -> None:
    """Write *head* and then *block* that many times, gzipped; *block* is compressed once, as a member of its own."""
    member = gzip.compress(block, 6)
    with path.open("wb") as file:
        file.write(gzip.compress(head))
        for _ in range(blocks):
            file.write(member)
