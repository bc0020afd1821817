"""
The catalog of published data: one manifest, replaced as a whole by an atomic rename.

`datasets` builds snapshots and publishes; `queryengine` reads. A snapshot is one immutable DuckDB file that holds
one table named like its dataset.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Of the manifest and of the snapshots. Another number on disk means: rebuild from the sources, with a warning.
FORMAT_VERSION = 1

MANIFEST_NAME = "manifest.json"
SNAPSHOT_DIRECTORY = "snapshots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a dataset: its name and its DuckDB type, such as `DECIMAL(18,3)`."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    One published version of one dataset.

    `file` is a name inside `SNAPSHOT_DIRECTORY`; `sha256` and `size_bytes` are of that file; `created_at` is
    ISO 8601 in UTC; `source` fingerprints the settings it was built from, so that a changed YAML rebuilds it.
    """

    dataset: str
    file: str
    rows: int
    size_bytes: int
    sha256: str
    created_at: str
    source: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All published snapshots. `generation` grows by one with each publication."""

    generation: int
    snapshots: tuple[Snapshot, ...] = ()
