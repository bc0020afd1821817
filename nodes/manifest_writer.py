"""
Publishes snapshots for all nodes, on the node that holds the lease.

Every version of the manifest replaces exactly the version that this publisher last wrote or read. The publisher first
writes its epoch into the manifest. From then on, no earlier lease holder can write the manifest. Snapshots are uploaded
after that, under names that are never reused, so that an earlier holder cannot damage them.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from datasources.deadline import Deadline
from datasources.errors import SharedStorageError
from datasources.snapshots.parquet import parquet_path
from nodes.documents import MANIFEST, NOTHING_PUBLISHED, SNAPSHOTS, SharedManifest
from nodes.object_storage import ObjectStorage, within
from queryengine.manifest import Snapshot, parquet_file, snapshot_path, without_data

#: Attempts to replace the manifest. A previous lease holder may publish one last time in between.
_ATTEMPTS = 5

#: The number of attempts to publish if the storage does not respond, and the seconds between them.
_TRIES, _PAUSE_S = 5, 1.0

_NO_TAG = '"0"'

_FENCED = "Another node is now the publisher: this node has lost the lease."
_OVERTAKEN = "This node reads the published data again."
_CONTENDED = "The manifest of runtime.snapshots changes too often: something else is writing there."


class ManifestWriter:
    """
    A `Share` of *node* under the lease with this *epoch*. Thread-safe. Call `take_over` first.

    Once another lease holder has written the manifest, `fenced_by` is that holder's epoch. `is_overtaken` becomes True,
    and `fenced_by` the own epoch, once the others may serve a publication that this node has given up, or after
    `reread`. *state_dir* contains the files. With an *exporter*, their rows are also uploaded as Parquet, and it writes
    missing Parquet files. Snapshots are deleted once they have been unused for *linger_s* seconds, because statements
    on a cluster may read them.
    """

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        storage: ObjectStorage,
        node: str,
        epoch: int,
        state_dir: Path,
        *,
        exporter: Callable[[Snapshot, Deadline], None] | None = None,
        linger_s: float = 0.0,
    ) -> None:
        self.epoch = epoch
        self.fenced_by: int | None = None
        self.is_overtaken = False
        self._node = node
        self.storage = storage
        self._state_dir = state_dir
        self._lock = threading.RLock()  # held while replacing the manifest
        self._tag: str | None = None
        self._manifest = NOTHING_PUBLISHED
        self._generation = 0  # of the last version that was sent
        self._is_certain = True  # False while it is unknown whether the last version was or will be written
        self._uploading: set[str] = set()
        self._staged: dict[str, Snapshot] = {}
        self._former: dict[str, Snapshot] = {}  # by lower-case name
        self._exporter = exporter
        self._linger_s = linger_s
        self._unused: dict[str, float] = {}  # objects, and since when

    def take_over(self) -> SharedManifest:
        """
        Write the epoch into the manifest, and return it.

        Raises:
            SharedStorageError: The storage does not respond, or a later lease holder was faster.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                self._read()
                if self._write(self._manifest.snapshots):
                    self._check_conditions()
                    return self._manifest
        raise SharedStorageError(_CONTENDED)

    def publish(self, snapshot: Snapshot, deadline: Deadline, *, is_staged: bool = False) -> None:
        """Upload the file, then add it to the manifest, unless it *is_staged*; see `Share.publish`."""
        with self._uploaded(snapshot, deadline):
            if is_staged:
                self._staged[snapshot.dataset] = snapshot
            else:
                self._name(snapshot, deadline)

    @contextmanager
    def _uploaded(self, snapshot: Snapshot, deadline: Deadline) -> Iterator[None]:
        """Upload the file, then hold the lock. Until the block ends, the file is not removed."""
        self._uploading.add(snapshot.file)
        try:
            self.upload(snapshot, deadline)
            with self._lock:
                yield
        finally:
            self._uploading.discard(snapshot.file)

    @property
    def has_staged(self) -> bool:
        """Whether snapshots are staged."""
        return bool(self._staged)

    def former(self, dataset: str) -> Snapshot | None:
        """See `Share.former`."""
        return self._former.get(dataset.lower())

    def unstage(self) -> None:
        """Forget what is staged for a configuration that does not take effect."""
        with self._lock:
            self._staged = {}

    def publish_staged(self, served: Collection[Snapshot], deadline: Deadline) -> None:
        """Add the staged snapshots that are *served* to the manifest. Raises SharedStorageError."""
        with self._lock:
            for snapshot in set(self._staged.values()).intersection(served):
                self._name(snapshot, deadline)

    def reread(self) -> None:
        """See `Share.reread`."""
        with self._lock:
            self.fenced_by, self.is_overtaken = self.epoch, True

    def upload(self, snapshot: Snapshot, deadline: Deadline) -> None:
        """Write the objects of *snapshot* to the storage. Raises SnapshotError."""
        self.storage.upload(f"{SNAPSHOTS}/{snapshot.file}", snapshot_path(self._state_dir, snapshot), deadline)
        if self._exporter is None:
            return
        path = parquet_path(self._state_dir, snapshot)
        try:
            if not path.exists():  # loaded before there was a cluster, or deleted by someone
                self._exporter(snapshot, deadline)
            self.storage.upload(f"{SNAPSHOTS}/{parquet_file(snapshot.file)}", path, deadline)
        finally:
            path.unlink(missing_ok=True)

    def align(self, names: Collection[str], served: Callable[[], Collection[Snapshot]], deadline: Deadline) -> None:
        """
        Withdraw datasets that are not in *names*, and publish those *served* that are not published as declared.

        Raises:
            SnapshotError: See `publish`.
        """
        with self._lock:
            kept = tuple(one for one in self._manifest.snapshots if one.dataset in names)
            if kept != self._manifest.snapshots:
                self._replace(kept)
        found = {one.dataset: one for one in kept}
        for snapshot in served():
            former = found.get(snapshot.dataset)
            if former is None or former.source != snapshot.source:
                with self._uploaded(snapshot, deadline):
                    # Refreshes may have published newer data in the meantime.
                    if former == {one.dataset: one for one in self._manifest.snapshots}.get(snapshot.dataset):
                        self._name(snapshot, deadline)

    def settle(self) -> None:
        """
        Replace the manifest again if the last attempt has an unknown outcome, so that it cannot succeed later.

        Raises:
            SharedStorageError: See `take_over`. Also raised if the attempt has succeeded: the other nodes may serve its
                data, so it is not taken back.
        """
        with self._lock:
            if not self._is_certain:
                self._replace(self._manifest.snapshots)

    def remove_unused(self, in_use: Collection[str]) -> list[Snapshot]:
        """
        Delete snapshots that are in neither the manifest nor *in_use*, after the linger time.

        Returns:
            The snapshots whose files are missing because someone else has deleted them.

        Raises:
            SharedStorageError: See `take_over`.
        """
        with self._lock:
            self.settle()
            # Keep this order, so that everything listed was uploaded before the manifest was found to be ours.
            listed = self.storage.tags(SNAPSHOTS)
            self._verify()
            used = {one.file for one in (*self._manifest.snapshots, *self._staged.values())}
            used |= self._uploading.union(in_use)
            now, unused = time.monotonic(), listed.keys() - self._objects(used)
            self._unused = {name: self._unused.get(name, now) for name in unused}
            gone = [name for name, since in self._unused.items() if now - since >= self._linger_s]
            self.storage.delete(within(SNAPSHOTS, gone))
            return [one for one in self._manifest.snapshots if not self._objects({one.file}) <= listed.keys()]

    def _objects(self, files: Collection[str]) -> set[str]:
        """Return the object names for the snapshots with these *files*."""
        return {*files, *(map(parquet_file, files) if self._exporter is not None else ())}

    def _name(self, snapshot: Snapshot, deadline: Deadline) -> None:
        """Add an uploaded snapshot to the manifest. Retries for some seconds, because the outcome should be known."""
        for left in reversed(range(_TRIES)):
            try:
                self._replace((*(one for one in self._manifest.snapshots if one.dataset != snapshot.dataset), snapshot))
            except SharedStorageError:
                if self.fenced_by is not None or not left:
                    raise
                deadline.sleep(_PAUSE_S)
            else:
                self._staged.pop(snapshot.dataset, None)
                return

    def _check_conditions(self) -> None:
        """Make sure that the server checks conditions: it must refuse to replace a version that never existed."""
        if self.storage.write(MANIFEST, self._manifest.encode(), _NO_TAG) is not None:
            raise SharedStorageError(
                "The server of runtime.snapshots ignores conditional writes (If-Match), so it cannot be used."
            )

    def _verify(self) -> None:
        """Make sure that no later holder has written the manifest."""
        if self.storage.read(MANIFEST, self._tag) != "unchanged":
            self._is_certain = False
            self.settle()

    def _replace(self, snapshots: tuple[Snapshot, ...]) -> None:
        """Write the next version of the manifest."""
        if self.fenced_by is not None:
            raise SharedStorageError(_OVERTAKEN if self.is_overtaken else _FENCED)
        own = self._manifest
        for _ in range(_ATTEMPTS):
            if self._write(snapshots):
                return
            # It was replaced by an attempt whose response was lost, by a program without a lease, or by a later holder.
            self._read()
            found, self._manifest = self._manifest, own
            if found.epoch == self.epoch and found.generation > own.generation and _takes_back(found, own, snapshots):
                self.fenced_by, self.is_overtaken = self.epoch, True
                raise SharedStorageError(_OVERTAKEN)
        raise SharedStorageError(_CONTENDED)

    def _write(self, snapshots: tuple[Snapshot, ...]) -> bool:
        self._generation += 1
        manifest = SharedManifest(
            epoch=self.epoch,
            node=self._node,
            generation=self._generation,
            snapshots=snapshots,
            former=without_data(self._former, snapshots),
        )
        self._is_certain = False
        tag = self.storage.write(MANIFEST, manifest.encode(), self._tag)
        if tag is None:
            return False
        self._tag, self._manifest, self._is_certain = tag, manifest, True
        self._former |= {one.dataset.lower(): one for one in snapshots}
        return True

    def _read(self) -> None:
        found = self.storage.read(MANIFEST)
        if found is None or found == "unchanged":
            self._tag, self._manifest = None, NOTHING_PUBLISHED
            return
        manifest = SharedManifest.decode(found.content)
        if manifest.epoch > self.epoch or (manifest.epoch == self.epoch and manifest.node != self._node):
            self.fenced_by = manifest.epoch
            raise SharedStorageError(_FENCED)
        self._tag, self._manifest = found.tag, manifest
        self._former = {one.dataset.lower(): one for one in manifest.former} | self._former
        self._generation = max(self._generation, manifest.generation)


def _takes_back(found: SharedManifest, own: SharedManifest, snapshots: Collection[Snapshot]) -> bool:
    """Return whether *snapshots*, which replace those in *found*, change a dataset back to what it is in *own*."""
    before, after = ({one.dataset: one for one in some} for some in (own.snapshots, snapshots))
    now = {one.dataset: one for one in found.snapshots}
    return any(before.get(name) == after.get(name) != now.get(name) for name in {*before, *after, *now})
