import bz2
import gzip
import io
import json
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, DoubleType, IntegerType, LongType, NestedField, StringType

from connectors.iceberg.avro import MAX_BYTES, AvroContent
from datasources.errors import SnapshotError
from datasources.snapshots.snapshot import Order
from runtimeconf.model import DatasetConfig
from tests.connectors.iceberg.iceberg_tables import SqliteCatalog, commit, data_file, deletes, place, rewrite
from tests.datasources.sources.loads import has_changed, load, table, version
from tests.datasources.support import builder, deadline, refusal

OUTSIDE = "names a file outside the table"
MIB = 1024 * 1024


def iceberg(directory: Path, text: str = "wh/ns/t", **more: Any) -> DatasetConfig:
    return table(directory, f"iceberg:{text}", **more)


def catalogued(directory: Path, name: str = "ns.t", **more: str) -> DatasetConfig:
    params = {"iceberg_catalog": str(directory / "catalog.db"), "iceberg_table": name}
    return iceberg(directory, "wh", **params | more)


def write(directory: Path, name: str = "t", **columns: Any) -> Table:
    """Append rows to a table, which is made if there is none."""
    content = pa.table(columns)
    catalog = SqliteCatalog(directory)
    is_new = not (catalog.warehouse / "ns" / name).exists()
    made = catalog.make(name, content.schema) if is_new else catalog.load_table(("ns", name))
    made.append(content)
    return made


def empty(directory: Path) -> Table:
    """Make a table of the column n that has no snapshot."""
    return SqliteCatalog(directory).make("t", Schema(NestedField(1, "n", LongType())))


def numbers(made: Table, name: str, *values: int) -> str:
    """Write a file of the column n, and return its path in the table."""
    field = pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "1"})
    (place(made) / "data").mkdir(exist_ok=True)
    pq.write_table(pa.table([list(values)], schema=pa.schema([field])), place(made) / "data" / name)
    return f"data/{name}"


# --- versions ---------------------------------------------------------------------------------------------------------


def test_the_newest_snapshot_is_read_and_a_newer_one_is_noticed(tmp_path: Path) -> None:
    made = write(tmp_path, n=[1, 2])
    ways = [iceberg(tmp_path), catalogued(tmp_path)]
    first = [version(tmp_path, way) for way in ways]
    assert first[0] == first[1]
    pinned = iceberg(tmp_path, f"wh/ns/t/metadata/{Path(made.metadata_location).name}")

    made.append(pa.table({"n": [3]}))

    for way in ways:
        assert has_changed(tmp_path, way, first[0])
        assert load(tmp_path, way, "FROM d ORDER BY n") == [(1,), (2,), (3,)]
        assert not has_changed(tmp_path, way, version(tmp_path, way))
    assert not has_changed(tmp_path, pinned, first[0])
    assert load(tmp_path, pinned, "FROM d ORDER BY n") == [(1,), (2,)]


def test_metadata_that_are_packed_are_read(tmp_path: Path) -> None:
    made = write(tmp_path, n=[1])
    newest = Path(made.metadata_location.removeprefix("file://"))
    newest.with_name("v7.gz.metadata.json").write_bytes(gzip.compress(newest.read_bytes()))

    assert load(tmp_path, iceberg(tmp_path)) == [(1,)]

    newest.with_name("v8.gz.metadata.json").write_bytes(gzip.compress(b" " * 65 * MIB))
    assert "'metadata/v8.gz.metadata.json' of 'wh/ns/t' is damaged" in refusal(tmp_path, iceberg(tmp_path))


def test_of_two_files_of_one_version_only_the_catalog_knows_which_counts(tmp_path: Path) -> None:
    made = write(tmp_path, n=[1])
    newest = Path(made.metadata_location.removeprefix("file://"))
    newest.with_name(f"{newest.name[:5]}-lost.metadata.json").write_text("{}")

    assert "has 2 metadata files of version 1" in refusal(tmp_path, iceberg(tmp_path))
    assert load(tmp_path, catalogued(tmp_path)) == [(1,)]


# --- values -----------------------------------------------------------------------------------------------------------


def test_a_schema_that_changed_holds_for_older_files(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path)
    made = catalog.make(
        "t", Schema(NestedField(1, "a", IntegerType(), required=False), NestedField(2, "b", StringType()))
    )
    made.append(pa.table({"a": pa.array([1], pa.int32()), "b": ["old"]}))
    with made.update_schema() as update:
        update.update_column("a", LongType())
        update.delete_column("b")
    with made.update_schema() as update:
        update.rename_column("a", "With Space")
    with made.update_schema() as update:
        update.add_column("b", LongType())
    first = version(tmp_path, iceberg(tmp_path))
    made.append(pa.table({"With Space": [2**40], "b": [7]}))

    assert load(tmp_path, iceberg(tmp_path), 'FROM d ORDER BY "With Space"') == [(1, None), (2**40, 7)]
    with made.update_schema() as update:
        update.add_column("c", StringType())
    assert has_changed(tmp_path, iceberg(tmp_path), first)


def test_a_partitioned_table_is_read(tmp_path: Path) -> None:
    days = [date(2024, 1, 1), None, date(1, 1, 1)]
    content = pa.table({"n": [1, 2, 3], "p": ["a/b c%", "ü=&", None], "d": days, "e": [0.1, 5e-324, None]})
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "p"),
        PartitionField(3, 1001, IdentityTransform(), "d"),
        PartitionField(4, 1002, IdentityTransform(), "e"),
    )
    fields = (NestedField(1, "n", LongType()), NestedField(2, "p", StringType()), NestedField(3, "d", DateType()))
    schema = Schema(*fields, NestedField(4, "e", DoubleType()))
    made = SqliteCatalog(tmp_path).make("t", schema, spec)
    made.append(content)

    found = load(tmp_path, iceberg(tmp_path), "FROM d ORDER BY n")

    assert found == [(1, "a/b c%", days[0], 0.1), (2, "ü=&", None, 5e-324), (3, None, days[2], None)]


def test_files_that_were_added_as_they_were_are_read(tmp_path: Path) -> None:
    spec = PartitionSpec(
        PartitionField(1, 1000, BucketTransform(4), "n_bucket"), PartitionField(2, 1001, IdentityTransform(), "p")
    )
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "p", StringType()))
    mapping = [{"field-id": 1, "names": ["n", "number"]}, {"field-id": 2, "names": ["p"]}]
    options = {"schema.name-mapping.default": json.dumps(mapping)}
    made = SqliteCatalog(tmp_path).make("t", schema, spec, **options)
    (place(made) / "p=x").mkdir()
    pq.write_table(pa.table({"number": [1, 2]}), place(made) / "p=x/a.parquet")
    commit(made, data_file(made, "p=x/a.parquet", 2, partition=Record(3, "x")))

    assert load(tmp_path, iceberg(tmp_path), "FROM d ORDER BY n") == [(1, "x"), (2, "x")]

    rewrite(made, lambda content: content["properties"].clear())
    assert "its columns have no IDs" in refusal(tmp_path, iceberg(tmp_path))


# --- deleted rows -----------------------------------------------------------------------------------------------------


def test_rows_that_are_deleted_by_position_are_left_out(tmp_path: Path) -> None:
    made = empty(tmp_path)
    first = data_file(made, numbers(made, "a.parquet", *range(40_000)), 40_000)
    commit(made, first, data_file(made, numbers(made, "b.parquet", -1), 1))
    commit(made, deletes(made, "x.parquet", first.file_path, [0, 7, 20_000]), content=ManifestContent.DELETES)
    commit(made, deletes(made, "y.parquet", first.file_path, [7, 39_999]), content=ManifestContent.DELETES)

    found = load(tmp_path, iceberg(tmp_path), "SELECT count(*), sum(n) FROM d")

    assert found == [(39_997, sum(range(40_000)) - 60_006 - 1)]


def test_deletes_do_not_hold_for_files_that_came_later(tmp_path: Path) -> None:
    made = empty(tmp_path)
    added = data_file(made, numbers(made, "a.parquet", 1, 2), 2)
    commit(made, deletes(made, "x.parquet", added.file_path, [0]), content=ManifestContent.DELETES)
    commit(made, added)

    assert load(tmp_path, iceberg(tmp_path), "FROM d ORDER BY n") == [(1,), (2,)]


def test_deletes_of_a_row_or_a_path_that_cannot_be_are_refused(tmp_path: Path) -> None:
    made = empty(tmp_path)
    added = data_file(made, numbers(made, "a.parquet", 1, 2), 2)
    commit(made, added)
    commit(made, deletes(made, "x.parquet", added.file_path, [2**62]), content=ManifestContent.DELETES)
    said = "'x.parquet' of 'wh/ns/t' is damaged, or does not follow the specification."

    assert refusal(tmp_path, iceberg(tmp_path)) == said
    deletes(made, "x.parquet", added.file_path, [0])
    whole = (place(made) / "x.parquet").read_bytes()
    (place(made) / "x.parquet").write_bytes(whole.replace(b"a.parquet", b"\xff.parquet"))
    assert refusal(tmp_path, iceberg(tmp_path)) == said


# --- what is not read rather than read wrongly ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ({"content": DataFileContent.EQUALITY_DELETES}, "rows deleted by value (equality deletes)"),
        ({"file_format": FileFormat.ORC}, "files of the format ORC"),
        ({"file_format": FileFormat.PUFFIN, "content": DataFileContent.POSITION_DELETES}, "files of the format PUFFIN"),
        ({"key_metadata": b"x"}, "encrypted files"),
    ],
)
def test_a_table_that_asks_for_more_is_refused(tmp_path: Path, file: dict[str, Any], said: str) -> None:
    made = empty(tmp_path)
    commit(made, data_file(made, numbers(made, "a.parquet", 1), 1, **file))

    assert (
        refusal(tmp_path, iceberg(tmp_path)) == f"'wh/ns/t' needs a feature that this reader does not support: {said}."
    )

    rewrite(made, lambda content: content.update({"format-version": 3}))
    assert refusal(tmp_path, iceberg(tmp_path)) == (
        "'wh/ns/t' needs a feature that this reader does not support: version 3 of the format."
    )


@pytest.mark.parametrize("content", [ManifestContent.DATA, ManifestContent.DELETES])
def test_deleted_rows_are_not_taken_for_rows_nor_rows_for_deleted_ones(
    tmp_path: Path, content: ManifestContent
) -> None:
    made = empty(tmp_path)
    kind = DataFileContent.POSITION_DELETES if content == ManifestContent.DATA else DataFileContent.DATA
    manifest = commit(made, data_file(made, numbers(made, "a.parquet", 1), 1, content=kind), content=content)

    assert f"'metadata/{manifest.name}' of 'wh/ns/t' is damaged" in refusal(tmp_path, iceberg(tmp_path))


@pytest.mark.parametrize(
    "path",
    [
        "file:///etc/passwd",
        "/etc/passwd",
        "TABLE/../u/a.parquet",
        "TABLE/x/../../u/a.parquet",
        "TABLE2/a.parquet",
        "http://169.254.169.254/a.parquet",
        "s3://other/a.parquet",
    ],
)
def test_a_path_that_leads_out_of_the_table_is_refused(tmp_path: Path, path: str) -> None:
    made = empty(tmp_path)
    path = path.replace("TABLE", made.location())
    commit(made, data_file(made, path, 1))

    assert OUTSIDE in refusal(tmp_path, iceberg(tmp_path))


def test_a_manifest_outside_of_the_table_is_refused(tmp_path: Path) -> None:
    made = empty(tmp_path)
    commit(made, data_file(made, "data/a.parquet", 1), named="file:///etc/passwd")
    assert OUTSIDE in refusal(tmp_path, iceberg(tmp_path))

    rewrite(made, lambda content: content["snapshots"][0].update({"manifest-list": "/dev/zero"}))
    assert OUTSIDE in refusal(tmp_path, iceberg(tmp_path))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda content: content[:-20],
    "half": lambda content: content[: len(content) // 2],
    "more": lambda content: content + b"\x00",
    "text": lambda _: b"{nope",
    "list": lambda _: b"[1]",
    "deep": lambda _: b"[" * 100_000,
    "version": lambda _: b'{"format-version": 2}',
    "large": lambda content: content + b" " * 65 * MIB,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_metadata_and_manifests_are_refused(tmp_path: Path, kind: str) -> None:
    made = empty(tmp_path)
    manifest = commit(made, data_file(made, numbers(made, "a.parquet", 1), 1))
    newest = max((place(made) / "metadata").glob("*.metadata.json"))
    (listed,) = (place(made) / "metadata").glob("list-*.avro")

    for path in (manifest, listed, newest):
        whole = path.read_bytes()
        path.write_bytes(DAMAGE[kind](whole))
        said = refusal(tmp_path, iceberg(tmp_path))
        assert f"'metadata/{path.name}' of 'wh/ns/t' is " in said
        assert ("is larger than 64 MiB" in said) == (kind == "large")
        path.write_bytes(whole)


def test_a_list_of_manifests_that_ends_before_its_first_is_refused(tmp_path: Path) -> None:
    made = empty(tmp_path)
    commit(made, data_file(made, numbers(made, "a.parquet", 1), 1))
    (listed,) = (place(made) / "metadata").glob("list-*.avro")
    whole = listed.read_bytes()
    end = whole.index(whole[-16:]) + 16
    assert end < len(whole)
    listed.write_bytes(whole[:end])

    assert "is damaged" in refusal(tmp_path, iceberg(tmp_path))


def test_what_the_catalog_does_not_have_is_refused(tmp_path: Path) -> None:
    write(tmp_path, n=[1])

    assert refusal(tmp_path, catalogued(tmp_path, "ns.absent")) == "The catalog has no table 'ns.absent'."
    other = catalogued(tmp_path, iceberg_catalog_name="other")
    assert refusal(tmp_path, other) == "The catalog has no table 'ns.t'."
    SqliteCatalog(tmp_path).execute("UPDATE iceberg_tables SET metadata_location = NULL")
    assert refusal(tmp_path, catalogued(tmp_path)) == "The catalog does not name a metadata file for the table."


@pytest.mark.parametrize("location", ["../u", "TMP/u", "file://TMP/u", "TMP/wh/../u", "s3://lake/t", "TMP/wh2/t"])
def test_a_table_outside_of_the_warehouse_is_refused(tmp_path: Path, location: str) -> None:
    made = write(tmp_path, n=[1])
    for name in ("u", "wh2/t"):
        shutil.copytree(place(made), tmp_path / name)
    file = f"{location.replace('TMP', str(tmp_path))}/metadata/{Path(made.metadata_location).name}"
    SqliteCatalog(tmp_path).execute("UPDATE iceberg_tables SET metadata_location = ?", file)

    assert "The catalog says that 'ns.t' is outside 'wh'" in refusal(tmp_path, catalogued(tmp_path))


def test_a_catalog_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path, n=[1])
    file = tmp_path / "catalog.db"
    dataset = catalogued(tmp_path)
    said = "The file in iceberg_catalog is damaged, or no SQL catalog of Iceberg."
    file.write_bytes(b"x" * 5000)
    assert refusal(tmp_path, dataset) == said

    file.unlink()
    with closing(sqlite3.connect(file)) as connection, connection:
        columns = "i || '' AS catalog_name, i || '' AS table_namespace, i || '' AS table_name, i AS metadata_location"
        endless = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {columns} FROM n"
        connection.execute(f"CREATE VIEW iceberg_tables AS {endless}")
    with pytest.raises(SnapshotError, match=r"^The load was stopped after 0\.2 s"):
        builder(tmp_path).build(Order(dataset), deadline(0.2))

    file.unlink()
    assert refusal(tmp_path, dataset) == "The file in iceberg_catalog cannot be read: No such file or directory."
    os.mkfifo(file)
    assert refusal(tmp_path, dataset) == "The file in iceberg_catalog is not a regular file."


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_catalog_that_is_written_to_is_read_by_the_next_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str
) -> None:
    monkeypatch.setattr("connectors.iceberg.location._LOCK_S", 0.05)
    write(tmp_path, n=[1])
    dataset = catalogued(tmp_path)
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as writer:
        writer.execute(f"PRAGMA journal_mode = {journal}")
        # Only so does a writer keep readers of a write-ahead log out.
        writer.execute("PRAGMA locking_mode = exclusive")
        writer.execute("BEGIN EXCLUSIVE")
        writer.execute("UPDATE iceberg_tables SET table_name = table_name")

        said = refusal(tmp_path, dataset)

    assert said == "The file in iceberg_catalog is locked by another program; the next refresh will retry."
    assert load(tmp_path, dataset) == [(1,)]


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

    assert (
        said == "'wh/ns/t' needs a feature that this reader does not support: Avro files that are compressed with xz."
    )


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
