"""
Serves the snapshots that another node publishes.

A follower reads no source. It looks up the published snapshots in the shared storage, downloads and checks the missing
ones, and publishes them in its own state directory, where the engine reads them as usual. If the storage is
unavailable, the follower serves the snapshots that it has.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Unpack

from msgspec.structs import replace

from datasources.control import AdmittedSql, DatasetState, DatasetStatus, RefreshOptions, RefreshRun
from datasources.deadline import Deadline
from datasources.errors import (
    DatasetsUnavailableError,
    SharedStorageError,
    SnapshotError,
    UnknownDatasetError,
    not_written,
)
from datasources.refresh.declarations import check_refresh
from datasources.refresh.entries import changed_since, holds_up_ready, state_of
from datasources.refresh.history import MAX_RUNS, without_figures
from datasources.snapshots.directory import RedefinedError, SnapshotDirectory, as_declared
from datasources.snapshots.snapshot import Builder, Verifier, fingerprint, remove
from nodes.documents import MANIFEST, NOTHING_PUBLISHED, SNAPSHOTS, STATE, SharedManifest, SharedState
from nodes.object_storage import ObjectStorage
from nodes.presence import NOTHING, NOTHING_HELD, PUBLISHED, Defined
from nodes.requests import Requests
from queryengine.manifest import Snapshot, snapshot_path, sync_directory
from runtimeconf.model import DatasetConfig, RuntimeConfig

logger = logging.getLogger(__name__)

#: Seconds until a snapshot that was damaged or could not be written is loaded again.
_RETRY_S = 30.0

#: Requests of one caller for one dataset that may wait for the publisher, which reads them one by one.
_MAX_REQUESTS = 20

_NOTHING = SharedState(epoch=0, datasets=(), runs={})


def _of_declared_names(snapshots: Sequence[Snapshot], datasets: Sequence[DatasetConfig]) -> list[Snapshot]:
    """Return the snapshots of declared datasets, regardless of what they were built from."""
    names = {dataset.name.lower() for dataset in datasets}
    return [one for one in snapshots if one.dataset.lower() in names]


class Follower:
    """
    The `DatasetControl` of a node that does not publish. Except for `sync`, methods are thread-safe.

    Args:
        config: The runtime's configuration. Its sources are not read.
        storage: The shared storage.
        announce: `Nodes.announce`.
        stop: Interrupts the loading of a snapshot when set.
        own_runs: The finished runs from the time when this node published, by dataset name. Runs that the other nodes
            do not know, because the storage did not respond, stay in this node's list.

    Raises:
        StateDirectoryError: The state directory cannot be written.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        storage: ObjectStorage,
        announce: Callable[..., None],
        stop: threading.Event,
        own_runs: Mapping[str, Sequence[RefreshRun]],
    ) -> None:
        self._config = config
        self._storage = storage
        self._announce = announce
        self._stop = stop
        self._own_runs = own_runs
        self._datasets = {dataset.name.lower(): dataset for dataset in config.datasets}
        self._fingerprints = {dataset.name: fingerprint(dataset) for dataset in config.datasets}
        # A node that never publishes need not know where data comes from.
        self._fit = as_declared if config.snapshots and config.snapshots.role != "follower" else _of_declared_names
        self.snapshots = SnapshotDirectory(config.state_dir, config.loaded_datasets, self._fit)
        #: The served files, and when they were last known to be current.
        self._checks: dict[str, tuple[str, str]] = {}
        for name, runs in own_runs.items():
            checked_at = next((run.finished_at for run in runs if run.status == "succeeded"), None)
            if checked_at is not None and (served := self.snapshots.snapshot(name)) is not None:
                self._checks[name] = served.file, checked_at
        self._verifier = Verifier(config.state_dir)
        self._requests = Requests(storage)
        self._lock = threading.Lock()  # held while replacing what was last read
        self._manifest, self._manifest_tag = NOTHING_PUBLISHED, ""
        self._announced: Callable[[], None] = announce  # again what was announced last
        self._state, self._state_tag = _NOTHING, ""
        self.state_error: str | None = None  # why the state in the storage cannot be read
        self._applied = _NOTHING  # the state whose data is served here
        self._pending: dict[str, tuple[str, RefreshRun]] = {}  # the requested runs and their dataset names
        self._requested: dict[str, tuple[str, str]] = {}  # the dataset and the caller of each run requested here
        self._errors: dict[str, str] = {}  # why the newest snapshot of a dataset is not served
        self._failed: dict[str, float] = {}  # when a file could not be used
        self._unfit: set[str] = set()  # published datasets that are not as declared here
        self.lost: set[str] = set()  # files that the storage does not have as they were published
        self._was_tried = False
        self._in_effect = config  # during a reload, the former configuration

    def sync(self, manifest: SharedManifest | None = None) -> None:
        """
        Serve the published snapshots. *manifest* is given if the caller has just read it.

        Raises:
            SharedStorageError: The storage does not respond or refuses the request, or another program writes to it.
        """
        try:
            # Keep this order, so that the data of every run that is finished in this state is in the manifest.
            state = self._look_at_state()
            if manifest is not None:
                self._manifest, self._manifest_tag = manifest, ""
            else:
                self._look_at_manifest()
            self._repair()
            declared = self._fit(self._manifest.snapshots, self._config.loaded_datasets)
            self._unfit = {one.dataset for one in self._manifest.snapshots} - {one.dataset for one in declared}
            served = [self.snapshots.snapshot(snapshot.dataset) for snapshot in declared]
            missing = [snapshot for snapshot, one in zip(declared, served, strict=True) if one != snapshot]
            # A cluster reads the data that is served here from the storage.
            kept = served if self._config.engine is not None else ()
            reads = {snapshot.file for snapshot in (*missing, *kept) if snapshot is not None}
            self._announced = partial(self._announce, reads, self._lacks(), self._holds())
            self._announced()
            self._failed = {one.file: self._failed[one.file] for one in missing if one.file in self._failed}
            self.lost.intersection_update(one.file for one in missing)
            if [snapshot for snapshot in missing if not self._take(snapshot)] == []:
                self._applied = state
                self._note_checks()
        finally:
            self._was_tried = True
            self._verifier.close()

    def behind(self) -> list[Snapshot]:
        """
        Return the published snapshots that this node could not load, but whose rows it would need to publish.

        During a reload, those are needed as well that it would serve again if the reload failed.
        """
        published, present = self._manifest.snapshots, self.snapshots.published
        needed = self._fit(published, self._config.loaded_datasets)
        behind = [one for one in needed if self.snapshots.snapshot(one.dataset) != one]
        kept = self._fit(published, self._in_effect.loaded_datasets)
        return behind + [one for one in kept if one not in (*present, *behind)]

    def look(self) -> None:
        """Read the requests and the state so that `history` is complete. Raises SharedStorageError."""
        known = set(self._pending)
        ids = self._requests.ids()
        for run_id in ids - known:
            request = self._requests.get(run_id)
            if request is not None:
                run = RefreshRun(id=run_id, status="queued", requested_at=request.requested_at)
                self._pending[run_id] = request.dataset, run
        # Read this after the requests: once a request is gone, the state has its run.
        self._look_at_state()
        for run_id in known - ids:
            self._pending.pop(run_id, None)

    def sharing(self) -> None:
        """See `DatasetControl.sharing`. The `Node` reports it instead."""

    @property
    def publisher(self) -> str:
        """The id of the node that wrote the manifest; empty if there is none."""
        return self._manifest.node

    def datasets(self) -> tuple[DatasetState, ...]:
        """See `DatasetControl.datasets`. The data is this node's; the publisher reports the rest."""
        return tuple(map(self._state_of, self._datasets.values()))

    def waiting_for(self) -> tuple[str, ...]:
        """See `DatasetControl.waiting_for`."""
        return tuple(dataset.name for dataset in self._datasets.values() if self._holds_up(dataset))

    def is_loaded(self) -> bool:
        """See `DatasetControl.is_loaded`."""
        return not self.waiting_for()

    def request_refresh(
        self, name: str, sql: AdmittedSql | None = None, **options: Unpack[RefreshOptions]
    ) -> RefreshRun:
        """See `DatasetControl.request_refresh`. The request is passed on to the publisher."""
        dataset = self._dataset(name)
        check_refresh(dataset, options.get("mode"))
        who = dataset.name, options.get("caller", "")
        try:
            if self._waiting(who) >= _MAX_REQUESTS:
                self.look()
            if self._waiting(who) >= _MAX_REQUESTS:
                raise DatasetsUnavailableError(
                    f"{_MAX_REQUESTS} requested refreshes of {dataset.name} have not ended: try again later."
                )
            run = self._requests.add(dataset, sql, **options)
        except SharedStorageError as exc:
            raise DatasetsUnavailableError(f"{exc} The request cannot be forwarded: try again.") from exc
        self._pending[run.id] = dataset.name, run
        self._requested[run.id] = who
        return run

    def _waiting(self, who: tuple[str, str]) -> int:
        """Return the number of requests of a caller for a dataset, made to this node, that have not ended."""
        self._requested = {run_id: one for run_id, one in [*self._requested.items()] if run_id in self._pending}
        return list(self._requested.values()).count(who)

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        """See `DatasetControl.history`. A run has succeeded once its data is served here."""
        dataset = self._dataset(name)
        served = {run.id for run in self._applied.runs.get(dataset.name, ()) if run.status == "succeeded"}
        runs = [
            run
            if run.status != "succeeded" or run.id in served
            else replace(run, status="running", phase="publishing", finished_at=None)
            for run in self._state.runs.get(dataset.name, ())
        ]
        if self._differs(dataset, self._state):
            runs = [without_figures(run) for run in runs]
        listed = {run.id for run in runs}
        pending = [run for of, run in list(self._pending.values()) if of == dataset.name and run.id not in listed]
        return self._with_own(dataset.name, (*reversed(pending), *runs))

    def _with_own(self, dataset: str, runs: tuple[RefreshRun, ...]) -> tuple[RefreshRun, ...]:
        """Add the runs of this node that no other node has listed."""
        listed = {run.id for run in runs} | self._pending.keys()
        if own := [run for run in self._own_runs.get(dataset, ()) if run.id not in listed]:
            runs = tuple(sorted((*runs, *own), key=lambda run: str(run.requested_at), reverse=True))
        return runs[:MAX_RUNS]

    @property
    def control(self) -> "Follower":
        """The `DatasetControl` of the node."""
        return self

    def stop(self, timeout_s: float) -> bool:
        """See `DatasetManager.stop`. Nothing is running."""
        return True

    def replace(self, config: RuntimeConfig, builders: Sequence[Builder], timeout_s: float) -> None:
        """Use another configuration; see `DatasetManager.replace`."""
        self.snapshots.redeclare(config.loaded_datasets)
        self.snapshots.hold(changed_since(self._in_effect.datasets, config.datasets))
        self._datasets = {dataset.name.lower(): dataset for dataset in config.datasets}
        self._fingerprints = {dataset.name: fingerprint(dataset) for dataset in config.datasets}
        self._config = config

    def commit(self) -> None:
        """See `DatasetManager.commit`."""
        self.snapshots.drop_undeclared()
        self._in_effect = self._config

    def runs_to_adopt(self) -> dict[str, tuple[RefreshRun, ...]]:
        """
        Return the runs that this node lists once it publishes itself, as of the last `look`, by dataset name.

        A request that was not completed is left out because it begins again.
        """
        names = self._state.runs.keys() | self._own_runs.keys()
        shared = {
            name: tuple(run for run in self._state.runs.get(name, ()) if run.finished_at or run.id not in self._pending)
            for name in names
        }
        return {name: self._with_own(name, runs) for name, runs in shared.items()}

    def _lacks(self) -> Mapping[str, str]:
        """
        Return the datasets that this node would load itself if it published, because nobody does, with fingerprints.

        During a reload there are none: this node still serves data that it would drop if it published.
        """
        shared = self._config.snapshots
        if shared is None or shared.role == "follower" or self._config.generation != self._in_effect.generation:
            return NOTHING
        published = {one.dataset for one in self._manifest.snapshots}
        return {
            one.name: fingerprint(one)
            for one in self._config.loaded_datasets
            if (one.name not in published or self._differs(one, self._state))
            and (self.snapshots.snapshot(one.name) is None or self._holds_up(one))
        }

    def _holds(self) -> Mapping[Defined, str]:
        """
        Return what a node that may publish serves although nobody publishes it, and when it was loaded.

        Datasets that refreshes append to are included before another node publishes them with another definition,
        because that node may end, and the next one load them anew, before this one notices.
        """
        shared = self._config.snapshots
        if shared is None or shared.role == "follower":
            return NOTHING_HELD
        published = {(one.dataset, one.source) for one in self._manifest.snapshots}
        held = {(one.dataset, one.source): one.created_at for one in self.snapshots.published}
        kept = {one.name for one in self._config.loaded_datasets if one.acceleration.refresh_mode == "append"}
        found = {one: created_at for one, created_at in held.items() if one not in published}
        return {one: PUBLISHED for one in held.keys() & published if one[0] in kept} | found

    def unpublished(self) -> Mapping[Defined, str]:
        """Return what this node would publish that nobody does, and when it was loaded; empty if it has not been."""
        published = {(one.dataset, one.source) for one in self._manifest.snapshots}
        declared = {
            (dataset.name, fingerprint(dataset))
            for config in (self._config, self._in_effect)
            for dataset in config.loaded_datasets
        }
        held = self._holds()
        return {one: held.get(one, "") for one in declared - published}

    def _dataset(self, name: str) -> DatasetConfig:
        try:
            return self._datasets[name.lower()]
        except KeyError:
            raise UnknownDatasetError(name) from None

    def _holds_up(self, dataset: DatasetConfig) -> bool:
        snapshot, checked_at = self.snapshots.snapshot(dataset.name), self._checked_at(dataset)
        return holds_up_ready(self._config, dataset, snapshot, checked_at, was_tried=self._was_tried)

    def _checked_at(self, dataset: DatasetConfig) -> str | None:
        """Return when the served data was last told to be current, even if the publisher has other data now."""
        served, (file, checked_at) = self.snapshots.snapshot(dataset.name), self._checks.get(dataset.name, ("", None))
        return checked_at if served is not None and served.file == file else None

    def _note_checks(self) -> None:
        for dataset in self._config.loaded_datasets:
            told, served = self._told(dataset), self.snapshots.snapshot(dataset.name)
            if told is not None and told.checked_at is not None and served is not None:
                self._checks[dataset.name] = served.file, told.checked_at

    def _told(self, dataset: DatasetConfig) -> DatasetState | None:
        """Return what the publisher reports of the data that is served here; None if it reports on other data."""
        return None if self._differs(dataset, self._applied) else self._applied.by_name.get(dataset.name)

    def _differs(self, dataset: DatasetConfig, state: SharedState) -> bool:
        """Return whether *state*, or what is published, is of another definition of a dataset."""
        source, own = state.sources.get(dataset.name), self._fingerprints.get(dataset.name)
        return dataset.name in self._unfit or (self._fit is as_declared and source not in {None, own})

    def _state_of(self, dataset: DatasetConfig) -> DatasetState:
        snapshot = self.snapshots.snapshot(dataset.name)
        told = self._told(dataset)
        error = self._errors.get(dataset.name) or (None if told is None else told.error)
        status: DatasetStatus | None = None if error is None else "Error"
        if error is None and snapshot is not None and told is not None and told.status == "Refreshing":
            status = "Refreshing"
        next_refresh_at = None if told is None else told.next_refresh_at
        checked_at = self._checked_at(dataset)
        return state_of(dataset, snapshot, checked_at, status=status, error=error, next_refresh_at=next_refresh_at)

    def _look_at_state(self) -> SharedState:
        with self._lock:
            found = self._storage.read(STATE, self._state_tag)
            if found != "unchanged":
                self.state_error = None
            if found is not None and found != "unchanged":
                self._state_tag = found.tag
                try:
                    state = SharedState.decode(found.content)
                except SharedStorageError as exc:
                    # The state only reports refreshes, and the next publisher replaces it.
                    self.state_error = str(exc)
                    return self._state
                # A node that has lost the lease and does not know it yet may still write its state.
                if state.epoch >= self._manifest.epoch:
                    self._state = state
            return self._state

    def _look_at_manifest(self) -> None:
        found = self._storage.read(MANIFEST, self._manifest_tag)
        if found is not None and found != "unchanged":
            self._manifest, self._manifest_tag = SharedManifest.decode(found.content), found.tag

    def _repair(self) -> None:
        """Withdraw snapshots that are damaged or lost on this disk, so that they are loaded again."""
        try:
            for fault in self.snapshots.withdraw_damaged().values():
                logger.warning("%s It will be reloaded from the shared storage.", fault)
            self.snapshots.restore()
        except (SnapshotError, OSError) as exc:
            logger.warning("The published data cannot be checked: %s", exc)

    def _take(self, snapshot: Snapshot) -> bool:
        """Load a snapshot and publish it here. Return whether it is served."""
        failed_at = self._failed.get(snapshot.file)
        if failed_at is not None and time.monotonic() - failed_at < _RETRY_S:
            return False
        path = snapshot_path(self._config.state_dir, snapshot)
        served = self.snapshots.snapshot(snapshot.dataset)
        if served is not None and served.file == snapshot.file:  # Names are never reused.
            what = f"changes a snapshot of {snapshot.dataset}"
            raise SharedStorageError(f"The manifest of runtime.snapshots {what}: something else is writing there.")
        try:
            if not self._load(snapshot, path):
                return False
            self._verifier.verify_content(snapshot)
            self.snapshots.publish(snapshot)
        except BaseException as exc:
            remove(path)
            if isinstance(exc, RedefinedError):  # by a reload during the download
                return False
            if isinstance(exc, SharedStorageError) or not isinstance(exc, SnapshotError | OSError):
                raise
            fault = (
                not_written(f"The snapshot of {snapshot.dataset}", exc.strerror) if isinstance(exc, OSError) else exc
            )
            if not self._stop.is_set():
                logger.warning("%s It will be reloaded from the shared storage.", fault)
            self._errors[snapshot.dataset] = str(fault)
            self._failed[snapshot.file] = time.monotonic()
            return False
        self._errors.pop(snapshot.dataset, None)
        logger.info("Dataset %s has new data", snapshot.dataset, extra={"fields": {"snapshot": path.stem}})
        return True

    def _stay(self) -> None:
        """Announce again that this node is alive, during a long download."""
        with suppress(SharedStorageError):
            self._announced()

    def _load(self, snapshot: Snapshot, path: Path) -> bool:
        """Write the file of a snapshot. Return False if the storage no longer has the file."""
        dataset = self._dataset(snapshot.dataset)
        temporary = path.with_name(f"{path.name}.part")
        try:
            deadline = Deadline(dataset.acceleration.refresh_timeout_s, self._stop)
            name, size = f"{SNAPSHOTS}/{snapshot.file}", snapshot.size_bytes
            checksum = self._storage.download(name, temporary, size, deadline, progress=self._stay)
            if checksum is None:
                self._manifest_tag = ""
                self._look_at_manifest()
                if snapshot in self._manifest.snapshots:
                    self.lost.add(snapshot.file)
                    raise SnapshotError(f"The snapshot of {snapshot.dataset} is missing from the shared storage.")
                return False  # The snapshot has been superseded.
            if checksum != snapshot.sha256:
                self.lost.add(snapshot.file)
                raise SnapshotError(f"The snapshot of {snapshot.dataset} is damaged in the shared storage.")
            temporary.replace(path)
            sync_directory(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        return True
