"""Iceberg tables written by the library through a SQL catalog, and snapshots that it does not write itself."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record

#: The table of a SQL catalog, as pyiceberg makes it.
_CATALOG = """
CREATE TABLE IF NOT EXISTS iceberg_tables (
    catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
    metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
)
"""


class SqliteCatalog(NoopCatalog, MetastoreCatalog):
    """
    A SQL catalog in `catalog.db`, whose warehouse is `wh`, both in *directory*.

    The library's own needs SQLAlchemy 2, and other tests need SQLAlchemy 1.4.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__("default")
        self.file = directory / "catalog.db"
        self.warehouse = directory / "wh"
        self.execute(_CATALOG)

    def execute(self, sql: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            return connection.execute(sql, values).fetchall()

    def make(
        self, name: str, schema: Any, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC, **properties: str
    ) -> Table:
        """Create the table *name* in the namespace `ns`."""
        location = (self.warehouse / "ns" / name).absolute()
        staged = self._create_staged_table(
            ("ns", name), schema, f"file://{location}", spec, UNSORTED_SORT_ORDER, properties
        )
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self.execute(
            "INSERT INTO iceberg_tables VALUES (?, ?, ?, ?, NULL, 'TABLE')",
            *("default", "ns", name, staged.metadata_location),
        )
        return self.load_table(("ns", name))

    def load_table(self, identifier: Any) -> Table:
        name = identifier[-1]
        ((location,),) = self.execute("SELECT metadata_location FROM iceberg_tables WHERE table_name = ?", name)
        files = PyArrowFileIO()
        return Table(("ns", name), FromInputFile.table_metadata(files.new_input(location)), location, files, self)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        staged = self._update_and_stage_table(self.load_table(table.name()), table.name(), requirements, updates)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self.execute(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?",
            *(staged.metadata_location, table.name()[-1]),
        )
        return CommitTableResponse.model_validate(
            {"metadata": staged.metadata, "metadata-location": staged.metadata_location}
        )


def place(table: Table) -> Path:
    """Return the directory of a table."""
    return Path(table.location().removeprefix("file://"))


def rewrite(table: Table, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write the next metadata file, which *change* makes of the newest one, and return its path."""
    newest = max((place(table) / "metadata").glob("*.metadata.json"))
    content = json.loads(newest.read_text())
    change(content)
    target = newest.with_name(f"{int(newest.name[:5]) + 1:05}-by-hand.metadata.json")
    target.write_text(json.dumps(content))
    return target


def data_file(table: Table, path: str, rows: int, **more: Any) -> DataFile:
    """Describe a file, by its path in the table or a whole location."""
    described: dict[str, Any] = {
        "content": DataFileContent.DATA,
        "file_path": path if ":" in path or path.startswith("/") else f"{table.location()}/{path}",
        "file_format": FileFormat.PARQUET,
        "partition": Record(),
        "record_count": rows,
        "file_size_in_bytes": 1,
    }
    return DataFile.from_args(**(described | more))


def deletes(table: Table, name: str, path: str, positions: Sequence[int]) -> DataFile:
    """Write a file that deletes rows of another one, and describe it."""
    fields = [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
    rows = pa.table([[path] * len(positions), list(positions)], schema=pa.schema(fields))
    pq.write_table(rows, place(table) / name)
    return data_file(table, name, len(positions), content=DataFileContent.POSITION_DELETES)


class _Writer(ManifestWriterV2):
    def __init__(self, content: ManifestContent, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._kind = content

    def content(self) -> ManifestContent:
        return self._kind


def commit(
    table: Table,
    *files: DataFile,
    content: ManifestContent = ManifestContent.DATA,
    named: str | None = None,
    codec: Literal["null", "deflate"] = "deflate",
) -> Path:
    """
    Add *files* to the newest version of a table by hand, in a manifest that the list calls *named*.

    Returns the path of the manifest.
    """
    newest = FromInputFile.table_metadata(
        table.io.new_input(str(max((place(table) / "metadata").glob("*.metadata.json"))))
    )
    assert isinstance(newest, TableMetadataV2)
    number = newest.last_sequence_number + 1
    path = f"{table.location()}/metadata/manifest-{number}.avro"
    listed = f"{table.location()}/metadata/list-{number}.avro"
    with _Writer(content, newest.spec(), newest.schema(), table.io.new_output(path), number, codec) as writer:
        for file in files:
            entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file)
            writer.add_entry(entry)
    manifest = writer.to_manifest_file()
    manifest[0] = named or path
    before = newest.current_snapshot()
    earlier = list(before.manifests(table.io)) if before is not None else []
    with write_manifest_list(2, table.io.new_output(listed), number, None, number, "null") as manifests:
        manifests.add_manifests([*earlier, manifest])

    def change(content: dict[str, Any]) -> None:
        snapshot = {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": 1,
            "manifest-list": listed,
            "summary": {"operation": "append", "total-data-files": "1"},
        }
        content["snapshots"] = [*content.get("snapshots", []), snapshot]
        content["refs"] = {"main": {"snapshot-id": number, "type": "branch"}}
        content["current-snapshot-id"] = content["last-sequence-number"] = number

    rewrite(table, change)
    return Path(path.removeprefix("file://"))
