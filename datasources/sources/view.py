"""
The source of a materialized view: the published snapshots of the relations that it reads.

The loading engine attaches the snapshots read-only, defines the names that the view uses, and runs its SQL, which the
gate has admitted. An error does not quote data or name the relations, because a key that may read the view might not be
allowed to see them.
"""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import duckdb

from datasources.errors import SourceError
from datasources.sources.pinned_file import DESCRIPTORS
from datasources.sources.source import Load, Scan
from datasources.sql import identifier, literal
from queryengine.execution.bounded_functions import MACROS
from queryengine.gate.macros import called_in
from queryengine.manifest import STAGED_DIRECTORY, ManifestError, Snapshot, read_manifest, snapshot_path
from queryengine.values import qualified, split_relation
from runtimeconf.model import DatasetConfig, MaterializedView

logger = logging.getLogger(__name__)


class ViewSource:
    """A view over the data published in the state directory, which is the `location` of the dataset."""

    def __init__(self, dataset: DatasetConfig) -> None:
        if dataset.view is None:
            raise TypeError("The dataset is not a materialized view.")
        self._view = dataset.view
        self._name = dataset.name
        self._state_dir = Path(dataset.location)

    @contextmanager
    def open(self, load: Load) -> "Iterator[ViewScan]":
        """See `Source.open`."""
        load.deadline.check()
        with ExitStack() as held:
            yield ViewScan(self._name, self._view, self._opened(held))

    def has_changed(self, version: str, load: Load) -> bool:
        """Return whether a relation that the view reads has been published since *version*."""
        load.deadline.check()
        return _version(self._snapshots()) != version

    def _opened(self, held: ExitStack) -> dict[Snapshot, IO[bytes]]:
        """Return the snapshots that the view reads, with open files, because replacing a snapshot deletes its file."""
        snapshots = self._snapshots()
        while True:
            try:
                paths = {snapshot: snapshot_path(self._state_dir, snapshot) for snapshot in snapshots}
                return {snapshot: held.enter_context(path.open("rb")) for snapshot, path in paths.items()}
            except OSError as exc:
                before, snapshots = snapshots, self._snapshots()
                if snapshots == before:
                    raise SourceError("A dataset or view that the view reads has been lost.") from exc

    def _snapshots(self) -> tuple[Snapshot, ...]:
        declared = dict(zip(self._view.reads, self._view.fingerprints, strict=False))
        try:
            # What is staged takes effect together with this view. It is read first, because it then moves.
            manifests = [read_manifest(self._state_dir / STAGED_DIRECTORY), read_manifest(self._state_dir)]
        except ManifestError as exc:
            raise SourceError(str(exc)) from exc
        snapshots = [one for manifest in reversed(manifests) for one in manifest.snapshots]
        published = {
            one.dataset.lower(): one for one in snapshots if declared.get(one.dataset.lower(), one.source) == one.source
        }
        if not published.keys() >= set(self._view.reads):
            raise SourceError("A dataset or view that the view reads has no data yet.")  # no name: see the refresher
        return tuple(published[name] for name in self._view.reads)


class ViewScan(Scan):
    """The snapshots that a view reads."""

    has_collations = True

    def __init__(self, name: str, view: MaterializedView, opened: dict[Snapshot, IO[bytes]]) -> None:
        self._name = name
        self._view = view
        self._files = {snapshot: f"{DESCRIPTORS}/{file.fileno()}" for snapshot, file in opened.items()}
        self.version = _version(tuple(opened))
        # The engine looks for the current name of a file: see `LoadingEngine`.
        names = (*self._files.values(), *(file.name for file in opened.values()))
        self.paths = tuple(text for name in names for text in (name, f"{name}.wal"))

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Define the names of the view, and return its query."""
        for number, (snapshot, file) in enumerate(self._files.items()):
            connection.execute(f"ATTACH {literal(file)} AS _read{number} (READ_ONLY)")
            _define(connection, snapshot.dataset, f"FROM _read{number}.main.{identifier(snapshot.dataset)}")
        called = called_in(self._view.sql, *(view.sql for view in self._view.views))
        for macro in (*MACROS, *(macro.definition for macro in called)):
            connection.execute(f"CREATE MACRO runtime.main.{macro}")
        for view in self._view.views:
            _define(connection, view.name, view.sql)
        sql = f"(\n{self._view.sql}\n)"
        for name, type_, *_ in connection.execute(f"DESCRIBE {sql}").fetchall():
            if "ENUM(" in type_:
                raise SourceError(
                    f"The type of the column {name} lists values of rows that the view leaves out: cast it to VARCHAR."
                )
        return sql

    def explain(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> SourceError:
        """Return only the kind of error. The SQL error itself, which contains names but no data, is logged."""
        if isinstance(error, duckdb.BinderException | duckdb.CatalogException):
            logger.warning("The view %s cannot be computed: %s", self._name, str(error).partition("\n")[0])
            return SourceError(f"The view {self._name} does not match the data that it reads; see the runtime log.")
        return SourceError(f"The view {self._name} fails on the data that it reads ({type(error).__name__}).")


def _define(connection: duckdb.DuckDBPyConnection, name: str, sql: str) -> None:
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS runtime.{identifier(split_relation(name)[0])}")
    connection.execute(f"CREATE VIEW runtime.{qualified(name)} AS {sql}")


def _version(snapshots: tuple[Snapshot, ...]) -> str:
    return hashlib.sha256("\n".join(snapshot.file for snapshot in snapshots).encode()).hexdigest()
