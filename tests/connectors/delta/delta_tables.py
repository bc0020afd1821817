"""Delta tables written by hand, by the transaction log protocol: what the library does not write itself."""

import base64
import json
import uuid
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

#: From the digits of base64.b85encode to those of Z85.
_TO_Z85 = bytes.maketrans(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)


def field(name: str, kind: Any, *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def mapped(name: str, kind: Any, number: int) -> dict[str, Any]:
    """Describe a column that files know as `col-NUMBER`."""
    metadata: dict[str, Any] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    return field(name, kind, **metadata)


class HandMade:
    """A table below *directory*, whose commits are written one by one."""

    def __init__(
        self,
        directory: Path,
        fields: Sequence[Mapping[str, Any]],
        *,
        features: Sequence[str] | None = None,
        reader: int = 1,
        partition_by: Sequence[str] = (),
        **configuration: str,
    ) -> None:
        self.directory = directory
        self.log = directory / "_delta_log"
        self.log.mkdir(parents=True)
        self.version = -1
        protocol: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": {1: 2, 2: 5}.get(reader, 7)}
        if features is not None:
            protocol |= {"minReaderVersion": 3, "minWriterVersion": 7}
            protocol |= {"readerFeatures": features, "writerFeatures": features}
        self.head = [
            {"protocol": protocol},
            {
                "metaData": {
                    "id": str(uuid.uuid4()),
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
                    "partitionColumns": list(partition_by),
                    "configuration": {key.replace("_", "."): value for key, value in configuration.items()},
                    "createdTime": 1,
                }
            },
        ]
        self.commit(*self.head)

    def commit(self, *actions: Any) -> None:
        self.version += 1
        self.put_commit("".join(json.dumps(action) + "\n" for action in actions))

    def put_commit(self, text: str) -> None:
        (self.log / f"{self.version:020}.json").write_text(text)

    def put(self, name: str, rows: pa.Table, **options: Any) -> None:
        (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, self.directory / name, **options)

    def add(self, name: str, rows: pa.Table | None = None, **more: Any) -> dict[str, Any]:
        """Return the action that adds a file, which is written where *rows* are given."""
        options = more.pop("options", {})
        if rows is not None:
            self.put(name, rows, **options)
            more.setdefault("stats", json.dumps({"numRecords": rows.num_rows}))
        action = {"path": name, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
        return {"add": action | more}

    def deletion_vector(self, positions: Sequence[int], prefix: str = "") -> dict[str, Any]:
        """Write which rows of a file are deleted, and return what an `add` says of it."""
        name = uuid.uuid4()
        content = _roaring(positions)
        framed = len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
        path = self.directory / prefix / f"deletion_vector_{name}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x01" + framed)
        encoded = prefix + base64.b85encode(name.bytes).translate(_TO_Z85).decode()
        vector = {"storageType": "u", "pathOrInlineDv": encoded, "offset": 1}
        return vector | {"sizeInBytes": len(content), "cardinality": len(positions)}

    def checkpoint_v2(self, *adds: Mapping[str, Any], sidecar: str = "side.parquet", place: str = "") -> None:
        """Write a checkpoint of the newest version in two files; *place* is the path of the second one, if given."""
        target = Path(place) if place else self.log / "_sidecars" / sidecar
        target.parent.mkdir(parents=True, exist_ok=True)
        entries = pa.struct(
            {
                "path": pa.string(),
                "partitionValues": pa.map_(pa.string(), pa.string()),
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
            }
        )
        values = [{**add["add"], "partitionValues": []} for add in adds]
        pq.write_table(pa.table({"add": pa.array(values, entries)}), target)
        named = {"path": sidecar, "sizeInBytes": target.stat().st_size, "modificationTime": 1, "tags": {}}
        actions = [{"checkpointMetadata": {"version": self.version, "tags": {}}}, *self.head, {"sidecar": named}]
        name = f"{self.version:020}.checkpoint.{uuid.uuid4()}.json"
        (self.log / name).write_text("".join(json.dumps(action) + "\n" for action in actions))
        (self.log / f"{self.version:020}.json").unlink()


def _roaring(positions: Sequence[int]) -> bytes:
    """Encode positions below 65536 as a 64-bit Roaring bitmap of one array container, after the magic number."""
    bitmap = (12346).to_bytes(4, "little") + (1).to_bytes(4, "little")
    bitmap += (0).to_bytes(2, "little") + (len(positions) - 1).to_bytes(2, "little") + (16).to_bytes(4, "little")
    bitmap += b"".join(position.to_bytes(2, "little") for position in sorted(positions))
    return (1681511377).to_bytes(4, "little") + (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + bitmap
