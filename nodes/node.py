"""
A node that shares snapshots: publishes while it holds the lease, and otherwise serves another node's snapshots.

One thread keeps the lease, so that nothing else delays a renewal. Another thread checks the storage every few seconds,
and switches between a `Follower` and a `Publisher`.
"""

import logging
import math
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Unpack

from datasources.control import AdmittedSql, DatasetState, RefreshOptions, RefreshRun, SharingState
from datasources.deadline import Deadline
from datasources.errors import DatasetError, SharedStorageError
from datasources.refresh import history
from datasources.refresh.loader import LoaderProcess
from datasources.refresh.refresher import Refresher
from datasources.snapshots.snapshot import Builder, Order, SnapshotBuilder
from nodes.documents import LEASE
from nodes.follower import Follower
from nodes.lease import RENEWAL_S, Lease
from nodes.manifest_writer import ManifestWriter
from nodes.object_storage import ObjectStorage
from nodes.presence import Nodes
from nodes.publisher import Publisher
from queryengine.manifest import Snapshot, read_manifest
from runtimeconf.model import DatasetConfig, RuntimeConfig, SnapshotsConfig

logger = logging.getLogger(__name__)

#: Seconds that an interrupted load has to end before a log message reports that it is still running.
_END_S = 5.0
#: Seconds for which a node that lets another one publish does not take the lease, so that nodes with the same
#: configuration can take it and let it go too. A request is granted again after this time, which doubles each time,
#: up to the maximum.
_REST_S, _MAX_REST_S = 60.0, 600.0
#: Seconds that a superseded snapshot stays for statements on a cluster, in addition to their time limit.
_LINGER_S = 60.0


class Node:
    """
    The `DatasetManager` of a node.

    Args:
        config: The runtime's configuration.
        shared: The `snapshots` of *config*.
        builders: The builders to load with while this node publishes.

    Raises:
        StateDirectoryError: The state directory cannot be written.
        SharedStorageError: The settings of the storage cannot be used.
    """

    def __init__(self, config: RuntimeConfig, shared: SnapshotsConfig, builders: Sequence[Builder] = ()) -> None:
        self.generation = config.generation
        self._config, self._shared, self._builders = config, shared, builders
        self._in_effect = config  # during a reload, the former configuration
        self._id = secrets.token_hex(8)
        self._storage = ObjectStorage(shared)
        self._nodes = Nodes(self._storage, self._id)
        self._lease = Lease(self._storage, self._id)
        self._least_epoch = 0
        self._stop = threading.Event()
        self._change = threading.RLock()  # held while switching between `Follower` and `Publisher`
        self._role: Follower | Publisher = self._new_follower(history.ended_runs(config.state_dir))
        self._error: str | None = None
        self._lease_error: str | None = None
        self._granted: dict[tuple[str, str], tuple[float, float]] = {}  # when to grant a dataset again, and the wait
        self._yields_until = 0.0
        self._syncs_since = math.inf  # while this node does not look at what is published
        self._waited_for: set[str] = set()  # lost files that another node had time to publish
        self._is_warned = False
        self._threads = [threading.Thread(target=self._run, name="node", daemon=True)]
        if shared.role != "follower":
            self._threads.append(threading.Thread(target=self._keep_lease, name="node-lease", daemon=True))

    def start(self) -> None:
        """Start checking the storage."""
        for thread in reversed(self._threads):
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Interrupt loads and leave the other nodes. Return False if a load is running after *timeout_s* seconds."""
        self._stop.set()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        has_ended = self._role.stop(max(0.0, end - time.monotonic()))
        has_ended = has_ended and not any(thread.is_alive() for thread in self._threads)
        if has_ended and self._storage.is_quick:
            with suppress(SharedStorageError):
                self._lease.release()
                self._nodes.leave()
        return has_ended

    def replace(self, config: RuntimeConfig, builders: Sequence[Builder], timeout_s: float) -> "Node":
        """
        See `DatasetManager.replace`. The `snapshots` of the configuration must have the same location and role.

        Raises:
            SharedStorageError: The storage does not respond with the parameters of a later configuration.
        """
        with self._change:
            if config.snapshots is not None and config.snapshots != self._shared:
                if config.generation > self.generation:  # The way back is always open.
                    ObjectStorage(config.snapshots).read(LEASE)
                self._storage.use(config.snapshots)
                self._shared = config.snapshots
            self._role.replace(config, builders, timeout_s)
            self._config, self._builders, self.generation = config, builders, config.generation
        return self

    def commit(self) -> None:
        """See `DatasetManager.commit`."""
        with self._change:
            self._role.commit()
            self._in_effect = self._config

    def sharing(self) -> SharingState:
        """Return how this node shares snapshots."""
        role, epoch, answered_s = self._role, self._lease.epoch, self._storage.answered_s
        # Without the storage, this node cannot know whether another node has become the publisher.
        valid_s = self._lease.valid_s if isinstance(role, Publisher) else 0.0
        publisher = self._id if valid_s else ""
        if isinstance(role, Follower) and role.publisher != self._id:
            publisher = role.publisher
        return SharingState(
            node=self._id,
            publisher=publisher,
            epoch=epoch or 0,
            error=self._error,
            answered_s=None if answered_s is None else int(answered_s),
            publishes_s=valid_s,
        )

    def datasets(self) -> tuple[DatasetState, ...]:
        """See `DatasetControl.datasets`."""
        return self._role.control.datasets()

    def waiting_for(self) -> tuple[str, ...]:
        """See `DatasetControl.waiting_for`."""
        return self._role.control.waiting_for()

    def is_loaded(self) -> bool:
        """See `DatasetControl.is_loaded`."""
        return not self.waiting_for()

    def request_refresh(
        self, name: str, sql: AdmittedSql | None = None, **options: Unpack[RefreshOptions]
    ) -> RefreshRun:
        """See `DatasetControl.request_refresh`."""
        return self._role.control.request_refresh(name, sql, **options)

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        """See `DatasetControl.history`. Includes every run that any node has accepted, unless the storage is slow."""
        role = self._role
        if self._storage.is_quick:
            with suppress(SharedStorageError):
                role.look()
        return role.control.history(name)

    def _new_follower(self, own_runs: Mapping[str, Sequence[RefreshRun]]) -> Follower:
        follower = Follower(self._in_effect, self._storage, self._nodes.announce, self._stop, own_runs)
        if self._is_reloading:
            follower.replace(self._config, self._builders, _END_S)
        return follower

    @property
    def _is_reloading(self) -> bool:
        return self._config.generation != self._in_effect.generation

    @property
    def _may_publish(self) -> bool:
        """
        Whether this node may take or hold the lease.

        Others may publish while it rests, and while it downloads what is published, which may take long.
        """
        now = time.monotonic()
        return now >= self._yields_until and now - self._syncs_since <= RENEWAL_S

    def _keep_lease(self) -> None:
        while True:
            try:
                if not self._may_publish:
                    self._lease.release()
                elif self._lease.epoch is None:
                    self._lease.acquire()
                else:
                    self._lease.renew(max(self._lease.epoch, self._least_epoch))
                self._lease_error = None
            except SharedStorageError as exc:
                self._lease_error = str(exc)  # The other thread reports it.
            except Exception:
                logger.exception("The lease of runtime.snapshots cannot be renewed")
            if self._stop.wait(RENEWAL_S):
                return

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._step()
                self._report(self._lease_error or self._role.state_error)
            except DatasetError as exc:
                self._report(str(exc))
            except Exception:
                logger.exception("The shared snapshots cannot be checked")
                self._report("It failed; see the runtime log.")
            self._stop.wait(self._shared.poll_s)

    def _report(self, error: str | None) -> None:
        if error is not None and error != self._error and not self._stop.is_set():
            logger.warning("%s This node continues to serve its current data.", error)
        elif error is None and self._error is not None:
            logger.info("The shared storage is responding again.")
        self._error = error

    def _step(self) -> None:
        role = self._role
        if isinstance(role, Follower):
            self._sync(role)
            epoch = self._lease.epoch
            if epoch is not None and epoch >= self._least_epoch and self._may_publish:
                self._step_up(role, epoch)
            else:
                self._warn_of_another()
            return
        epoch = self._lease.epoch
        if role.manifest.fenced_by is not None or role.manifest.epoch != epoch:
            self._least_epoch = max(self._least_epoch, (role.manifest.fenced_by or 0) + 1)
            if not role.manifest.is_overtaken:
                logger.warning("Another node is now the publisher; this node serves its data.")
            self._step_down(role)
        else:
            role.step(self._stop)
            is_asked = any(time.monotonic() >= self._granted.get(one, (0.0, 0.0))[0] for one in role.unknown)
            if is_asked and not self._is_reloading:
                self._yield(role)

    def _sync(self, follower: Follower) -> None:
        self._syncs_since = time.monotonic()
        try:
            follower.sync()
        finally:
            self._syncs_since = math.inf

    def _yield(self, publisher: Publisher) -> None:
        """
        Let another node publish, because a node waits for datasets that this node does not declare.

        So a new configuration can be rolled out node by node. A request ends once its node has the data.
        """
        names = ",".join(sorted({name for name, _ in publisher.unknown}))
        logger.info("Another node may publish, because it has more datasets", extra={"fields": {"datasets": names}})
        served = read_manifest(self._config.state_dir).snapshots
        self._nodes.announce(holds={(one.dataset, one.source): one.created_at for one in served})
        now = time.monotonic()
        for one in publisher.unknown:
            wait_s = min(2 * self._granted.get(one, (0.0, _REST_S / 2))[1], _MAX_REST_S)
            self._granted[one] = now + wait_s, wait_s
        self._yields_until = now + _REST_S
        self._step_down(publisher)

    def _step_up(self, follower: Follower, epoch: int) -> None:
        """Start publishing, based on the snapshots that are published now."""
        if self._is_behind(follower) or self._is_outdone(follower):
            return
        state_dir, query = self._config.state_dir, self._config.query
        exporter, linger_s = None, 0.0
        if self._config.engine is not None:
            exporter, linger_s = partial(_export, self._config), query.timeout_s + _LINGER_S
        manifest = ManifestWriter(self._storage, self._id, epoch, state_dir, exporter=exporter, linger_s=linger_s)
        try:
            published = manifest.take_over()
        except SharedStorageError:
            # The lease was deleted, or another node has taken it. A renewal with a later epoch shows which.
            self._least_epoch = max(self._least_epoch, (manifest.fenced_by or -1) + 1)
            raise
        follower.look()
        follower.sync(published)
        if self._is_behind(follower):
            return
        with self._change:
            if runs := follower.runs_to_adopt():
                with suppress(OSError):  # It is only a record of past runs.
                    history.adopt(self._config.state_dir, runs)
            refresher = Refresher(
                self._config,
                builders=self._builders,
                # What is in effect is still served then, and what is offered may be staged already.
                snapshots=follower.snapshots if self._is_reloading else None,
                in_effect=self._in_effect.datasets,
                share=manifest,
            )
            publisher = Publisher(self._config, self._in_effect, self._nodes, manifest, refresher)
            self._role = publisher
            with suppress(SharedStorageError):
                publisher.look()
            refresher.start()
        logger.info("This node is now the publisher", extra={"fields": {"node": self._id, "epoch": epoch}})

    def _is_behind(self, follower: Follower) -> bool:
        """
        Return whether this node must not publish because it could not load what is published. It lets others publish.

        It would load from the source instead, which may not have all rows of an append any more. If the storage has
        lost a file, a node that still has it gets some time to publish.
        """
        behind = follower.behind()
        files = {one.file for one in behind}
        if files <= follower.lost & self._waited_for:
            return False
        self._waited_for = files
        logger.warning(
            "This node does not publish, because it could not load all published data",
            extra={"fields": {"datasets": self._rest(one.dataset for one in behind)}},
        )
        return True

    def _is_outdone(self, follower: Follower) -> bool:
        """Return whether another node serves data of a dataset that this node would load. It lets that node publish."""
        self._nodes.reads()
        names = self._nodes.outdone(follower.unpublished())
        if names:
            logger.warning(
                "This node does not publish, because another node has data that is not published",
                extra={"fields": {"datasets": self._rest(names)}},
            )
        return bool(names)

    def _rest(self, datasets: Iterable[str]) -> str:
        """Let other nodes publish for a while. Return the names of the *datasets* for the log."""
        self._yields_until = time.monotonic() + _REST_S
        return ",".join(sorted(datasets))

    def _step_down(self, publisher: Publisher) -> None:
        """Stop publishing, and serve the snapshots in the manifest: those of the node that has the lease now."""
        with self._change:
            while not publisher.stop(_END_S) and not self._stop.is_set():
                logger.warning("A load has not ended")
            if not self._stop.is_set():
                names = [dataset.name for dataset in self._config.datasets]
                self._role = self._new_follower({name: publisher.control.history(name) for name in names})

    def _warn_of_another(self) -> None:
        if self._shared.role == "publisher" and self._lease.holder not in {"", self._id} and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "Another node publishes to %s: this node is waiting although its role is publisher.",
                self._shared.location,
            )


def _export(config: RuntimeConfig, snapshot: Snapshot, deadline: Deadline) -> None:
    """Write the Parquet file of a snapshot that has none. Raises SnapshotError."""
    dataset = DatasetConfig(name=snapshot.dataset, from_="")
    order = Order(dataset, served=snapshot, file=f"{snapshot.file}.parquet", exports=True)
    # A process ends with the thread that started it, so no other thread may use this process.
    with closing(LoaderProcess(SnapshotBuilder.of(config))) as loader:
        loader.build(order, deadline)
