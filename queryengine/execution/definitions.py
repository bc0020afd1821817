"""
What the names in a statement refer to: the datasets, views and catalog of one DuckDB instance.

Each snapshot is attached read-only under a hidden name, and each declared dataset is a view `runtime.main.<dataset>` on
it. The views of the YAML follow.
"""

from __future__ import annotations

import errno
import io
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import duckdb

from queryengine.engine import GatedStatement
from queryengine.errors import DatasetNotLoadedError, EngineUnavailableError, SqlError
from queryengine.execution import duckdb_errors, macros
from queryengine.execution.views import GatedView
from queryengine.manifest import Snapshot, snapshot_path
from queryengine.values import quoted
from runtimeconf.model import RuntimeConfig

logger = logging.getLogger(__name__)

#: The operating system's message when a process, or the whole system, has no file descriptor left.
_NO_DESCRIPTOR_LEFT = os.strerror(errno.EMFILE)


class SnapshotGoneError(Exception):
    """A snapshot file of the manifest is missing: a newer manifest superseded it, or somebody removed the file."""


@dataclass(frozen=True, slots=True)
class UnfitView:
    """A view that does not fit the data: its path in the YAML, and the engine's reason."""

    yaml_path: str
    reason: str


class Definitions:
    """
    The relations of one DuckDB instance over *snapshots*, which are given by dataset in lower case.

    `unfit_views` holds the views that do not fit the data, by name, without those that only read one of them.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, config: RuntimeConfig, snapshots: Mapping[str, Snapshot]
    ) -> None:
        self.unfit_views: dict[str, UnfitView] = {}
        self._connection = connection
        self._config = config
        self._snapshots = snapshots
        #: The datasets that each view reads, by names in lower case.
        self._datasets_of: dict[str, frozenset[str]] = {}
        #: Why a relation has no data now: it is not loaded yet, or its snapshot is unusable.
        self._unavailable: dict[str, str] = {}
        #: Why a view cannot be read at all: its SQL does not fit the data.
        self._faulty: dict[str, str] = {}
        self._nondeterministic_views: set[str] = set()

    def define(self, views: Sequence[GatedView], *, tolerant: bool) -> None:
        """
        Define everything. Each of *views* reads only earlier ones.

        With *tolerant*, a snapshot that is missing or unreadable makes its dataset alone unavailable.

        Raises:
            SnapshotGoneError: A snapshot is missing or unreadable, and not *tolerant*.
            EngineUnavailableError: The process has too few file descriptors.
        """
        self._define_datasets(tolerant=tolerant)
        self._connection.execute("ATTACH ':memory:' AS _catalog (HIDDEN)")
        self._define_catalog()
        for definition in macros.definitions():
            self._connection.execute(definition)
        for view in views:
            self._define_view(view)

    def require(self, relations: Iterable[str]) -> None:
        """
        Check that each of *relations* can be read.

        Raises:
            DatasetNotLoadedError: One has no data.
            SqlError: One is a view that does not fit the data.
        """
        for name in sorted(relations):
            if name in self._unavailable:
                raise DatasetNotLoadedError(self._unavailable[name])
            if name in self._faulty:
                raise SqlError(self._faulty[name])

    def is_cacheable(self, statement: GatedStatement) -> bool:
        """Say whether the parameters of *statement* and the data alone decide its result."""
        return statement.deterministic and self._nondeterministic_views.isdisjoint(statement.relations)

    def datasets_of(self, relations: Iterable[str]) -> frozenset[str]:
        """Return the datasets among *relations*, and those that the views among them read."""
        return frozenset().union(*(self._datasets_of.get(name, {name}) for name in relations))

    def _define_catalog(self) -> None:
        """Define what the gate substitutes for `information_schema`: the same tables, with the declared names only."""
        datasets = ", ".join(["NULL", *(_text_literal(dataset.name) for dataset in self._config.datasets)])
        table_type = f"if(table_name IN ({datasets}), 'BASE TABLE', 'VIEW') AS table_type"
        for view, selected, condition in (
            ("tables", f"* REPLACE ({table_type})", "table_catalog = 'runtime' AND table_schema = 'main'"),
            ("columns", "*", "table_catalog = 'runtime' AND table_schema = 'main'"),
            ("schemata", "*", "catalog_name = 'runtime' AND schema_name = 'main'"),
        ):
            source = f"information_schema.{view}"
            self._create_view(f"_catalog.main.{view}", f"FROM {source} SELECT {selected} WHERE {condition}")

    def _define_datasets(self, *, tolerant: bool) -> None:
        with ExitStack() as opened:
            # Open all files first, which takes a fiftieth of the time that attaching them takes. If refreshes came
            # faster than the files are attached, one would be missing at each attempt.
            files = [self._opened_file(dataset.name, opened, tolerant=tolerant) for dataset in self._config.datasets]
            for number, (dataset, file) in enumerate(zip(self._config.datasets, files, strict=True)):
                if file is not None:
                    with file:
                        self._define_dataset(number, dataset.name, file.fileno(), tolerant=tolerant)

    def _opened_file(self, name: str, opened: ExitStack, *, tolerant: bool) -> io.FileIO | None:
        """Open the snapshot of the dataset *name*, so that it can be attached even after it is superseded."""
        snapshot = self._snapshots.get(name.lower())
        if snapshot is None:
            self._unavailable[name.lower()] = f"Dataset '{name}' is not loaded yet."
            return None
        try:
            return opened.enter_context(io.FileIO(snapshot_path(self._config.state_dir, snapshot)))
        except OSError as exc:
            self._refuse_file(name, snapshot, exc, tolerant=tolerant)
            return None

    def _define_dataset(self, number: int, name: str, descriptor: int, *, tolerant: bool) -> None:
        snapshot = self._snapshots[name.lower()]
        path = snapshot_path(self._config.state_dir, snapshot)
        try:
            try:
                self._attach(number, path)
            except duckdb.IOException:
                if path.exists():
                    raise
                self._attach(number, Path(f"/proc/self/fd/{descriptor}"))
            self._create_view(f"runtime.main.{quoted(name)}", f"FROM _s{number}.main.{quoted(snapshot.dataset)}")
        except duckdb.Error as exc:
            self._refuse_file(name, snapshot, exc, tolerant=tolerant)

    def _refuse_file(self, name: str, snapshot: Snapshot, exc: Exception, *, tolerant: bool) -> None:
        """Make the dataset of an unreadable *snapshot* unavailable, or raise the error that *exc* stands for."""
        if _NO_DESCRIPTOR_LEFT in str(exc):  # The file is good: tell the caller, and open the instance again later.
            logger.error("too few file descriptors", extra={"fields": {"snapshots": len(self._snapshots)}})
            raise EngineUnavailableError("The system allows the engine too few open files.") from exc
        if not tolerant:
            raise SnapshotGoneError(snapshot.file) from exc
        fields = {"dataset": name, "snapshot": snapshot.file}
        logger.error("snapshot unusable", exc_info=exc, extra={"fields": fields})
        self._unavailable[name.lower()] = f"Dataset '{name}' cannot be read at the moment."

    def _attach(self, number: int, path: Path) -> None:
        self._connection.execute(f"ATTACH {_text_literal(str(path))} AS _s{number} (READ_ONLY, HIDDEN)")

    def _define_view(self, view: GatedView) -> None:
        name = view.config.name
        self._datasets_of[name.lower()] = self.datasets_of(view.statement.relations)
        if not self.is_cacheable(view.statement):
            self._nondeterministic_views.add(name.lower())
        for needed in sorted(view.statement.relations):
            if needed in self._unavailable:
                self._unavailable[name.lower()] = f"View '{name}' has no data yet: {self._unavailable[needed]}"
                return
            if needed in self._faulty:
                self._faulty[name.lower()] = f"View '{name}' cannot be read: {self._faulty[needed]}"
                return
        try:
            self._create_view(f"runtime.main.{quoted(name)}", view.statement.sql)
        except duckdb.Error as exc:
            # Leave out the excerpt: it shows our CREATE VIEW, which the author of the statement did not write.
            reason = duckdb_errors.sentence(exc, self._config.state_dir).partition("\n\nLINE ")[0]
            self.unfit_views[name] = UnfitView(view.config.yaml_path, reason)
            self._faulty[name.lower()] = f"View '{name}' does not fit the data: {reason}"

    def _create_view(self, name: str, sql: str) -> None:
        self._connection.execute(f"CREATE VIEW {name} AS {sql}")


def _text_literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
