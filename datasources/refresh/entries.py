"""What the refresher knows of each dataset, and its queue of runs."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from datasources.control import DatasetState, DatasetStatus, RefreshRun
from queryengine.manifest import Snapshot
from runtimeconf.model import DatasetConfig, ReadyState, RefreshMode
from system.wallclock import seconds_since, utc_in


@dataclass(slots=True)
class QueueEntry:
    """
    A queued run, and the SELECT to run; None loads the whole source.

    `skips` means that it may skip an unchanged source. `begins` is the earliest time, by the clock, at which it starts.
    `joined` are the ids under which other nodes requested it. `caller` is whose request it is: the name or fingerprint
    of a key, empty without authentication; None for the clock. `stop` ends the load. `ready_at` is when it was found
    that only a place for the load was missing.
    """

    entry: "DatasetEntry"
    run: RefreshRun
    sql: str | None
    skips: bool
    mode: RefreshMode
    begins: float
    joined: list[str] = field(default_factory=list)
    caller: str | None = None
    stop: Event = field(default_factory=Event)
    ready_at: float | None = None

    def recorded(self) -> list[tuple[str, RefreshRun]]:
        """Return the name of the dataset with the run, once for each of its ids, for the history."""
        return [(self.entry.config.name, replace(self.run, id=id_)) for id_ in (self.run.id, *self.joined)]


@dataclass(slots=True)
class DatasetEntry:
    """The state of one dataset. Guarded by the refresher's condition."""

    config: DatasetConfig
    waiting: QueueEntry | None = None
    is_running: bool = False
    began: float = 0.0  # of the running load
    file: str | None = None  # of the snapshot that the running load builds
    is_publishing: bool = False
    error: str | None = None
    failures: int = 0  # in a row
    loaded_here: bool = False
    checked_at: str | None = None  # the end of the last run that succeeded
    due: float | None = None
    logged: float | None = None

    def holds_up_ready(self, ready_state: ReadyState) -> bool:
        """Return whether readiness waits for this dataset, which has no data: until it is loaded, or was tried."""
        was_tried = self.loaded_here or self.error is not None
        is_awaited = self.config.required_for_ready and not self.config.is_in_place
        return is_awaited and (ready_state == "on_load" or not was_tried)


def is_stale(dataset: DatasetConfig, snapshot: Snapshot, checked_at: str | None, max_staleness_s: float | None) -> bool:
    """Return whether a dataset that is refreshed periodically, and served, is too old for the runtime to be ready."""
    if max_staleness_s is None or not dataset.acceleration.is_periodic or not dataset.required_for_ready:
        return False
    return seconds_since(last_check(snapshot, checked_at)) > max_staleness_s


def last_check(snapshot: Snapshot, checked_at: str | None) -> str:
    """Return when the served data was last known to be current. The list of runs may be lost, or older than it."""
    return max(snapshot.created_at, checked_at or "")


def reads(entry: DatasetEntry) -> tuple[str, ...]:
    """Return the names of the relations that a materialized view reads; none for any other dataset."""
    return () if entry.config.view is None else entry.config.view.reads


def views_last(entries: Collection[DatasetEntry]) -> list[DatasetEntry]:
    """Return *entries* in an order in which each view comes after what it reads."""
    ordered: list[DatasetEntry] = []
    left = list(entries)
    while left:
        names = {entry.config.name.lower() for entry in left}
        ordered += [entry for entry in left if names.isdisjoint(reads(entry))]
        left = [entry for entry in left if not names.isdisjoint(reads(entry))]
    return ordered


def state_of(entry: DatasetEntry, snapshot: Snapshot | None, now: float) -> DatasetState:
    """Return the state of a dataset that serves *snapshot*. *now* is by the monotonic clock of `due`, in seconds."""
    has_data = snapshot is not None or entry.config.is_in_place
    status: DatasetStatus = "Ready" if has_data else "Initializing"
    if entry.is_running and snapshot is not None:
        status = "Refreshing"
    elif entry.error is not None:
        status = "Error"
    checked_at = None if snapshot is None else last_check(snapshot, entry.checked_at)
    return DatasetState(
        from_=entry.config.from_,
        name=entry.config.name,
        acceleration_enabled=entry.config.acceleration.enabled,
        status=status,
        rows=None if snapshot is None else snapshot.rows,
        refreshed_at=None if snapshot is None else snapshot.created_at,
        snapshot=None if snapshot is None else Path(snapshot.file).stem,
        error=entry.error,
        checked_at=checked_at,
        next_refresh_at=None if entry.due is None else utc_in(max(0.0, entry.due - now)),
        age_s=None if checked_at is None else int(seconds_since(checked_at)),
        bytes=None if snapshot is None else snapshot.size_bytes,
        description=entry.config.documentation.description,
        metadata=dict(entry.config.documentation.metadata),
    )
