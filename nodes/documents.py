"""
The documents that nodes share. What is read was written by another node, perhaps of another release.

::

    manifest.json        which snapshots are published; each version replaces the one before, on condition
    lease.json           which node publishes
    state.json           how the refreshes go, for the other nodes to show
    nodes/ID.json        that a node is alive, and which snapshots it still reads
    requests/ID.json     a refresh that was requested of another node
    snapshots/FILE       the snapshots, and their rows as Parquet for a cluster
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from datasources.control import MAX_CALLER_LENGTH, DatasetState, RefreshRun, run_of, state_of
from datasources.errors import SharedStorageError
from datasources.snapshots.snapshot import SNAPSHOT_FILE
from queryengine.manifest import FORMAT_VERSION, Snapshot, snapshot_fields, snapshot_of
from runtimeconf.model import RefreshMode
from system.wallclock import seconds_since

MANIFEST, LEASE, STATE = "manifest.json", "lease.json", "state.json"
NODES, REQUESTS, SNAPSHOTS = "nodes", "requests", "snapshots"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedManifest:
    """
    The published snapshots.

    `node` wrote it, under the lease with this `epoch`; `generation` grows with each version.
    """

    epoch: int = 0
    node: str = ""
    generation: int = 0
    snapshots: tuple[Snapshot, ...] = ()

    def encode(self) -> bytes:
        """Return the document."""
        return _encode(
            epoch=self.epoch,
            node=self.node,
            generation=self.generation,
            snapshots=[snapshot_fields(snapshot) for snapshot in self.snapshots],
        )

    @classmethod
    def decode(cls, content: bytes) -> "SharedManifest":
        """Return the manifest in a document. Raises SharedStorageError."""
        return _decoded(
            MANIFEST,
            content,
            lambda fields: cls(
                epoch=_count(fields["epoch"]),
                node=str(fields["node"]),
                generation=_count(fields["generation"]),
                snapshots=_snapshots_of(fields["snapshots"]),
            ),
        )


def _snapshots_of(items: list[dict[str, Any]]) -> tuple[Snapshot, ...]:
    snapshots = tuple(map(_snapshot_of, items))
    if len({one.file for one in snapshots}) < len(snapshots) or len({one.dataset for one in snapshots}) < len(
        snapshots
    ):
        raise ValueError("each dataset has one snapshot, in a file of its own")
    return snapshots


def _snapshot_of(item: dict[str, Any]) -> Snapshot:
    snapshot = snapshot_of(item)
    columns = [text for column in snapshot.columns for text in (column.name, column.type)]
    texts = (snapshot.dataset, snapshot.sha256, snapshot.source, *columns)
    if not all(isinstance(text, str) for text in texts) or not isinstance(snapshot.source_version, str | None):
        raise TypeError("not the texts of a snapshot")
    # The file becomes a part of what this node does with files.
    if SNAPSHOT_FILE.fullmatch(snapshot.file) is None or _count(snapshot.size_bytes) < 1:
        raise ValueError("not the file of a snapshot")
    _count(snapshot.rows)
    seconds_since(snapshot.created_at)
    return snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who publishes: the *node* with the lease, none if it is empty. `beat` grows while that node is alive."""

    epoch: int
    node: str
    beat: int

    def encode(self) -> bytes:
        """Return the document."""
        return _encode(**asdict(self))

    @classmethod
    def decode(cls, content: bytes) -> "Holder":
        """Return the holder in a document. Raises SharedStorageError."""
        return _decoded(
            LEASE,
            content,
            lambda fields: cls(epoch=_count(fields["epoch"]), node=str(fields["node"]), beat=_count(fields["beat"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedState:
    """What the node with the lease *epoch* says about datasets and refreshes, both by the names of datasets."""

    epoch: int
    datasets: Mapping[str, DatasetState]
    runs: Mapping[str, tuple[RefreshRun, ...]]

    def encode(self) -> bytes:
        """Return the document."""
        return _encode(
            epoch=self.epoch,
            datasets=[asdict(state) for state in self.datasets.values()],
            runs={name: [asdict(run) for run in runs] for name, runs in self.runs.items()},
        )

    @classmethod
    def decode(cls, content: bytes) -> "SharedState":
        """Return the state in a document. Raises SharedStorageError."""

        def shared(fields: Mapping[str, Any]) -> SharedState:
            states = [state_of(item) for item in fields["datasets"]]
            return cls(
                epoch=_count(fields["epoch"]),
                datasets={state.name: state for state in states},
                runs={name: tuple(map(run_of, runs)) for name, runs in fields["runs"].items()},
            )

        return _decoded(STATE, content, shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """That a node is alive: `beat` grows. `reads` are the files of snapshots that it is about to load."""

    beat: int
    reads: tuple[str, ...]

    def encode(self) -> bytes:
        """Return the document."""
        return _encode(**asdict(self))

    @classmethod
    def decode(cls, content: bytes) -> "Presence":
        """Return the presence in a document. Raises SharedStorageError."""
        return _decoded(
            NODES, content, lambda fields: cls(beat=_count(fields["beat"]), reads=tuple(map(str, fields["reads"])))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRequest:
    """
    A refresh of *dataset* that was requested of a node; see `DatasetControl.request_refresh`.

    The process that runs *sql* checks it again: whoever can write to the storage could have put it there.
    """

    dataset: str
    requested_at: str
    sql: str | None = None
    mode: RefreshMode | None = None
    jitter_max_s: float = 0.0
    caller: str = ""

    def encode(self) -> bytes:
        """Return the document."""
        return _encode(**asdict(self))

    @classmethod
    def decode(cls, content: bytes) -> "RefreshRequest":
        """Return the request in a document. Raises SharedStorageError."""

        def request_of(fields: Mapping[str, Any]) -> RefreshRequest:
            sql, mode, jitter_max_s = fields["sql"], fields["mode"], float(fields["jitter_max_s"])
            caller = fields.get("caller", "")  # A node of an earlier release does not write it.
            is_valid = isinstance(sql, str | None) and mode in {None, "full", "append"} and 0 <= jitter_max_s < 1e9
            if not is_valid or not isinstance(caller, str) or len(caller) > MAX_CALLER_LENGTH:
                raise ValueError("not a request")
            return cls(
                dataset=str(fields["dataset"]),
                requested_at=str(fields["requested_at"]),
                sql=sql,
                mode=mode,
                jitter_max_s=jitter_max_s,
                caller=caller,
            )

        return _decoded(REQUESTS, content, request_of)


def _count(value: object) -> int:
    """Return *value* if it is a whole number that can count something, with room for more."""
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError("not a count")
    return value


def _encode(**fields: Any) -> bytes:
    return json.dumps({"format_version": FORMAT_VERSION, **fields}, separators=(",", ":")).encode("ascii")


def _decoded(name: str, content: bytes, decode: Callable[[Mapping[str, Any]], _T]) -> _T:
    try:
        fields = json.loads(content)
        if fields["format_version"] != FORMAT_VERSION:
            raise SharedStorageError(
                f"The {name} of runtime.snapshots is of another release: all nodes need the same one."
            )
        return decode(fields)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise SharedStorageError(
            f"The {name} of runtime.snapshots is not what this release writes: something else writes there."
        ) from exc
