"""
`delta:` sources: Delta Lake tables on disk and in S3.

The deltalake library determines the files of the newest version from a checked copy of the log, and `lake_parquet`
reads them. The library's reader is not used because it opens any location that the log names, truncates numbers, and
finds columns by name even if the table uses ids.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from connectors.delta.log import LogCopy, commit_path, outside
from connectors.lake import TableRoot, inside
from connectors.lake_parquet import DataFile, Key, column_of, field_id, may_hold, scan
from connectors.lake_storage import root_of
from datasources.errors import SourceError
from datasources.sources.source import Bound, Load
from datasources.sources.streams import StreamScan
from runtimeconf.model import DatasetConfig
from runtimeconf.s3_params import S3Params

#: The supported reader features. Catalog-managed commits are not among them.
_FEATURES = frozenset(
    {
        *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview"),
        *("v2Checkpoint", "vacuumProtocolCheck"),
    }
)
#: Features that affect only columns of unsupported types. Writers enable some of them for every table.
_TYPE_FEATURES = frozenset(
    {
        *("variantType", "variantType-preview", "variantShredding", "variantShredding-preview"),
        "timestampNanos",
    }
)
#: The supported primitive types.
_PRIMITIVES = frozenset(
    {
        *("string", "long", "integer", "short", "byte", "float", "double", "decimal", "boolean", "binary"),
        *("date", "timestamp", "timestamp_ntz"),
    }
)
#: The features for which the library lists deleted rows.
_LISTING_FEATURES = frozenset({"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint"})
_MAX_READER_VERSION = 3

#: The library's messages about unsupported features.
_UNSUPPORTED = re.compile(r"Feature '([A-Za-z0-9_-]{1,60})' is not supported|loading a (catalog-managed) table")


class DeltaSource:
    """The newest version of a Delta Lake table."""

    def __init__(self, dataset: DatasetConfig, params: S3Params) -> None:
        self._dataset, self._params = dataset, params

    @contextmanager
    def open(self, load: Load) -> Iterator[StreamScan]:
        """Open the newest version; see `Source.open`."""
        with root_of(self._dataset, self._params, load.deadline) as root:
            log = LogCopy(root, load)
            table = _Table(root, log)
            files = table.files(load.wanted.bounds)
            version = f"{log.version}-{root.stamp(commit_path(log.version))}-{table.id}"
            yield scan(root, files, table.columns, table.identify, load, version=version)

    def has_changed(self, version: str, load: Load) -> bool:
        """Check for a newer commit, and whether the last commit is unchanged."""
        number, stamp, _ = version.split("-")
        with root_of(self._dataset, self._params, load.deadline) as root:
            return root.has(commit_path(int(number) + 1)) or root.stamp(commit_path(int(number))) != stamp


class _Table:
    """
    One version of a table.

    Raises:
        SourceError: The log is damaged, or the table needs an unsupported feature.
    """

    def __init__(self, root: TableRoot, log: LogCopy) -> None:
        self._root = root
        self._log = log
        self._table = self._opened()
        with self._understood():
            metadata = self._table.metadata()
            described_schema = self._table.schema()
            schema = pa.schema(described_schema.to_arrow())
            types = frozenset(_primitives(json.loads(described_schema.to_json())))
        features = self._features = self._supported_features(types)
        self._mode = metadata.configuration.get("delta.columnMapping.mode", "none")
        if self._mode not in {"none", "name", "id"} or (self._mode != "none" and "columnMapping" not in features):
            raise SourceError(f"'{root.shown}' uses a column mapping that its protocol does not allow.")
        if log.has_deletion_vectors and "deletionVectors" not in features:
            raise SourceError(f"'{root.shown}' deletes rows in a way that its protocol does not allow.")
        self.id = hashlib.sha256(str(metadata.id).encode()).hexdigest()[:32]
        self.columns = [column_of(described, self._key) for described in schema]
        by_name = {column.name: column for column in self.columns}
        self._partitions = {name: by_name[name] for name in metadata.partition_columns if name in by_name}
        self._physical = {
            column.name: _physical_name(described) for column, described in zip(self.columns, schema, strict=True)
        }

    def identify(self, part: pa.Field, path: tuple[str, ...]) -> Key | None:
        """See `Identify`. Columns are found by name unless the table uses ids."""
        return field_id(part) if self._mode == "id" else str(part.name)

    def files(self, bounds: tuple[Bound, ...]) -> list[DataFile]:
        """
        Return the files that may have rows within *bounds*.

        Raises:
            SourceError: A file is outside the table, or the library fails.
        """
        kept = self._kept_rows()
        files = [
            file
            for file, ends in self._entries(kept)
            if all(may_hold(bound, *ends.get(bound.column.lower(), (None, None))) for bound in bounds)
        ]
        if kept:
            raise SourceError(f"The log of '{self._root.shown}' deletes rows of files that do not belong to the table.")
        return files

    def _opened(self) -> DeltaTable:
        table = None
        for _ in self._log.steps():
            with self._understood():
                if table is None:
                    table = DeltaTable(self._log.directory.as_uri())
                else:
                    table.update_incremental()
        if table is None or table.version() != self._log.version:
            raise _damaged(self._root)
        return table

    def _key(self, described: pa.Field) -> Key:
        if self._mode == "id" and (number := (described.metadata or {}).get(b"delta.columnMapping.id")) is not None:
            return int(number)
        return _physical_name(described) if self._mode == "name" else str(described.name)

    def _supported_features(self, types: frozenset[str]) -> frozenset[str]:
        """Return the features that the table uses. *types* are the types of its columns, including nested types."""
        with self._understood():
            protocol = self._table.protocol()
        features = frozenset(protocol.reader_features or ())
        if protocol.min_reader_version == 2:
            features |= {"columnMapping"}
        if types <= _PRIMITIVES:
            features -= _TYPE_FEATURES
        unknown = sorted(features - _FEATURES)
        if unknown or protocol.min_reader_version > _MAX_READER_VERSION:
            what = ", ".join(unknown) or f"version {protocol.min_reader_version} of the protocol"
            raise self._root.unsupported(what)
        return features

    def _entries(self, kept: dict[str, pa.BooleanArray]) -> Iterator[tuple[DataFile, Mapping[str, tuple[Any, Any]]]]:
        """Yield each file with the known minimum and maximum of its columns, by lower-case name."""
        with self._understood():
            # pa.table() would import pandas if it is installed.
            actions = pa.RecordBatchReader.from_stream(self._table.get_add_actions()).read_all()
        for batch in actions.to_batches():
            lists = {name: batch.column(name) for name in batch.schema.names}
            for index, text in enumerate(lists["path"].to_pylist()):
                # Paths are URL-encoded.
                path = inside(unquote(text))
                if path is None:
                    raise outside(self._root)
                partition = lists["partition"][index] if self._partitions else {}
                constants = {column.key: _constant(partition[name]) for name, column in self._partitions.items()}
                if any(
                    pa.types.is_binary(value.type) and b"\\u" in (value.as_py() or b"") for value in constants.values()
                ):
                    # Some readers take the escapes for the bytes, and others for text.
                    raise self._root.unsupported("binary partition columns whose values are escaped")
                values = zip(self._partitions, constants.values(), strict=True)
                ends = {name.lower(): (_known(value),) * 2 for name, value in values}
                low, high = (lists[name][index] if name in lists else {} for name in ("min", "max"))
                for name, physical in self._physical.items():
                    found = _known_in(low, physical), _known_in(high, physical)
                    # Decimal statistics were rounded to doubles.
                    if not any(isinstance(value, Decimal) for value in found):
                        ends.setdefault(name.lower(), found)
                yield DataFile(path, constants, kept.pop(path, None)), ends

    def _kept_rows(self) -> dict[str, pa.BooleanArray]:
        """Return the remaining rows by file path."""
        if not self._log.has_deletion_vectors:
            return {}
        kept = {}
        self._log.copy_deletion_vectors()
        # The library refuses to list deleted rows if the table uses certain unrelated features.
        self._log.require(self._features & _LISTING_FEATURES)
        with self._understood():
            self._table.update_incremental()
            reader = pa.RecordBatchReader.from_stream(self._table.deletion_vectors())
            for batch in reader:
                vectors = batch.column("selection_vector")
                for index, location in enumerate(batch.column("filepath").to_pylist()):
                    path = inside(unquote(location.removeprefix(f"{self._log.directory.as_uri()}/"))) or location
                    kept[path] = vectors[index].values
        return kept

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except (SourceError, MemoryError):
            raise
        except Exception as exc:  # noqa: BLE001 (the library raises errors of many types)
            if (feature := _UNSUPPORTED.search(str(exc))) is not None:
                raise self._root.unsupported(feature[feature.lastindex or 0]) from None
            raise _damaged(self._root) from None


def _primitives(kind: Any) -> Iterator[str]:
    """Yield the names of the primitive types in *kind*, a type in the JSON of the log."""
    if isinstance(kind, str):
        yield kind.partition("(")[0]
        return
    parts = [described["type"] for described in kind.get("fields", ())]
    for part in [*parts, *(kind[name] for name in ("elementType", "keyType", "valueType") if name in kind)]:
        yield from _primitives(part)


def _damaged(root: TableRoot) -> SourceError:
    return SourceError(f"The log of '{root.shown}' is damaged, or does not follow the protocol.")


def _physical_name(described: pa.Field) -> str:
    name: bytes = (described.metadata or {}).get(b"delta.columnMapping.physicalName", described.name.encode())
    return name.decode()


def _constant(value: pa.Scalar) -> pa.Scalar:
    """Return the value of a partition column. An empty string means null in the protocol."""
    return pa.scalar(None, value.type) if _known(value) in {"", b""} else value


def _known(value: pa.Scalar) -> Any:
    """Return *value* as a Python object; None if Python has none, as for a date after the year 9999."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return None


def _known_in(values: Mapping[str, pa.Scalar], name: str) -> Any:
    return _known(values[name]) if name in values else None
