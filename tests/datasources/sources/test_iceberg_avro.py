import bz2
import io
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.encoder import BinaryEncoder

from datasources.sources.iceberg_avro import MAX_BYTES, AvroContent
from tests.datasources.sources.iceberg_tables import commit, data_file, place
from tests.datasources.sources.loads import load
from tests.datasources.sources.test_iceberg import empty, iceberg, numbers
from tests.datasources.support import refusal


def long(number: int) -> bytes:
    stream = io.BytesIO()
    BinaryEncoder(stream).write_int(number)
    return stream.getvalue()


def text(content: bytes) -> bytes:
    return long(len(content)) + content


def snappy(block: bytes) -> bytes:
    packed: bytes = pa.Codec("snappy").compress(block, asbytes=True)
    return packed + zlib.crc32(block).to_bytes(4, "big")


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "deflate": lambda block: zlib.compress(block, wbits=-15),
    "snappy": snappy,
    "zstandard": lambda block: pa.Codec("zstd").compress(block, asbytes=True),
    "bzip2": bz2.compress,
}


def repacked(content: bytes, codec: str | None) -> bytes:
    """Write an Avro file of one block that is not compressed once more, compressed with *codec*; None: unsaid."""
    sync = content[-16:]
    start = content.index(sync) + 16
    stream = StreamingBinaryDecoder(content[start:])
    records = stream.read_int()
    block = PACKERS.get(str(codec), bytes)(stream.read_bytes())
    said = text(b"avro.other") + text(b"null") if codec is None else text(b"avro.codec") + text(codec.encode())
    was = text(b"avro.codec") + text(b"null")
    assert was in content[:start]
    return content[:start].replace(was, said) + long(records) + text(block) + sync


def repack(directory: Path, codec: str | None) -> list[Path]:
    """Make a table of one file, and write its list and its manifest once more; returns their paths."""
    made = empty(directory)
    commit(made, data_file(made, numbers(made, "a.parquet", 1, 2), 2), codec="null")
    files = list((place(made) / "metadata").glob("*.avro"))
    assert len(files) == 2
    for file in files:
        file.write_bytes(repacked(file.read_bytes(), codec))
    return files


@pytest.mark.parametrize("codec", ["null", None, "deflate", "snappy", "zstandard", "bzip2"])
def test_manifests_are_read_whatever_they_are_compressed_with(tmp_path: Path, codec: str | None) -> None:
    repack(tmp_path, codec)

    assert load(tmp_path, iceberg(tmp_path)) == [(1,), (2,)]


def test_a_codec_that_is_not_known_is_named(tmp_path: Path) -> None:
    repack(tmp_path, "xz")

    said = refusal(tmp_path, iceberg(tmp_path))

    assert said == "'wh/ns/t' needs what this reader does not support: Avro files that are compressed with xz."


@pytest.mark.exhaustive
@pytest.mark.parametrize("damage", ["content", "size", "large"])
def test_a_damaged_snappy_block_is_refused(tmp_path: Path, damage: str) -> None:
    for file in repack(tmp_path, "snappy"):
        whole = file.read_bytes()
        packed = whole.index(whole[-16:]) + 16 + 3  # a varint of the records, and two bytes of the size
        change = {"content": (packed + 20, b"\x00"), "size": (packed, b"\x01"), "large": (packed, b"\xff\xff\xff\xff")}
        at, put = change[damage]
        file.write_bytes(whole[:at] + put + whole[at + len(put) :])

        assert f"'metadata/{file.name}' of 'wh/ns/t' is damaged" in refusal(tmp_path, iceberg(tmp_path))
        file.write_bytes(whole)


HEADER = b"Obj\x01"
SYNC = b"0123456789abcdef"


def avro(codec: str, block: bytes) -> bytes:
    """Write an Avro file of one record, which is *block*."""
    key = text(b"avro.codec") + text(codec.encode())
    return HEADER + long(1) + key + long(0) + SYNC + long(1) + text(PACKERS.get(codec, bytes)(block)) + SYNC


@pytest.mark.parametrize("codec", PACKERS)
def test_a_block_that_unpacks_to_more_than_the_limit_is_refused(codec: str) -> None:
    with pytest.raises(ValueError, match="large"):
        AvroContent(avro(codec, bytes(MAX_BYTES + 1)))


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_a_file_cut_short_anywhere_is_refused(codec: str) -> None:
    whole = avro(codec, b"the only record")
    header_bytes = whole.index(SYNC) + len(SYNC)

    assert AvroContent(whole).new_input("a").open().read() == avro("null", b"the only record")
    for cut in set(range(len(whole))) - {header_bytes}:
        with pytest.raises((ValueError, EOFError), match=r"."):
            AvroContent(whole[:cut])
