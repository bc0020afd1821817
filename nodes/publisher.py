"""Keeps the shared storage up to date, on the node that publishes."""

import logging
import threading
import time
from collections.abc import Sequence

from msgspec.structs import replace

from datasources.control import AdmittedSql
from datasources.deadline import Deadline
from datasources.errors import DatasetError
from datasources.refresh.history import without_figures
from datasources.refresh.refresher import Refresher
from datasources.snapshots.snapshot import Builder, fingerprint
from nodes.documents import STATE, RefreshRequest, SharedState
from nodes.manifest_writer import ManifestWriter
from nodes.presence import Nodes
from nodes.requests import Requests, declaration_of
from queryengine.manifest import Snapshot, read_manifest
from runtimeconf.model import RuntimeConfig

logger = logging.getLogger(__name__)

#: Seconds between two versions of the state, even if only ages have changed.
_STATE_S = 10.0
#: The maximum number of runs in the state for all datasets together, and the minimum per dataset. The state is written
#: whenever a run changes.
_MAX_RUNS, _LEAST_RUNS = 5_000, 5
#: Seconds between two removals of unused snapshots.
_REMOVAL_S = 10.0
#: Seconds within which this node's data must be uploaded when it starts publishing.
_UPLOAD_S = 3600.0


class Publisher:
    """
    The work of a node that holds the lease, in addition to its *refresher*.

    Except for `step`, methods are thread-safe.
    """

    state_error: None = None

    def __init__(
        self,
        config: RuntimeConfig,
        in_effect: RuntimeConfig,
        nodes: Nodes,
        manifest: ManifestWriter,
        refresher: Refresher,
    ) -> None:
        self.manifest, self.control = manifest, refresher
        self.unknown: set[tuple[str, str]] = set()  # what nodes lack that is declared otherwise or not at all here
        self._is_aligned = False
        self._config, self._storage, self._nodes = config, manifest.storage, nodes
        self._in_effect = in_effect  # during a reload, the former configuration
        self._requests = Requests(manifest.storage)
        self._lock = threading.Lock()  # held while accepting requests
        self._taken: set[str] = set()  # the ids of the requests
        self._has_looked = False
        self._told: object = None
        self._state_due = self._removal_due = 0.0

    def stop(self, timeout_s: float) -> bool:
        """See `DatasetManager.stop`."""
        return self.control.stop(timeout_s)

    def replace(self, config: RuntimeConfig, builders: Sequence[Builder], timeout_s: float) -> None:
        """Use another configuration; see `DatasetManager.replace`."""
        self._config, self.control = config, self.control.replace(config, builders, timeout_s)

    def commit(self) -> None:
        """See `DatasetManager.commit`. Applies to all nodes."""
        self.control.commit()
        self._in_effect, self._is_aligned = self._config, False

    def step(self, stop: threading.Event) -> None:
        """
        Bring the storage up to date.

        Raises:
            SnapshotError: The storage does not respond, or another node publishes.
        """
        self._nodes.announce()
        self.manifest.settle()
        if self._config.generation == self._in_effect.generation and self.manifest.has_staged:
            self.manifest.publish_staged(self._served(), Deadline(_UPLOAD_S, stop))
        if not self._is_aligned:
            self._is_aligned = True
            try:
                names = {dataset.name for dataset in self._in_effect.loaded_datasets}
                self.manifest.align(names, self._served, Deadline(_UPLOAD_S, stop))
            except BaseException:
                self._is_aligned = False
                raise
        self.look()
        self._tell()
        if time.monotonic() >= self._removal_due:
            self._removal_due = time.monotonic() + _REMOVAL_S
            missing = self.manifest.remove_unused(self._nodes.reads())
            own = {(dataset.name, fingerprint(dataset)) for dataset in self._config.datasets}
            self.unknown = self._nodes.lacks() - own
            for snapshot in set(missing).intersection(self._served()):
                logger.warning(
                    "The snapshot of %s is missing from the shared storage: it will be uploaded again", snapshot.dataset
                )
                self.manifest.upload(snapshot, Deadline(_UPLOAD_S, stop))

    def _served(self) -> tuple[Snapshot, ...]:
        return read_manifest(self._config.state_dir).snapshots

    def look(self) -> None:
        """Start the refreshes that were requested on other nodes. Raises SharedStorageError."""
        with self._lock:
            for run_id in self._requests.ids() - self._taken:
                request = self._requests.get(run_id)
                if request is None:
                    continue
                sql, mode = request.sql, request.mode
                if not self._may_choose(request):
                    sql = mode = None
                try:
                    self.control.request_refresh(
                        request.dataset,
                        None if sql is None else AdmittedSql(sql),  # The loader checks the SQL.
                        mode=mode,
                        jitter_max_s=request.jitter_max_s,
                        caller=request.caller,
                        run_id=run_id,
                    )
                except DatasetError as exc:
                    logger.warning("A refresh requested through another node is not possible: %s", exc)
                    self._requests.remove({run_id})
                else:
                    self._taken.add(run_id)
            self._has_looked = True

    def _may_choose(self, request: RefreshRequest) -> bool:
        """
        Return whether a refresh loads what its caller asked for; otherwise it loads as declared.

        As after a reload (see `Runs.take_over`), the SQL must be meant for this declaration, and must have arrived
        since this node publishes: the caller of an older request may have lost the key.
        """
        return self._has_looked and any(request.source == declaration_of(one) for one in self._config.datasets)

    def _tell(self) -> None:
        """Write the state, and remove the requests whose runs have ended in it."""
        with self._lock:
            taken = set(self._taken)
        datasets = self._config.datasets
        most = max(_LEAST_RUNS, _MAX_RUNS // max(1, len(datasets)))
        runs = {dataset.name: self.control.history(dataset.name)[:most] for dataset in datasets}
        states, staging = self.control.datasets(), self.control.staging
        # What others declare otherwise is none of their callers' business until it takes effect.
        runs |= {name: tuple(map(without_figures, runs[name])) for name in staging.intersection(runs)}
        states = tuple(replace(one, error=None) if one.name in staging else one for one in states)
        sources = {dataset.name: fingerprint(dataset) for dataset in datasets}
        state = SharedState(epoch=self.manifest.epoch, datasets=states, runs=runs, sources=sources)
        told = runs, [replace(one, age_s=None, next_refresh_at=None) for one in state.datasets]
        if told != self._told or time.monotonic() >= self._state_due:
            self._storage.put(STATE, state.encode())
            self._told, self._state_due = told, time.monotonic() + _STATE_S
        with self._lock:
            ended = taken - {run.id for of_one in runs.values() for run in of_one if run.finished_at is None}
            self._requests.remove(ended)
            self._taken -= ended
