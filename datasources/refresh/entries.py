"""What the refresher knows of each dataset, and its queue of runs."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from datasources.control import DatasetState, DatasetStatus, RefreshRun
from queryengine.manifest import Snapshot
from runtimeconf.model import DatasetConfig, ReadyState, RefreshMode
from system.wallclock import seconds_since, utc_in


@dataclass(slots=True)
class QueueEntry:
    """
    A queued run, and the SELECT to run; None loads the whole source.

    `skips` means that it may skip an unchanged source. `begins` is the earliest time, by the clock, at which it starts.
    """

    entry: "DatasetEntry"
    run: RefreshRun
    sql: str | None
    skips: bool
    mode: RefreshMode
    begins: float


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
        return self.config.required_for_ready and (ready_state == "on_load" or not was_tried)


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
    status: DatasetStatus = "Initializing" if snapshot is None else "Ready"
    if entry.is_running and snapshot is not None:
        status = "Refreshing"
    elif entry.error is not None:
        status = "Error"
    # The list of runs may be lost, or older than a snapshot from a backup.
    checked_at = None if snapshot is None else max(snapshot.created_at, entry.checked_at or "")
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
    )
