"""The state that the refresher keeps for each dataset and each queued run."""

import time
from collections.abc import Collection, Iterator
from pathlib import Path
from threading import Event

from msgspec import Struct, field
from msgspec.structs import replace

from datasources.control import DatasetState, DatasetStatus, RefreshPhase, RefreshRun
from datasources.errors import UnknownDatasetError
from datasources.snapshots.directory import SnapshotDirectory
from queryengine.manifest import Snapshot, with_readers
from runtimeconf.model import DatasetConfig, RefreshMode, RuntimeConfig
from system.wallclock import seconds_since, utc_in

#: The error of a view. It names no dataset, because a key may see the view but not the datasets that it reads.
_UNREADABLE = "A dataset or view that it reads cannot be loaded."

#: Seconds by which the clock of another node may be ahead.
_AHEAD_S = 60.0


def milliseconds_since(began: float) -> int:
    """Return the milliseconds since *began*, in seconds on the monotonic clock."""
    return round((time.monotonic() - began) * 1000)


class QueueEntry(Struct):
    """
    A queued run, and the SELECT to run, or None to load the whole source.

    `skips` means that the run may skip an unchanged source. `begins` is the earliest time at which it may start.
    `joined` contains the ids under which other nodes requested it. `caller` is the name or fingerprint of the
    requesting key, empty without authentication, or None for a scheduled run. Setting `stop` ends the load. Since
    `ready_at`, the run has only been waiting for a free slot.
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
        """Return the dataset name with the run, once for each of the run's ids, for the history."""
        return [(self.entry.config.name, replace(self.run, id=id_)) for id_ in (self.run.id, *self.joined)]


class DatasetEntry(Struct):
    """The state of one dataset. Guarded by the refresher's condition."""

    config: DatasetConfig
    waiting: QueueEntry | None = None
    is_running: bool = False
    began: float = 0.0  # of the running load
    file: str | None = None  # of the snapshot that the running load builds
    is_publishing: bool = False
    error: str | None = None
    failures: int = 0  # consecutive
    loaded_here: bool = False
    checked_at: str | None = None  # the end of the last successful run
    due: float | None = None
    logged: float | None = None

    @property
    def was_tried(self) -> bool:
        """Whether at least one load has finished."""
        return self.loaded_here or self.error is not None


def holds_up_ready(
    config: RuntimeConfig, dataset: DatasetConfig, snapshot: Snapshot | None, checked_at: str | None, *, was_tried: bool
) -> bool:
    """
    Return whether readiness waits for *dataset*, because it has no data or its data is too old.

    With `ready_state: on_registered`, a dataset without data prevents readiness only until it *was_tried*.
    """
    if dataset.is_in_place or not dataset.required_for_ready:
        return False
    if snapshot is None:
        return config.ready_state == "on_load" or not was_tried
    limit_s = config.query.max_staleness_s
    if limit_s is None or not dataset.acceleration.is_periodic:
        return False
    return seconds_since(last_check(snapshot, checked_at)) > limit_s


def last_check(snapshot: Snapshot, checked_at: str | None) -> str:
    """
    Return when the served data was last known to be current. The run history may be lost or older than the data.

    A time in the future counts only without another one: the clock was ahead and has been set back.
    """
    times = sorted((snapshot.created_at, checked_at or snapshot.created_at))
    return times[-1] if times[-1] <= utc_in(_AHEAD_S) else times[0]


def state_of(  # noqa: PLR0913 (by keyword)
    dataset: DatasetConfig,
    snapshot: Snapshot | None,
    checked_at: str | None,
    *,
    status: DatasetStatus | None,
    error: str | None,
    next_refresh_at: str | None,
) -> DatasetState:
    """Return the state of a dataset that serves *snapshot*. Without a *status*, the dataset is ready if it has data."""
    checked_at = None if snapshot is None else last_check(snapshot, checked_at)
    has_data = snapshot is not None or dataset.is_in_place
    return DatasetState(
        from_=dataset.from_,
        name=dataset.name,
        acceleration_enabled=dataset.acceleration.enabled,
        status=status or ("Ready" if has_data else "Initializing"),
        rows=None if snapshot is None else snapshot.rows,
        refreshed_at=None if snapshot is None else snapshot.created_at,
        snapshot=None if snapshot is None else Path(snapshot.file).stem,
        error=error,
        checked_at=checked_at,
        next_refresh_at=next_refresh_at,
        age_s=None if checked_at is None else int(seconds_since(checked_at)),
        bytes=None if snapshot is None else snapshot.size_bytes,
        description=dataset.documentation.description,
        metadata=dict(dataset.documentation.metadata),
    )


def _in_any_line(config: DatasetConfig) -> DatasetConfig:
    return replace(config, line=0)


def changed_since(former: Collection[DatasetConfig], datasets: Collection[DatasetConfig]) -> set[str]:
    """Return the names of *datasets* that differ from *former*, and of the materialized views that read one of them."""
    by_name = {config.name.lower(): _in_any_line(config) for config in former}
    changed = {one.name.lower() for one in datasets if by_name.get(one.name.lower()) != _in_any_line(one)}
    names = with_readers(changed, datasets)
    return {one.name for one in datasets if one.name.lower() in names}


def reads(entry: DatasetEntry) -> tuple[str, ...]:
    """Return the names of the relations that a materialized view reads; none for other datasets."""
    return () if entry.config.view is None else entry.config.view.reads


def views_last(entries: Collection[DatasetEntry]) -> list[DatasetEntry]:
    """Return *entries* in an order in which each view comes after the relations that it reads."""
    ordered: list[DatasetEntry] = []
    left = list(entries)
    while left:
        names = {entry.config.name.lower() for entry in left}
        ordered += [entry for entry in left if names.isdisjoint(reads(entry))]
        left = [entry for entry in left if not names.isdisjoint(reads(entry))]
    return ordered


class DatasetTable:
    """
    The refresher's state of the datasets in *config*, and the served *snapshots*.

    Guarded by the refresher's condition.
    """

    def __init__(self, config: RuntimeConfig, snapshots: SnapshotDirectory) -> None:
        self.snapshots = snapshots
        self._config = config
        # Dataset names are case-insensitive, as in SQL.
        self._entries = {dataset.name.lower(): DatasetEntry(dataset) for dataset in config.datasets}

    def __iter__(self) -> Iterator[DatasetEntry]:
        """Yield the entries, in configuration order."""
        return iter(self._entries.values())

    def __getitem__(self, name: str) -> DatasetEntry:
        """Return the entry of the dataset *name*. Raises UnknownDatasetError."""
        try:
            return self._entries[name.lower()]
        except KeyError:
            raise UnknownDatasetError(name) from None

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._entries

    def take_over(self, former: "DatasetTable", now: float) -> None:
        """Keep the entries of datasets whose declarations are unchanged. Queued scheduled loads become due *now*."""
        for name, entry in former._entries.items():  # noqa: SLF001 (of this class)
            declared = self._entries.get(name)
            if declared is None or _in_any_line(entry.config) != _in_any_line(declared.config):
                continue
            entry.config = declared.config
            if entry.waiting is not None and entry.waiting.skips:
                entry.due = now
            entry.waiting = None
            if self.snapshot(entry) is None and self._holds_up(entry):
                entry.error = None  # Readiness waits for the load that begins now.
            self._entries[name] = entry

    def snapshot(self, entry: DatasetEntry) -> Snapshot | None:
        """Return the served snapshot; None if there is none."""
        return self.snapshots.snapshot(entry.config.name)

    def waiting_for(self) -> tuple[str, ...]:
        """See `DatasetControl.waiting_for`."""
        return tuple(entry.config.name for entry in self if self._holds_up(entry))

    def _holds_up(self, entry: DatasetEntry) -> bool:
        if self._is_held(entry):
            return False
        snapshot = self.snapshot(entry)
        return holds_up_ready(self._config, entry.config, snapshot, entry.checked_at, was_tried=entry.was_tried)

    def states(self, now: float) -> tuple[DatasetState, ...]:
        """Return the state of each dataset. *now* is on the monotonic clock of `due`, in seconds."""
        return tuple(self._state_of(entry, now) for entry in self)

    def _state_of(self, entry: DatasetEntry, now: float) -> DatasetState:
        snapshot = self.snapshot(entry)
        status: DatasetStatus | None = None if entry.error is None else "Error"
        if entry.is_running and snapshot is not None:
            status = "Refreshing"
        next_refresh_at = None if entry.due is None else utc_in(max(0.0, entry.due - now))
        return state_of(
            entry.config,
            snapshot,
            entry.checked_at,
            status=status,
            error=entry.error,
            next_refresh_at=next_refresh_at,
        )

    def with_progress(self, entry: DatasetEntry, run: RefreshRun) -> RefreshRun:
        """Return the running *run* with its progress."""
        written = None if entry.file is None else self.snapshots.built_bytes(entry.file)
        phase: RefreshPhase = "publishing" if entry.is_publishing else "opening" if written is None else "loading"
        return replace(run, phase=phase, bytes=written, duration_ms=milliseconds_since(entry.began))

    def can_load(self, entry: DatasetEntry) -> bool:
        """Return whether everything that a materialized view reads is published. True for a dataset with a source."""
        return all(self.snapshot(self[name]) is not None for name in reads(entry))

    def must_wait(self, entry: DatasetEntry) -> bool:
        """Return whether a load waits for a reload to end, or for the first load of something that a view reads."""
        return self._is_held(entry) or self._awaits_input(entry)

    def _is_held(self, entry: DatasetEntry) -> bool:
        """
        Return whether a reload is under way that changes the declaration of a dataset, but has data for it.

        If it were loaded again, a reload that fails would discard the rows of an append.
        """
        return entry.config.name in self.snapshots.staging and self.snapshot(entry) is not None

    def _awaits_input(self, entry: DatasetEntry) -> bool:
        missing = [one for name in reads(entry) if self.snapshot(one := self[name]) is None and one.error is None]
        return any(one.waiting or one.is_running or one.due is not None or self._awaits_input(one) for one in missing)

    def views_of(self, name: str) -> list[DatasetEntry]:
        """Return the materialized views that read the dataset *name*."""
        return [entry for entry in self if name.lower() in reads(entry)]

    def fail_views_of(self, entry: DatasetEntry) -> None:
        """Record why the views that read *entry*, directly or through another view, cannot be loaded."""
        failed = [entry]
        for one in failed:  # grows during iteration
            for view in self.views_of(one.config.name):
                if view.error != _UNREADABLE and not self.can_load(view):
                    view.error = _UNREADABLE
                    failed.append(view)
