"""Publishes snapshots, in the process that holds the lock of the state directory."""

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

from datasources.deadline import Deadline
from datasources.errors import SnapshotError, not_written
from datasources.snapshots.snapshot import (
    SCRATCH_DIRECTORIES,
    SNAPSHOT_FILES,
    TEMPORARY_DIRECTORY,
    Verifier,
    fingerprint,
    remove,
    verify_file,
)
from queryengine.gate.arrays import has_array
from queryengine.manifest import (
    MANIFEST_NAME,
    SNAPSHOT_DIRECTORY,
    STAGED_DIRECTORY,
    Manifest,
    ManifestError,
    Signature,
    Snapshot,
    manifest_path,
    read_manifest,
    signature,
    snapshot_path,
    with_readers,
    without_data,
    write_manifest,
)
from runtimeconf.model import DatasetConfig
from system.errors import StateDirectoryError
from system.state_directory import remove_ours

logger = logging.getLogger(__name__)

_UNFINISHED_MANIFESTS = re.compile(rf"{re.escape(MANIFEST_NAME)}\.[0-9]+\.tmp")
#: A file's inode, size, and time of last change.
_Stamp = tuple[int, int, int]


class RedefinedError(Exception):
    """A snapshot was built from a declaration that has changed meanwhile."""


class Share(Protocol):
    """Publishes snapshots to other nodes."""

    def publish(self, snapshot: Snapshot, deadline: Deadline, *, is_staged: bool = False) -> None:
        """
        Make all nodes serve *snapshot*, whose file exists, or only prepare that if it *is_staged* during a reload.

        Raises:
            SnapshotError: The nodes do not serve it, or may not know it yet. It must not be served here either.
        """

    def former(self, dataset: str) -> Snapshot | None:
        """Return the last snapshot of *dataset* that any node published, even if it does not fit the declarations."""

    def unstage(self) -> None:
        """Forget what is staged for a configuration that does not take effect."""

    def reread(self) -> None:
        """Publish nothing more, and have this node read what is published again, because it has lost a file."""


class SnapshotDirectory:
    """
    The manifest and the snapshot files of *state_dir*.

    The constructor deletes unfinished files of a previous process. In the manifest, it keeps only undamaged snapshots
    that *fit* the *datasets*, usually those built from their current declarations. Thread-safe, but each dataset must
    be published by one thread at a time.

    Raises:
        StateDirectoryError: The directory cannot be written.
    """

    def __init__(self, state_dir: Path, datasets: Sequence[DatasetConfig], fit: "Fit | None" = None) -> None:
        self._state_dir = state_dir
        self._fit, self._datasets = fit or as_declared, datasets
        self._lock = threading.Lock()  # held while replacing the manifest
        #: The datasets that were published as declared otherwise when the current declarations came.
        self.changed: frozenset[str] = frozenset()
        self._undeclared: frozenset[str] = frozenset()  # published files that do not match the current declarations
        #: The datasets whose loads are staged: the declarations in effect do not describe their data.
        self.staging: frozenset[str] = frozenset()
        self._staged: dict[str, Snapshot] = {}  # will replace snapshots that statements read until then
        self._superseded: list[Snapshot] = []  # may reappear after a power failure
        self._former: dict[str, Snapshot] = {}  # by lower-case name
        self._seen: Signature = None  # of the last manifest known to be correct
        self._stamps: dict[str, _Stamp | None] = {}  # of the snapshot files last known to be good
        try:
            (state_dir / SNAPSHOT_DIRECTORY).mkdir(mode=0o700, exist_ok=True)
            self._serve(self._recover(datasets))
            (state_dir / STAGED_DIRECTORY / MANIFEST_NAME).unlink(missing_ok=True)
            # Delete unfinished builds, and engine logs that would be replayed into a snapshot.
            published = {snapshot.file for snapshot in self._manifest.snapshots}
            remove_ours(state_dir / SNAPSHOT_DIRECTORY, SNAPSHOT_FILES, keep=published)
            remove_ours(state_dir / TEMPORARY_DIRECTORY, SCRATCH_DIRECTORIES)
            remove_ours(state_dir, _UNFINISHED_MANIFESTS)
        except OSError as exc:
            raise StateDirectoryError(f"The state directory cannot be written: {exc.strerror}.") from exc

    @property
    def published(self) -> tuple[Snapshot, ...]:
        """What statements read, including snapshots that do not fit the declarations."""
        return self._manifest.snapshots

    def snapshot(self, dataset: str) -> Snapshot | None:
        """Return the served snapshot of *dataset*; None if it has not been loaded."""
        return self._snapshots.get(dataset)

    def former(self, dataset: str) -> Snapshot | None:
        """Return the last snapshot of *dataset* that was published, even if it does not fit the declarations."""
        return self._former.get(dataset.lower())

    def redeclare(self, datasets: Sequence[DatasetConfig]) -> None:
        """
        Switch to other declarations. Snapshots that do not fit them count as not loaded, but stay published for now.

        Statements on an engine with the previous declarations may still read such snapshots. Their replacements are
        staged until `drop_undeclared`. Another call of this method discards staged replacements.
        """
        with self._lock:
            discarded = list(self._staged.values())
            self._stage({})
            unfit = self._unfit(self._manifest, datasets)
            self._datasets, self._undeclared = datasets, frozenset(one.file for one in unfit)
            self.changed = self.staging = frozenset(one.dataset for one in unfit)
            self._serve(self._manifest)
        for snapshot in discarded:
            self.discard(snapshot)

    def hold(self, datasets: Collection[str]) -> None:
        """After `redeclare`, also stage what is loaded of *datasets*, even if nothing of them is published."""
        with self._lock:
            self.staging = self.changed.union(datasets)

    def drop_undeclared(self) -> None:
        """
        Withdraw snapshots that do not fit the declarations, and serve the staged ones.

        Raises:
            SnapshotError: The manifest cannot be written. Nothing changes.
        """
        with self._lock:
            dropped = [one for one in self._manifest.snapshots if self._snapshots.get(one.dataset) != one]
            if dropped or self._staged:
                self._write(self._next(tuple(self._snapshots.values())))
            self._undeclared = self.staging = frozenset()
            self._stage({})
        for snapshot in dropped:
            self.discard(snapshot)

    def built_bytes(self, file: str) -> int | None:
        """Return the bytes of the snapshot *file* written so far; None if there is no file yet."""
        found = self._stamp(file)
        return None if found is None else found[1]

    def publish(self, snapshot: Snapshot) -> None:
        """
        Serve *snapshot* to every statement that begins after this returns, and delete the superseded snapshot.

        Running statements keep the superseded file open, and the system keeps its bytes until the last of them ends. If
        the publication cannot be synced to disk, a warning is logged, and the superseded file stays until a later
        publication is synced.

        Raises:
            RedefinedError: The snapshot does not fit the declarations (any more).
            SnapshotError: The manifest cannot be written. In both cases, the old data is still served, and *snapshot*
                is deleted.
        """
        with self._lock:
            if not self._fit([snapshot], self._datasets):
                self.discard(snapshot)
                raise RedefinedError(snapshot.dataset)
            snapshots = {one.dataset: one for one in self._manifest.snapshots}
            superseded = snapshots.pop(snapshot.dataset, None)
            snapshots[snapshot.dataset] = snapshot
            if snapshot.dataset in self.staging:
                self._replace_staged(snapshot)
                return
            try:
                is_durable = self._write(self._next(tuple(snapshots.values())))
            except SnapshotError:
                self.discard(snapshot)
                raise
            if superseded is not None:
                self._superseded.append(superseded)
            if not is_durable:
                logger.warning(
                    "The disk did not confirm writing the new data of %s: a power failure may revert it",
                    snapshot.dataset,
                )
                return
            gone, self._superseded = self._superseded, []
        for old in gone:
            self.discard(old)

    def _replace_staged(self, snapshot: Snapshot) -> None:
        former = self._staged.get(snapshot.dataset)
        try:
            self._stage({**self._staged, snapshot.dataset: snapshot})
        except OSError as exc:
            self.discard(snapshot)
            raise not_written("The manifest of staged data", exc.strerror) from exc
        self._serve(self._manifest)
        if former is not None:
            self.discard(former)

    def _stage(self, staged: dict[str, Snapshot]) -> None:
        """Stage snapshots until undeclared ones are dropped. Loads of views already read the staged ones."""
        directory = self._state_dir / STAGED_DIRECTORY
        if staged:
            directory.mkdir(mode=0o700, exist_ok=True)
            write_manifest(directory, Manifest(generation=1, snapshots=tuple(staged.values())))
        else:
            (directory / MANIFEST_NAME).unlink(missing_ok=True)
        self._staged = staged

    def withdraw_damaged(self) -> dict[str, str]:
        """
        Stop serving snapshots whose files are missing or damaged, and delete the remains of these files.

        A file is read only if its stamp has changed since the file was last known to be good.

        Returns:
            The error of each withdrawn snapshot by dataset name.

        Raises:
            OSError: This process lacks the descriptors or memory to check. Nothing is withdrawn.
        """
        faults = {}
        for snapshot in self._manifest.snapshots:
            stamp = self._stamp(snapshot.file)
            if stamp is not None and stamp == self._stamps.get(snapshot.file):
                continue
            try:
                # The content was checked before publication, so comparing the bytes is enough.
                verify_file(self._state_dir, snapshot)
            except SnapshotError as exc:
                faults[snapshot.file] = str(exc)
            else:
                self._stamps[snapshot.file] = stamp
        if not faults:
            return {}
        with self._lock:
            withdrawn = [snapshot for snapshot in self._manifest.snapshots if snapshot.file in faults]
            if not withdrawn:  # They were superseded in the meantime.
                return {}
            kept = tuple(snapshot for snapshot in self._manifest.snapshots if snapshot.file not in faults)
            manifest = self._next(kept)
            # Do this before the new manifest can be read, because its readers ask what is served.
            self._serve(manifest)
            self._seen = None
            with suppress(OSError):  # `restore` tries again.
                write_manifest(self._state_dir, manifest)
                self._seen = self._signature()
        for snapshot in withdrawn:
            self.discard(snapshot)
        with suppress(OSError):  # The load reports it.
            (self._state_dir / SNAPSHOT_DIRECTORY).mkdir(mode=0o700, exist_ok=True)
        return {one.dataset: faults[one.file] for one in withdrawn if one.file not in self._undeclared}

    def restore(self) -> None:
        """
        Write the manifest again if the file is damaged or missing. Otherwise readers would find no data.

        The file is read only if its signature has changed.

        Raises:
            SnapshotError: The manifest cannot be written.
        """
        with self._lock:
            now = self._signature()
            if now is not None and now == self._seen:
                return
            try:
                if read_manifest(self._state_dir) == self._manifest:
                    self._seen = now
                    return
                reason = "The manifest of published data is not the one that was written."
            except ManifestError as exc:
                reason = str(exc)
            logger.warning("%s It will be rewritten.", reason)
            self._write(self._next(self._manifest.snapshots))

    def discard(self, snapshot: Snapshot) -> None:
        """Delete the file of a snapshot that is not published."""
        remove(snapshot_path(self._state_dir, snapshot))

    def _next(self, snapshots: tuple[Snapshot, ...]) -> Manifest:
        return Manifest(
            generation=self._manifest.generation + 1, snapshots=snapshots, former=without_data(self._former, snapshots)
        )

    def _write(self, manifest: Manifest) -> bool:
        """Write *manifest* and serve it. Return whether it is synced to disk."""
        try:
            is_durable = write_manifest(self._state_dir, manifest)
        except OSError as exc:
            raise not_written("The manifest of published data", exc.strerror) from exc
        self._serve(manifest)
        return is_durable

    def _serve(self, manifest: Manifest) -> None:
        """Record *manifest*, which was written, as the served one."""
        self._manifest, self._seen = manifest, self._signature()
        self._former |= {one.dataset.lower(): one for one in manifest.snapshots}
        declared = {one.dataset: one for one in manifest.snapshots if one.file not in self._undeclared}
        self._snapshots = declared | self._staged
        files = [snapshot.file for snapshot in manifest.snapshots]
        self._stamps = {file: self._stamps.get(file) or self._stamp(file) for file in files}

    def _signature(self) -> Signature:
        return signature(str(manifest_path(self._state_dir)))

    def _stamp(self, file: str) -> _Stamp | None:
        """Return a stamp that changes whenever a snapshot file changes, because programs cannot set the ctime."""
        try:
            found = (self._state_dir / SNAPSHOT_DIRECTORY / file).stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_ctime_ns

    def _unfit(self, manifest: Manifest, datasets: Sequence[DatasetConfig]) -> list[Snapshot]:
        fitting = self._fit(manifest.snapshots, datasets)
        unfit = [one for one in manifest.snapshots if one not in fitting]
        for name in _redefined(unfit, {dataset.name: dataset for dataset in datasets}):
            logger.info("The definition of dataset %s changed: it will be reloaded", name)
        return unfit

    def _recover(self, datasets: Sequence[DatasetConfig]) -> Manifest:
        try:
            found = read_manifest(self._state_dir)
        except ManifestError as exc:
            logger.warning("%s All data will be reloaded from the sources.", exc)
            # Readers identify data by its generation. The current time exceeds every generation of the lost manifest.
            found = Manifest(generation=int(time.time()))
            write_manifest(self._state_dir, found)
            return found
        unfit = self._unfit(found, datasets)
        self.changed = frozenset(one.dataset for one in unfit)
        self._former = {one.dataset.lower(): one for one in (*found.former, *found.snapshots)}
        with closing(Verifier(self._state_dir)) as verifier:
            kept = tuple(one for one in found.snapshots if one not in unfit and verifier.is_good(one))
        if kept != found.snapshots:
            found = Manifest(generation=found.generation + 1, snapshots=kept, former=without_data(self._former, kept))
            write_manifest(self._state_dir, found)
        return found


#: Returns the snapshots that may be served for the declared datasets.
Fit = Callable[[Sequence[Snapshot], Sequence[DatasetConfig]], list[Snapshot]]


def as_declared(snapshots: Sequence[Snapshot], datasets: Sequence[DatasetConfig]) -> list[Snapshot]:
    """Return the snapshots of declared datasets whose definition has not changed, nor that of what they read."""
    declared = {dataset.name: dataset for dataset in datasets}
    names = with_readers({name.lower() for name in _redefined(snapshots, declared)}, datasets)
    return [one for one in snapshots if one.dataset in declared and one.dataset.lower() not in names]


def _redefined(snapshots: Sequence[Snapshot], declared: Mapping[str, DatasetConfig]) -> list[str]:
    """Return the declared datasets whose definition differs from that of their snapshot, or with arrays in it."""
    found = [(one, dataset) for one in snapshots if (dataset := declared.get(one.dataset)) is not None]
    return [
        one.dataset
        for one, dataset in found
        # Former versions stored arrays (see `queryengine.gate.arrays`).
        if fingerprint(dataset) != one.source or any(has_array(column.type) for column in one.columns)
    ]
