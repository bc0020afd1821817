"""
`iceberg:` sources: Apache Iceberg tables on disk and in S3.

pyiceberg parses the metadata and the manifests from bytes that are read here, and `lake_parquet` reads the data files.
pyiceberg's reader is not used because it opens any location in the metadata and needs credentials. The rules are
defined in the Iceberg table specification, versions 1 and 2.
"""

import json
import re
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from msgspec import Struct
from pyiceberg import types
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    read_manifest_list,
)
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.transforms import IdentityTransform

from connectors import lake_parquet
from connectors.iceberg.avro import MAX_BYTES, AvroContent, UnknownCodecError, double_of, unpacked
from connectors.iceberg.location import newest
from connectors.iceberg.params import IcebergParams
from connectors.lake import TableRoot, inside
from connectors.lake_parquet import FIELD_ID, Column, Key
from datasources.errors import SnapshotError, SourceError
from datasources.sources.source import Bound, Load
from datasources.sources.streams import StreamScan
from runtimeconf.model import DatasetConfig

_GZIP = 31  # zlib window bits: with a gzip header

#: The columns of a position delete file. The specification reserves the ids.
_DELETES = (
    Column("file_path", 2147483546, pa.string(), is_nullable=False),
    Column("pos", 2147483545, pa.int64(), is_nullable=False),
)


class IcebergSource:
    """The newest snapshot of an Apache Iceberg table."""

    def __init__(self, dataset: DatasetConfig, params: IcebergParams) -> None:
        self._dataset, self._params = dataset, params

    @contextmanager
    def open(self, load: Load) -> Iterator[StreamScan]:
        """Open the newest snapshot; see `Source.open`."""
        with newest(self._dataset, self._params, load.deadline) as (root, path):
            table = _Table(root, path, load)
            files = table.files(load.wanted.bounds)
            yield lake_parquet.scan(root, files, table.columns, table.identify, load, version=table.version)

    def has_changed(self, version: str, load: Load) -> bool:
        """Compare the snapshot and the schema of the newest metadata file."""
        with newest(self._dataset, self._params, load.deadline) as (root, path):
            return _Table(root, path, load).version != version


class _Entry(Struct, frozen=True):
    """A file in a manifest. `sequence` is the sequence number of the commit that added the file."""

    path: str
    file: DataFile
    sequence: int
    spec_id: int


class _Table:
    """
    One version of a table.

    Raises:
        SourceError: A metadata file is missing or damaged, or the table needs an unsupported feature.
    """

    def __init__(self, root: TableRoot, path: str, load: Load) -> None:
        self._root = root
        self._load = load
        content = root.read(path, MAX_BYTES)
        with self._understood(path):
            if content[:2] == b"\x1f\x8b":
                content = unpacked(content, _GZIP)
            raw = json.loads(content)
            if raw["format-version"] not in {1, 2}:
                raise root.unsupported(f"version {int(raw['format-version'])} of the format")
            self._metadata: TableMetadata = TableMetadataUtil.parse_raw(content.decode())
            schema = self._metadata.schema()
            self._types = {field.field_id: field.field_type for field in schema.fields}
            self.columns = [_column(field) for field in schema.fields]
            mapping = self._metadata.name_mapping()
            self._ids: Mapping[tuple[str, ...], int] = dict(_ids_of_names(mapping.root)) if mapping else {}
            self._snapshot = self._metadata.current_snapshot()
            current = self._metadata.current_snapshot_id
            if (self._snapshot is None) != (current is None):
                raise ValueError("no such snapshot")
            identity = re.sub(r"[^0-9A-Fa-f-]", "", str(raw.get("table-uuid", "")))[:36]
            self.version = f"{identity}-{current}-{schema.schema_id}"

    def identify(self, part: pa.Field, path: tuple[str, ...]) -> Key | None:
        """See `Identify`. Columns are found by id, or by name in a file without ids."""
        found = lake_parquet.field_id(part)
        return found if found is not None else self._ids.get(path)

    def files(self, bounds: tuple[Bound, ...]) -> list[lake_parquet.DataFile]:
        """
        Return the files that may have rows within *bounds*.

        Raises:
            SourceError: A manifest is missing or damaged, names a file outside the table or in another format, or
                deletes rows in an unsupported way.
        """
        if self._snapshot is None:
            return []
        data: list[_Entry] = []
        deletes: list[_Entry] = []
        for manifest in self._manifests(self._snapshot.manifest_list):
            if manifest.content == ManifestContent.DATA:
                data += [entry for entry in self._entries(manifest) if self._may_hold(entry, bounds)]
            else:
                deletes += self._entries(manifest)
        gone = self._deleted_rows({entry.path: entry for entry in data}, deletes)
        return [
            lake_parquet.DataFile(entry.path, self._constants(entry), _kept(gone.get(entry.path))) for entry in data
        ]

    def _manifests(self, location: str) -> list[ManifestFile]:
        path = self._inside(location)
        content = self._root.read(path, MAX_BYTES)
        with self._understood(path):
            manifests = list(read_manifest_list(AvroContent(content)))
            summary = self._snapshot.summary if self._snapshot is not None else None
            if not manifests and summary is not None and int(summary["total-data-files"] or 0) > 0:
                raise ValueError("a truncated list")
        return manifests

    def _entries(self, manifest: ManifestFile) -> list[_Entry]:
        """Read one manifest, and return its live files."""
        self._load.deadline.check()
        path = self._inside(manifest.manifest_path)
        content = self._root.read(path, MAX_BYTES)
        with self._understood(path):
            files: Any = AvroContent(content)
            live = manifest.fetch_manifest_entry(files)
            counts = (manifest.added_files_count, manifest.existing_files_count)
            if None not in counts and len(live) != sum(count or 0 for count in counts):
                raise ValueError("a manifest with the wrong length")
            return [self._entry(entry, manifest) for entry in live]

    def _entry(self, entry: ManifestEntry, manifest: ManifestFile) -> _Entry:
        file = entry.data_file
        if file.content == DataFileContent.EQUALITY_DELETES:
            raise self._root.unsupported("rows deleted by value (equality deletes)")
        if file.file_format != FileFormat.PARQUET:
            raise self._root.unsupported(f"files of the format {file.file_format.value}")
        if file.key_metadata is not None:
            raise self._root.unsupported("encrypted files")
        if (file.content == DataFileContent.DATA) != (manifest.content == ManifestContent.DATA):
            raise ValueError("deleted rows mixed with live rows")
        if entry.sequence_number is None:  # pyiceberg has filled in values inherited from the manifest.
            raise ValueError("a missing sequence number")
        return _Entry(self._inside(file.file_path), file, entry.sequence_number, manifest.partition_spec_id)

    def _may_hold(self, entry: _Entry, bounds: tuple[Bound, ...]) -> bool:
        if not bounds:
            return True
        lower, upper = entry.file.lower_bounds or {}, entry.file.upper_bounds or {}
        for column in self.columns:
            named = [bound for bound in bounds if bound.column.lower() == column.name.lower()]
            if named:
                kind = self._types[int(column.key)]
                low, high = (_bound(kind, column, encoded.get(int(column.key))) for encoded in (lower, upper))
                if not all(lake_parquet.may_hold(bound, low, high) for bound in named):
                    return False
        return True

    def _constants(self, entry: _Entry) -> dict[Key, pa.Scalar]:
        """Return the values of identity partition columns, which files may omit."""
        with self._understood(entry.path):
            spec = self._metadata.specs()[entry.spec_id]
            by_key = {column.key: column for column in self.columns}
            constants: dict[Key, pa.Scalar] = {}
            for index, field in enumerate(spec.fields):
                if isinstance(field.transform, IdentityTransform) and field.source_id in by_key:
                    kind, value = by_key[field.source_id].type, entry.file.partition[index]
                    value = double_of(value) if kind == pa.float64() else value
                    constants[field.source_id] = pa.scalar(value, kind)
            return constants

    def _deleted_rows(self, data: Mapping[str, _Entry], deletes: list[_Entry]) -> "dict[str, array[int]]":
        """Return the positions of deleted rows, by file."""
        gone: dict[str, array[int]] = {}
        for entry in deletes:
            file = lake_parquet.DataFile(entry.path)
            for batch in lake_parquet.batches(self._root, [file], _DELETES, self.identify, self._load):
                self._load.deadline.check()
                with self._understood(entry.path):
                    locations, positions = (column.to_pylist() for column in batch.columns)
                for location, position in zip(locations, positions, strict=True):
                    path = self._inside(location)
                    # Deletes apply to files that are not newer than the delete.
                    if path not in data or data[path].sequence > entry.sequence:
                        continue
                    if not 0 <= position < data[path].file.record_count:
                        raise _damaged(self._root, entry.path)
                    gone.setdefault(path, array("q")).append(position)
        return gone

    def _inside(self, location: str) -> str:
        """
        Return the path of *location* in the table.

        The path is relative to the table location in the metadata, so a table can be copied or moved as a whole.
        """
        start = _plain(self._metadata.location).rstrip("/") + "/"
        plain = _plain(location)
        path = inside(plain.removeprefix(start)) if plain.startswith(start) else None
        if path is None:
            raise SourceError(
                f"The metadata of '{self._root.shown}' names a file outside the table: only files in the table can "
                "be read."
            )
        return path

    @contextmanager
    def _understood(self, path: str) -> Iterator[None]:
        """Turn any library error about the file *path* into one sentence. The library does not document its errors."""
        try:
            yield
        except (SourceError, SnapshotError, MemoryError):
            raise
        except UnknownCodecError as exc:
            raise self._root.unsupported(f"Avro files that are compressed with {exc}") from None
        except Exception:  # noqa: BLE001
            raise _damaged(self._root, path) from None


def _kept(gone: "array[int] | None") -> pa.BooleanArray | None:
    """Return the mask of remaining rows, up to the last row in *gone*."""
    if gone is None:
        return None
    rows = max(gone) + 1
    bits = bytearray(b"\xff") * ((rows + 7) // 8)
    for position in gone:
        bits[position >> 3] &= ~(1 << (position & 7))
    return pa.BooleanArray.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bits)])


def _plain(location: str) -> str:
    """Return a location in normal form. `s3a:` and `s3n:` are Hadoop's names for `s3:`."""
    return re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:(?://)?(?=/)", "", location))


def _damaged(root: TableRoot, path: str) -> SourceError:
    return SourceError(f"'{path}' of '{root.shown}' is damaged, or does not follow the specification.")


# --- types and columns ------------------------------------------------------------------------------------------------


_PRIMITIVES: Mapping[type[types.IcebergType], pa.DataType] = {
    types.BooleanType: pa.bool_(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.DateType: pa.date32(),
    types.TimeType: pa.time64("us"),
    types.TimestampType: pa.timestamp("us"),
    types.TimestamptzType: pa.timestamp("us", "UTC"),
    types.StringType: pa.string(),
    types.UUIDType: pa.uuid(),
    types.BinaryType: pa.binary(),
    types.FixedType: pa.binary(),
}


def _column(field: types.NestedField) -> Column:
    """
    Return the column for *field*. The key of the column, and of each of its parts, is the field id.

    Raises:
        TypeError: The field's type is unknown here.
    """
    return lake_parquet.column_of(_arrow(field), lambda part: int(part.metadata[FIELD_ID]))


def _arrow(field: types.NestedField) -> pa.Field:
    kind = field.field_type
    if isinstance(kind, types.StructType):
        made = pa.struct(map(_arrow, kind.fields))
    elif isinstance(kind, types.ListType):
        made = pa.list_(_arrow(kind.element_field))
    elif isinstance(kind, types.MapType):
        made = pa.map_(_arrow(kind.key_field), _arrow(kind.value_field))
    elif isinstance(kind, types.DecimalType):
        made = pa.decimal128(kind.precision, kind.scale)
    elif (made := _PRIMITIVES.get(type(kind))) is None:
        raise TypeError(f"no such type: {kind}")
    return pa.field(field.name, made, not field.required, {FIELD_ID: str(field.field_id)})


def _bound(kind: types.IcebergType, column: Column, encoded: bytes | None) -> object:
    """Decode the lower or upper bound of a column in a file; None if it cannot be decoded."""
    if encoded is None or not isinstance(kind, types.PrimitiveType):
        return None
    try:
        # The library represents dates and times as numbers.
        return pa.scalar(from_bytes(kind, encoded), column.type).as_py()
    except (ValueError, TypeError, OverflowError, struct.error, pa.ArrowException):
        # The bound was written when the column was narrower, or is damaged.
        return None


def _ids_of_names(fields: Sequence[MappedField], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the name path and the id of each column, for files without ids."""
    for field in fields:
        for name in field.names:
            if field.field_id is not None:
                yield (*path, name), field.field_id
            yield from _ids_of_names(field.fields, (*path, name))
