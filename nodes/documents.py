"""
The documents that nodes share. A document may come from a node with a different release.

::

    manifest.json        which snapshots are published; each version conditionally replaces the previous one
    lease.json           which node publishes
    state.json           the progress of refreshes, for other nodes to show
    nodes/ID.json        that a node is alive, and which snapshots it still reads
    requests/ID.json     a refresh that was requested of another node
    snapshots/FILE       the snapshots, and their rows as Parquet for a cluster
"""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Self

import msgspec

from datasources.control import MAX_CALLER_LENGTH, DatasetState, RefreshRun
from datasources.errors import SharedStorageError
from datasources.snapshots.snapshot import SNAPSHOT_FILE
from queryengine.manifest import FORMAT_VERSION, Snapshot
from runtimeconf.model import RefreshMode
from system.wallclock import seconds_since

MANIFEST, LEASE, STATE = "manifest.json", "lease.json", "state.json"
NODES, REQUESTS, SNAPSHOTS = "nodes", "requests", "snapshots"

#: A non-negative counter that is far from overflowing.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all documents."""

    _NAME: ClassVar[str] = ""  # for people

    format_version: int = FORMAT_VERSION

    def encode(self) -> bytes:
        """Return the encoded document. Strings may be file names that are not valid UTF-8, which JSON escapes."""
        return json.dumps(msgspec.to_builtins(self), separators=(",", ":")).encode("ascii")

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Decode a document. Raises SharedStorageError."""
        try:
            fields = json.loads(content)
            if fields["format_version"] == FORMAT_VERSION:
                return msgspec.convert(fields, cls)
        except (ValueError, KeyError, TypeError, RecursionError, msgspec.MsgspecError) as exc:
            raise SharedStorageError(
                f"The {cls._NAME} of runtime.snapshots has an unexpected format: something else is writing there."
            ) from exc
        raise SharedStorageError(
            f"The {cls._NAME} of runtime.snapshots is from another release: all nodes must run the same release."
        )


class SharedManifest(_Document, frozen=True, kw_only=True):
    """
    The published snapshots.

    `node` wrote the manifest under the lease with this `epoch`. `generation` increases with each version. For `former`,
    see `queryengine.manifest.Manifest`.
    """

    _NAME = MANIFEST

    epoch: Count
    node: str
    generation: Count
    snapshots: tuple[Snapshot, ...]
    former: tuple[Snapshot, ...] = ()

    def __post_init__(self) -> None:
        """Refuse invalid snapshots, because this node uses their file names in its file operations."""
        for one in self.snapshots:
            if SNAPSHOT_FILE.fullmatch(one.file) is None or not (0 < one.size_bytes < 2**62 and 0 <= one.rows < 2**62):
                raise ValueError("not a snapshot")
            seconds_since(one.created_at)
        files, datasets = {one.file for one in self.snapshots}, {one.dataset for one in self.snapshots}
        if len(files) < len(self.snapshots) or len(datasets) < len(self.snapshots):
            raise ValueError("each dataset must have one snapshot, in its own file")


NOTHING_PUBLISHED = SharedManifest(epoch=0, node="", generation=0, snapshots=())


class Holder(_Document, frozen=True, kw_only=True):
    """The publisher: the *node* with the lease, or none if empty. `beat` increases while that node is alive."""

    _NAME = LEASE

    epoch: Count
    node: str
    beat: Count


class SharedState(_Document, frozen=True, kw_only=True, dict=True):
    """
    The datasets, and the refreshes by dataset name, as reported by the node with the lease *epoch*.

    `sources` are the fingerprints of that node's declarations, by dataset name.
    """

    _NAME = STATE

    epoch: Count
    datasets: tuple[DatasetState, ...]
    runs: Mapping[str, tuple[RefreshRun, ...]]
    sources: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        """Refuse invalid times, because the age of data is computed from them."""
        checked = [state.checked_at for state in self.datasets]
        finished = [run.finished_at for runs in self.runs.values() for run in runs]
        for time in (*checked, *finished):
            if time is not None:
                seconds_since(time)

    @cached_property
    def by_name(self) -> Mapping[str, DatasetState]:
        """The datasets by their names."""
        return {state.name: state for state in self.datasets}


class Presence(_Document, frozen=True, kw_only=True):
    """
    Shows that a node is alive: `beat` increases.

    `reads` are the snapshot files that the node is about to load, and `lacks` the datasets that it waits for because
    nobody has published them as it declares them, each with the `fingerprint` of its declaration. `holds` are the
    datasets that it serves although nobody publishes them with their definition, or soon may not: name, fingerprint,
    and when they were loaded.
    """

    _NAME = NODES

    beat: Count
    reads: tuple[str, ...]
    lacks: Mapping[str, str] = {}
    holds: tuple[tuple[str, str, str], ...] = ()


class RefreshRequest(_Document, frozen=True, kw_only=True):
    """
    A refresh of *dataset* that a node was asked for; see `DatasetControl.request_refresh`.

    The process that runs *sql* checks it again because anybody who can write to the storage could have put it there.
    *source* is the `declaration_of` the dataset on the node that accepted the request.
    """

    _NAME = REQUESTS

    dataset: str
    requested_at: str
    source: str = ""
    sql: str | None = None
    mode: RefreshMode | None = None
    jitter_max_s: Annotated[float, msgspec.Meta(ge=0, lt=1e9)] = 0.0
    caller: Annotated[str, msgspec.Meta(max_length=MAX_CALLER_LENGTH)] = ""
