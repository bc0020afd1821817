"""
Checks views, `refresh_sql`, indexes and `time_column` against the datasets' columns, for `manage.py check`.

No rows are loaded. The columns of each dataset come from its source if the source is a local file, otherwise from the
published snapshot. The views are created over empty tables.
"""

import logging
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import duckdb
from msgspec import Struct
from msgspec.structs import replace

from datasources.deadline import Deadline
from datasources.errors import DatasetError, SourceError
from datasources.loading import append, indexes
from datasources.loading.columns import find_column
from datasources.loading.expiry import format_problem, window_of
from datasources.loading.loading_engine import LoadingEngine
from datasources.snapshots.snapshot import fingerprint, refresh_sql_of
from datasources.sources.registry import is_local
from datasources.sources.source import Load
from datasources.sql import identifier, literal
from queryengine.cancellation import Interruption
from queryengine.errors import QueryError
from queryengine.execution.instance import EngineInstance
from queryengine.execution.rule_gate import fault_of, gated_or_unavailable
from queryengine.execution.views import gate_views
from queryengine.gate.gate import Gate
from queryengine.manifest import (
    SNAPSHOT_DIRECTORY,
    Column,
    Manifest,
    ManifestError,
    Snapshot,
    read_manifest,
    snapshot_path,
)
from queryengine.values import qualified
from runtimeconf.errors import ConfigFault
from runtimeconf.model import DatasetConfig, Documentation, RuntimeConfig, ViewConfig
from system.tmpdir import ensure_temporary_directory

T = TypeVar("T")

#: The logger of the sources.
_SOURCES = logging.getLogger("datasources.sources")


class Findings(Struct, frozen=True, kw_only=True):
    """
    The result of a dry run.

    `errors` are declarations that do not fit the columns. `warnings` are sources that cannot currently be read,
    warnings that a load would log, and descriptions of columns that do not exist.
    """

    errors: tuple[ConfigFault, ...]
    warnings: tuple[ConfigFault, ...]


class Inspection(Struct, frozen=True, kw_only=True):
    """
    The expected result of loading one dataset: its `columns`, or None if the source cannot be read.

    `faults` are pairs of a dataset field and an error message. A fault for the field `from` means that the source
    cannot be read. `remarks` are such pairs for messages that a load would log, and for fields without effect.
    """

    columns: tuple[Column, ...] | None
    faults: tuple[tuple[str, str], ...] = ()
    remarks: tuple[tuple[str, str], ...] = ()


class _Warnings(logging.Handler):
    """Collects the messages of sources in `texts`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (text := record.getMessage()) not in self.texts:
            self.texts.append(text)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect messages from sources instead of logging them."""
    handler = _Warnings()
    _SOURCES.addHandler(handler)
    _SOURCES.propagate = False
    try:
        yield handler.texts
    finally:
        _SOURCES.propagate = True
        _SOURCES.removeHandler(handler)


def inspect(dataset: DatasetConfig, engine: LoadingEngine, load: Load) -> Inspection:
    """Look up the columns of the source of *dataset*, and check `refresh_sql` and `time_column` against them."""
    faults: list[tuple[str, str]] = []

    def tried(field: str, check: Callable[[], T]) -> T | None:
        try:
            return check()
        except DatasetError as error:
            faults.append((field, str(error)))
            return None

    with _warnings() as warnings:
        source = columns = tried("from", lambda: engine.columns(dataset, None, load))
        if source is not None:
            if (sql := refresh_sql_of(dataset)) is not None:
                columns = tried("acceleration.refresh_sql", lambda: engine.columns(dataset, sql, load))
            if append.time_column_of(dataset) is not None or window_of(dataset) is not None:
                tried("time_column", lambda: _check_time(dataset, source, columns))
    remarks = (*(("from", sentence) for sentence in warnings), *_remarks(dataset, source or ()))
    return Inspection(columns=columns, faults=tuple(faults), remarks=remarks)


def dry_run(config: RuntimeConfig, known: Mapping[str, tuple[Column, ...]] | None = None) -> Findings:
    """
    Inspect the sources of *config*, and create its views, whose SQL is already checked.

    The state directory is only read. If *known* is given (columns by lower-case dataset name), no source is opened.
    Datasets that a cluster reads in place, and views that run on a cluster, are not inspected.

    Raises:
        EngineUnavailableError: The engine cannot start.
        StateDirectoryError: No directory for temporary files is writable.
    """
    ensure_temporary_directory(config.state_dir)
    with tempfile.TemporaryDirectory(prefix="querykeep-") as directory:
        stage = _Stage(config, Path(directory), known)
        for dataset in config.loaded_datasets:
            if dataset.view is None:
                stage.add(dataset)
        if config.engine is None:
            stage.make_views()
        return Findings(errors=tuple(stage.errors), warnings=tuple(stage.warnings))


class _Stage:
    """A temporary state directory with an empty table for each dataset whose columns are known."""

    def __init__(self, config: RuntimeConfig, directory: Path, known: Mapping[str, tuple[Column, ...]] | None) -> None:
        self._known = known
        self._config = config
        self._directory = directory
        self._published = _published(config)
        self._snapshots: list[Snapshot] = []
        self.errors: list[ConfigFault] = []
        self.warnings: list[ConfigFault] = []
        (directory / SNAPSHOT_DIRECTORY).mkdir()

    def add(self, dataset: DatasetConfig) -> None:
        """Create the empty table of *dataset* if its columns are known."""
        name = dataset.name.lower()
        if self._known is None and is_local(dataset) and self._config.reads_sources:
            columns = self._columns(dataset)
        else:
            columns = (self._known or {}).get(name) or self._published.get(name)
            self._remark(dataset, _remarks(dataset, columns or ()))
        if columns:
            self._compare(dataset.documentation, columns, dataset.line, f"{dataset.yaml_path}.columns")
            with suppress(duckdb.Error):  # If only the source knows a type, the dataset's views are not checked.
                self._snapshots.append(self._empty(dataset, columns))

    def make_views(self) -> None:
        """Create the views, including materialized views, and record errors."""
        manifest = Manifest(generation=1, snapshots=tuple(self._snapshots))
        materialized = [
            ViewConfig(
                name=one.name,
                sql=one.view.sql,
                documentation=one.documentation,
                line=one.line,
                yaml_path=one.yaml_path,
            )
            for one in self._config.datasets
            if one.view is not None
        ]
        config = replace(
            self._config,
            state_dir=self._directory,
            datasets=tuple(one for one in self._config.datasets if one.view is None),
            views=(*self._config.views, *materialized),
        )
        names = frozenset(dataset.name.lower() for dataset in config.datasets)
        with closing(Gate(datafusion_sql=config.query.datafusion_sql)) as gate:
            views = gate_views(config.views, names, gate, config.file)
            with closing(EngineInstance(config, manifest, views, self._directory, tolerant=True)) as engine:
                self._check_rules(gate, engine)
                unfit = {view.yaml_path: " ".join(view.reason.split()) for view in engine.unfit_views.values()}
                for view in config.views:
                    if view.yaml_path in unfit:
                        self.errors.append(self._fault(view.line, view.yaml_path, unfit[view.yaml_path]))
                    elif columns := _columns_of(view, gate, engine):
                        where = f"{view.yaml_path.rpartition('.')[0]}.columns"
                        self._compare(view.documentation, columns, view.line, where)

    def _check_rules(self, gate: Gate, engine: EngineInstance) -> None:
        """Record an error for each key rule that does not fit the dataset columns."""
        relations = frozenset(one.name.lower() for one in self._config.datasets)
        relations |= frozenset(one.name.lower() for one in self._config.views)
        for rule in self._config.auth.rules:
            if reason := engine.misfit(gated_or_unavailable(rule, relations, gate)):
                self.errors.append(fault_of(rule, f"does not fit the data: {reason}", self._config.file))

    def _compare(self, documentation: Documentation, columns: Sequence[Column], line: int, yaml_path: str) -> None:
        """Record a warning for each column of *documentation* that does not exist."""
        for name in (*documentation.columns, *documentation.undescribed):
            if find_column(name, columns) is None:
                self.warnings.append(self._fault(line, yaml_path, f"there is no column {name}"))

    def _columns(self, dataset: DatasetConfig) -> tuple[Column, ...] | None:
        """Return the columns that a load of *dataset* would produce now. If it would fail, record why."""
        engine = LoadingEngine(self._config.state_dir, self._config.query.memory_limit_bytes)
        scratch = self._directory / f"{dataset.name.lower()}-columns"  # differs from every engine directory
        scratch.mkdir()
        load = Load(
            deadline=Deadline(dataset.acceleration.refresh_timeout_s, threading.Event()),
            scratch=scratch,
            scratch_bytes=self._config.query.temp_directory_limit_bytes,
        )
        found = inspect(dataset, engine, load)
        for field, sentence in found.faults:
            faults = self.warnings if field == "from" else self.errors
            faults.append(self._fault(dataset.line, f"{dataset.yaml_path}.{field}", sentence))
        self._remark(dataset, found.remarks)
        return found.columns

    def _remark(self, dataset: DatasetConfig, remarks: Iterable[tuple[str, str]]) -> None:
        for field, sentence in remarks:
            self.warnings.append(self._fault(dataset.line, f"{dataset.yaml_path}.{field}", sentence))

    def _empty(self, dataset: DatasetConfig, columns: tuple[Column, ...]) -> Snapshot:
        snapshot = Snapshot(
            dataset=dataset.name,
            file=f"{dataset.name.lower()}.duckdb",
            rows=0,
            size_bytes=0,
            sha256="",
            created_at="",
            source="",
            columns=columns,
        )
        declared = ", ".join(f"{identifier(column.name)} {column.type}" for column in columns)
        with duckdb.connect() as connection:
            path = snapshot_path(self._directory, snapshot)
            connection.execute(f"ATTACH {literal(str(path))} AS _snapshot (STORAGE_VERSION 'latest')")
            table = f"_snapshot.main.{identifier(dataset.name)}"
            connection.execute(f"CREATE TABLE {table} ({declared})")
            try:
                indexes.build(connection, table, columns, dataset)
            except DatasetError as error:
                self.errors.append(self._fault(dataset.line, f"{dataset.yaml_path}.acceleration", str(error)))
        return snapshot

    def _fault(self, line: int, yaml_path: str, message: str) -> ConfigFault:
        return ConfigFault(file=self._config.file_of(yaml_path), line=line, yaml_path=yaml_path, message=message)


def _check_time(dataset: DatasetConfig, source: tuple[Column, ...], columns: tuple[Column, ...] | None) -> None:
    time = append.find_time_column(dataset, source)
    if columns and append.time_column_of(dataset) is not None:
        append.check_result(dataset, time, columns)
    if window_of(dataset) is not None and (problem := format_problem(dataset, time)) is not None:
        raise SourceError(problem)


def _remarks(dataset: DatasetConfig, source: Sequence[Column]) -> tuple[tuple[str, str], ...]:
    """Return a remark if the `time_format` does not fit and is unused. If it is used, the load fails instead."""
    time = find_column(dataset.time_column or "", source)
    if time is None or dataset.time_format is None or window_of(dataset) is not None:
        return ()
    problem = format_problem(dataset, time)
    return () if problem is None else (("time_format", problem),)


def _columns_of(view: ViewConfig, gate: Gate, engine: EngineInstance) -> tuple[Column, ...]:
    """Return the columns of *view*; none if they are unknown or its documentation names no columns."""
    if not (view.documentation.columns or view.documentation.undescribed):
        return ()
    with suppress(QueryError):  # The view reads a dataset that was never loaded.
        statement = gate.admit(f"FROM {qualified(view.name)}", frozenset({view.name.lower()}))
        found = engine.describe(statement, None, Interruption())
        return () if found is None else found[0]
    return ()


def _published(config: RuntimeConfig) -> Mapping[str, tuple[Column, ...]]:
    """Return the columns of published snapshots that match the configuration, by lower-case dataset name."""
    declared = {dataset.name.lower(): fingerprint(dataset) for dataset in config.datasets}
    try:
        snapshots = read_manifest(config.state_dir).snapshots
    except ManifestError:
        return {}  # The runtime creates a new manifest.
    return {
        snapshot.dataset.lower(): snapshot.columns
        for snapshot in snapshots
        if snapshot.source == declared.get(snapshot.dataset.lower())
    }
