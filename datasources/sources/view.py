"""
The source of a materialized view: the published snapshots of what it reads.

The loading engine attaches them read-only, defines the names that the view uses, and runs its SQL, which the gate has
admitted. An error neither quotes the data nor names what the view reads: a key that may name the view need not know it.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from datasources.errors import SourceError
from datasources.sources.source import Load, Scan
from datasources.sql import identifier, literal
from queryengine.execution.definitions import MACROS
from queryengine.manifest import ManifestError, Snapshot, read_manifest, snapshot_path
from runtimeconf.model import DatasetConfig, MaterializedView


class ViewSource:
    """A view over what is published in the state directory, its location."""

    def __init__(self, dataset: DatasetConfig) -> None:
        if dataset.view is None:
            raise TypeError("The dataset is not a materialized view.")
        self._view = dataset.view
        self._name = dataset.name
        self._state_dir = Path(dataset.location)

    @contextmanager
    def open(self, load: Load) -> "Iterator[ViewScan]":
        """As `Source.open`."""
        load.deadline.check()
        yield ViewScan(self._name, self._view, self._state_dir, self._snapshots())

    def has_changed(self, version: str, load: Load) -> bool:
        """Return whether anything that the view reads was published since."""
        load.deadline.check()
        return _version(self._snapshots()) != version

    def _snapshots(self) -> tuple[Snapshot, ...]:
        try:
            published = {snapshot.dataset.lower(): snapshot for snapshot in read_manifest(self._state_dir).snapshots}
        except ManifestError as exc:
            raise SourceError(str(exc)) from exc
        if not published.keys() >= set(self._view.reads):
            raise SourceError(f"Something that the view {self._name} reads has no data yet.")
        return tuple(published[name] for name in self._view.reads)


class ViewScan(Scan):
    """The snapshots that a view reads."""

    def __init__(self, name: str, view: MaterializedView, state_dir: Path, snapshots: tuple[Snapshot, ...]) -> None:
        self._name = name
        self._view = view
        self._files = {snapshot: snapshot_path(state_dir, snapshot) for snapshot in snapshots}
        self.version = _version(snapshots)
        self.paths = tuple(text for file in self._files.values() for text in (str(file), f"{file}.wal"))

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Define the names of the view, and return its query."""
        for number, (snapshot, file) in enumerate(self._files.items()):
            connection.execute(f"ATTACH {literal(str(file))} AS _read{number} (READ_ONLY)")
            name = identifier(snapshot.dataset)
            connection.execute(f"CREATE VIEW runtime.main.{name} AS FROM _read{number}.main.{name}")
        for macro in MACROS:
            connection.execute(f"CREATE MACRO runtime.main.{macro}")
        for view in self._view.views:
            connection.execute(f"CREATE VIEW runtime.main.{identifier(view.name)} AS {view.sql}")
        sql = f"(\n{self._view.sql}\n)"
        for name, type_, *_ in connection.execute(f"DESCRIBE {sql}").fetchall():
            if "ENUM(" in type_:
                raise SourceError(f"The type of the column {name} lists values of rows left out: cast it to VARCHAR.")
        return sql

    def explain(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> SourceError:
        """Name the kind of error alone."""
        return SourceError(f"The view {self._name} fails on the data of what it reads ({type(error).__name__}).")


def _version(snapshots: tuple[Snapshot, ...]) -> str:
    return hashlib.sha256("\n".join(snapshot.file for snapshot in snapshots).encode()).hexdigest()
