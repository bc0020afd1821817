"""
Builds one immutable DuckDB file per version of a dataset, and detects damaged files.

`datasources.loading.loading_engine` reads the source. This module turns the result into a verified, durable file.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol

import duckdb
from msgspec.structs import replace

from datasources.deadline import Deadline
from datasources.errors import SchemaChangedError, SnapshotError, SourceEmptyError, SourceError, not_written
from datasources.loading import append, indexes
from datasources.loading.columns import columns_of, count_of, refuse_changes, retyped
from datasources.loading.expiry import retention_of, window_of
from datasources.loading.loading_engine import TOO_LARGE, Loaded, LoadingEngine, lock_down, open_engine
from datasources.refresh_sql import admit_refresh_sql
from datasources.snapshots import parquet
from datasources.sources.registry import source_of
from datasources.sources.source import Load
from datasources.sql import identifier, literal
from queryengine.errors import StatementError
from queryengine.execution.views import without_order
from queryengine.gate.gate import Gate
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot, snapshot_path, sync_directory
from runtimeconf.connector import text_of
from runtimeconf.model import DatasetConfig, RefreshMode, RuntimeConfig
from runtimeconf.plugins import secret_params
from system.state_directory import remove_ours
from system.wallclock import utc_now

#: The directory below the state directory for scratch directories of loads. It is emptied at each startup.
TEMPORARY_DIRECTORY = "refresh_tmp"

#: The names of new files, the engine's files next to them, and scratch directories.
SNAPSHOT_FILE = re.compile(r"[a-z0-9_]+-[0-9a-f]{16}\.duckdb")
SNAPSHOT_FILES = re.compile(f"{SNAPSHOT_FILE.pattern}.*")
SCRATCH_DIRECTORIES = re.compile(r"[a-z0-9_]+-[0-9a-f]{16}")

logger = logging.getLogger(__name__)

#: Error numbers that mean that the process or the machine lacks resources.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def fingerprint(dataset: DatasetConfig) -> str:
    """Return a string that changes whenever the settings used to build the data change."""
    location = "" if dataset.view is not None else dataset.location  # of a view, the state directory of this node
    settings = [dataset.name, dataset.from_, location, *_settings_of_columns(dataset), append.time_column_of(dataset)]
    if declared := indexes.declared(dataset):  # Without indexes, the fingerprint equals that of older releases.
        settings.append(declared)
    if (window_s := window_of(dataset)) is not None:
        settings += [window_s, retention_of(dataset), dataset.time_column, dataset.time_format]
    if dataset.view is not None:
        settings += [
            dataset.view.sql,
            [(view.name, view.sql) for view in dataset.view.views],
            dataset.view.fingerprints,
        ]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def origin(dataset: DatasetConfig) -> str:
    """Return a string that changes whenever the settings change that decide what the columns of the data mean."""
    settings: list[object] = [dataset.name.lower(), *_settings_of_columns(dataset)]
    if dataset.view is None:
        settings += [dataset.connector, os.path.normpath(dataset.location)]
    else:
        settings.append(without_order(dataset.view.sql))  # The order depends on the keys.
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def _settings_of_columns(dataset: DatasetConfig) -> list[object]:
    secrets = secret_params(dataset.connector)
    return [
        sorted((name, text_of(value)) for name, value in dataset.params.items() if name not in secrets),
        refresh_sql_of(dataset),
    ]


def with_fingerprints(config: RuntimeConfig) -> RuntimeConfig:
    """
    Return *config* with the fingerprint of each loaded dataset, so that nothing reads data built otherwise.

    Nodes that never publish serve what is published, because they need not know where it comes from.
    """
    declared = {one.name.lower(): one for one in config.datasets}
    follows = config.snapshots is not None and config.snapshots.role == "follower"
    found: dict[str, DatasetConfig] = {}

    def marked(name: str) -> DatasetConfig:
        if name not in found:
            one = declared[name]
            view = one.view and replace(one.view, fingerprints=tuple(fingerprint(marked(of)) for of in one.view.reads))
            one = replace(one, view=view)
            found[name] = replace(one, fingerprint="" if follows or one.is_in_place else fingerprint(one))
        return found[name]

    return replace(config, datasets=tuple(map(marked, declared)))


def refresh_sql_of(dataset: DatasetConfig) -> str | None:
    """Return the declared `refresh_sql`; None if there is none or acceleration is disabled."""
    return dataset.acceleration.refresh_sql if dataset.acceleration.enabled else None


class Verifier:
    """
    Verifies snapshots in *state_dir* with an engine that can open nothing else.

    Starting an engine takes ten times as long as verifying a snapshot, so one engine verifies many snapshots. Not
    thread-safe. The owner closes it.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._connection: duckdb.DuckDBPyConnection | None = None

    def close(self) -> None:
        """Close the engine. The next verification starts another engine."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def is_good(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot file matches the manifest, and log any mismatch."""
        try:
            verify_file(self._state_dir, snapshot)
            self.verify_content(snapshot)
        except (SnapshotError, OSError) as exc:
            fault = _unreadable(snapshot, exc) if isinstance(exc, OSError) else exc
            logger.warning("%s It will be reloaded from the source.", fault)
            return False
        return True

    def verify_content(self, snapshot: Snapshot) -> None:
        """
        Compare the columns and the number of rows in the file with *snapshot*.

        Raises:
            SnapshotError: They differ, or this engine cannot read the file.
        """
        table = f"_snapshot.main.{identifier(snapshot.dataset)}"
        try:
            if self._connection is None:
                self._connection = open_engine({})
                lock_down(self._connection, allowed_directories=[str(self._state_dir / SNAPSHOT_DIRECTORY)])
            connection = self._connection
            # Attach the file instead of opening it, because all connections in a process that open the same file must
            # share settings.
            path = literal(str(snapshot_path(self._state_dir, snapshot)))
            connection.execute(f"ATTACH {path} AS _snapshot (READ_ONLY)")
            same = columns_of(connection, table) == snapshot.columns and count_of(connection, table) == snapshot.rows
            connection.execute("DETACH _snapshot")
        except BaseException as exc:
            self.close()  # The snapshot may still be attached.
            if not isinstance(exc, duckdb.Error):
                raise
            raise SnapshotError(f"The snapshot of {snapshot.dataset} cannot be opened by this engine.") from exc
        if not same:
            raise SnapshotError(f"The snapshot of {snapshot.dataset} does not have the expected rows and columns.")


def verify_file(state_dir: Path, snapshot: Snapshot) -> None:
    """
    Compare the size and checksum of a snapshot file with the manifest.

    Raises:
        SnapshotError: The file is missing or damaged.
        OSError: This process lacks the descriptors or memory to check.
    """
    try:
        size, checksum = _measure(snapshot_path(state_dir, snapshot))
    except OSError as exc:
        if exc.errno in _SHORTAGES:
            raise
        raise _unreadable(snapshot, exc) from exc
    if (size, checksum) != (snapshot.size_bytes, snapshot.sha256):
        raise SnapshotError(f"The snapshot of {snapshot.dataset} is damaged: its checksum is wrong.")


def _unreadable(snapshot: Snapshot, error: OSError) -> SnapshotError:
    return SnapshotError(f"The snapshot of {snapshot.dataset} cannot be read: {error.strerror}.")


@dataclass(frozen=True, slots=True)
class Order:
    """
    One snapshot to build.

    Args:
        dataset: The dataset to read.
        refresh_sql: A gated SELECT over the dataset's own name, run on the source's rows; None for all rows.
        served: The published snapshot of the dataset. It must stay in place until the build returns.
        former: The last snapshot of the dataset, which may have been built from other settings and may be gone.
        skip_unchanged: Whether a source that has not changed since *served* may be skipped.
        mode: Whether to replace all rows or to append newer rows to *served*; None means as *dataset* declares.
            Appending needs a `time_column`.
        file: The unused name of the new file in the snapshot directory.
        exports: Load nothing and only write the Parquet file of *served*.
        now: The time (`time.time()`) that decides which rows are too old.
    """

    dataset: DatasetConfig
    refresh_sql: str | None = None
    _: KW_ONLY
    served: Snapshot | None = None
    former: Snapshot | None = None
    skip_unchanged: bool = False
    mode: RefreshMode | None = None
    file: str = ""
    exports: bool = False
    now: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if not self.file:
            slug = re.sub(r"[^a-z0-9_]", "_", self.dataset.name.lower())[:40]
            object.__setattr__(self, "file", f"{slug}-{secrets.token_hex(8)}.duckdb")


class Builder(Protocol):
    """Builds snapshots of datasets."""

    @property
    def phases(self) -> Mapping[str, float]:
        """The seconds of each completed phase of the last build, in order."""

    @property
    def is_started(self) -> bool:
        """Whether the next build can begin without a process having to start."""

    def build(self, order: Order, deadline: Deadline) -> Snapshot | None:
        """
        Read the source and write a verified file that survives a power failure. Nothing is published yet.

        Returns:
            The new snapshot, or None if there is nothing to publish. That is the case if the source is unchanged and
                *order* allows skipping it, or if the load appends and there are no newer rows. In both cases the file
                of the served snapshot has just been verified.

        Raises:
            SchemaChangedError: Newer rows have different columns than the served rows, and `on_schema_change` is
                `fail`.
            SourceEmptyError: There are no longer any rows, and `on_empty` is `fail`.
            SourceError: The source cannot be read, or its data is not valid.
            SnapshotError: The file cannot be written, or *deadline* has passed. No file is left.
        """

    def close(self) -> None:
        """Release the resources kept for the next build, which then takes longer to start."""


@dataclass(frozen=True, kw_only=True)
class SnapshotBuilder:
    """
    Builds snapshots below *state_dir*, in the calling thread. Not thread-safe.

    A load uses at most *memory_limit_bytes* of memory, *temp_directory_limit_bytes* of temporary space, and one thread,
    so it takes at most one core from running statements. With *checks_sql*, the gate checks an order's SELECT again,
    although it should already have been checked (see `_check_again`). *datafusion_sql* is the dialect of that check.
    With *exports*, each snapshot gets a Parquet file.
    """

    state_dir: Path
    memory_limit_bytes: int
    temp_directory_limit_bytes: int
    checks_sql: bool = False
    datafusion_sql: bool = True
    exports: bool = False
    is_started: ClassVar[bool] = True

    @classmethod
    def of(cls, config: RuntimeConfig) -> "SnapshotBuilder":
        """Return a builder with the limits of *config*."""
        return cls(
            state_dir=config.state_dir,
            memory_limit_bytes=config.query.memory_limit_bytes,
            temp_directory_limit_bytes=config.query.temp_directory_limit_bytes,
            checks_sql=config.snapshots is not None,
            datafusion_sql=config.query.datafusion_sql,
            exports=config.engine is not None,
        )

    @cached_property
    def phases(self) -> dict[str, float]:
        """
        See `Builder.phases`.

        "load" reads the source and writes the file, "sync" makes the file durable, "verify" checks it, and "export"
        writes the Parquet file.
        """
        return {}

    @cached_property
    def _verifier(self) -> Verifier:
        return Verifier(self.state_dir)

    @cached_property
    def _engine(self) -> LoadingEngine:
        return LoadingEngine(self.state_dir, self.memory_limit_bytes)

    def close(self) -> None:
        """See `Builder.close`."""
        self._verifier.close()

    def build(self, order: Order, deadline: Deadline) -> Snapshot | None:
        """See `Builder.build`."""
        if order.exports:
            self._export(order.served, deadline)
            return order.served
        dataset, path = order.dataset, self.state_dir / SNAPSHOT_DIRECTORY / order.file
        if self.checks_sql:
            _check_again(order, datafusion_sql=self.datafusion_sql)
        self.phases.clear()
        began = time.monotonic()
        try:
            with self._load(order, deadline) as load:
                loaded = self._content(order, path, load)
                if loaded is not None and not loaded.rows:
                    self._refuse_emptiness(order, load)
            self.phases["load"] = (written := time.monotonic()) - began
            if loaded is None:
                return None
            path.chmod(0o600)
            with path.open("rb+", buffering=0) as file:
                os.fsync(file.fileno())
            sync_directory(path.parent)
            size, checksum = _measure(path)
            snapshot = Snapshot(
                dataset=dataset.name,
                file=path.name,
                rows=loaded.rows,
                size_bytes=size,
                sha256=checksum,
                created_at=utc_now(),
                source=fingerprint(dataset),
                origin=origin(dataset),
                source_version=None if loaded.version is None else _version_prefix(order.refresh_sql) + loaded.version,
                columns=loaded.columns,
                retyped=retyped(order.served or order.former, origin(dataset), loaded.columns),
                is_reordered=loaded.is_reordered,
            )
            self.phases["sync"] = (synced := time.monotonic()) - written
            self._verifier.verify_content(snapshot)
            self.phases["verify"] = (verified := time.monotonic()) - synced
            if self.exports:
                self._export(snapshot, deadline)
                self.phases["export"] = time.monotonic() - verified
            deadline.check()
        except BaseException as exc:
            remove(path)
            if isinstance(exc, OSError):
                raise not_written(f"The snapshot of {dataset.name}", exc.strerror) from exc
            if isinstance(exc, MemoryError):
                raise SnapshotError(TOO_LARGE) from exc
            raise
        return snapshot

    def _export(self, snapshot: Snapshot | None, deadline: Deadline) -> None:
        if snapshot is not None:
            parquet.export(self.state_dir, snapshot, self.memory_limit_bytes, deadline)

    def _content(self, order: Order, path: Path, load: Load) -> Loaded | None:
        """Write the file. Return None if the served snapshot stays in use."""
        dataset, served = append.in_mode(order.dataset, order.mode), order.served
        may_skip = served is not None and order.skip_unchanged and self._is_unchanged(order, served, load)
        by_time = None if order.mode == "full" else append.time_column_of(dataset)
        may_append = served is not None and by_time is not None and served.source == fingerprint(order.dataset)
        if served is None or not (may_skip or may_append) or not self._verifier.is_good(served):
            return self._engine.load(dataset, order.refresh_sql, path, load)
        if may_skip and not self._engine.has_expired(dataset, snapshot_path(self.state_dir, served), load):
            return None
        if not may_append:
            return self._engine.load(dataset, order.refresh_sql, path, load)
        try:
            return self._appended(order, dataset, served, path, load)
        except SchemaChangedError:
            if dataset.on_schema_change == "fail":
                raise
        return self._engine.load(dataset, order.refresh_sql, path, load)

    def _refuse_emptiness(self, order: Order, load: Load) -> None:
        """
        Refuse a result without rows if `on_empty` is `fail` and the served rows include rows that have not expired.

        Raises:
            SourceEmptyError: The result is refused.
        """
        dataset, served = order.dataset, order.served
        if dataset.on_empty == "accept" or served is None or not served.rows:
            return
        if self._engine.has_current(dataset, snapshot_path(self.state_dir, served), load):
            raise SourceEmptyError(
                f"The source of {dataset.name} has no rows and on_empty is fail: the {served.rows} previously loaded "
                "rows stay in place. To serve an empty dataset, set on_empty to accept."
            )

    def _is_unchanged(self, order: Order, served: Snapshot, load: Load) -> bool:
        """Return whether *served* was built from this version of the source with the same settings."""
        version = source_version_of(served, order.dataset, order.refresh_sql)
        return version is not None and not source_of(order.dataset).has_changed(version, load)

    def _appended(
        self, order: Order, dataset: DatasetConfig, served: Snapshot, path: Path, load: Load
    ) -> Loaded | None:
        """
        Write the served rows and the newer rows. Return None if there are no newer rows.

        The newer rows are first written to a separate file, so that the served rows are copied only if needed, and
        memory does not limit the number of newer rows.
        """
        old = snapshot_path(self.state_dir, served)
        last = self._engine.watermark(dataset.name, str(dataset.time_column), old, load)
        if last is None:
            return self._engine.load(dataset, order.refresh_sql, path, load)
        new = load.scratch / "new.duckdb"
        loaded = self._engine.load(dataset, order.refresh_sql, new, load, last)
        refuse_changes(dataset.name, served.columns, loaded.columns)
        if not loaded.rows and not self._engine.has_expired(dataset, old, load):
            return None
        append.copy(old, path, load.deadline)
        # If refreshes normally replace all rows, the next refresh must read the source again to drop deleted rows.
        version = loaded.version if dataset is order.dataset else None
        moved = served.is_reordered or dataset.acceleration.on_conflict == "upsert"
        return replace(loaded, rows=self._engine.add(dataset, new, path, load), version=version, is_reordered=moved)

    @contextlib.contextmanager
    def _load(self, order: Order, deadline: Deadline) -> Iterator[Load]:
        """Provide a `Load` with a scratch directory, which is deleted at the end."""
        scratch = scratch_directory(self.state_dir, order.file)
        # The parent directory stays because another load may be about to create its own directory in it.
        scratch.parent.mkdir(mode=0o700, exist_ok=True)
        scratch.mkdir(mode=0o700)
        try:
            space, served = self.temp_directory_limit_bytes, order.served.columns if order.served is not None else ()
            yield Load(deadline=deadline, scratch=scratch, scratch_bytes=space, served=served, now=order.now)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _check_again(order: Order, *, datafusion_sql: bool) -> None:
    """
    Check a caller's SELECT, which may have come from another node through storage that others can write to.

    Raises:
        SourceError: The SELECT is not allowed.
    """
    if order.refresh_sql in {None, refresh_sql_of(order.dataset)}:
        return
    with contextlib.closing(Gate(datafusion_sql=datafusion_sql)) as gate:
        try:
            admit_refresh_sql(gate, order.dataset, str(order.refresh_sql))
        except StatementError as exc:
            raise SourceError(str(exc)) from exc


def scratch_directory(state_dir: Path, file: str) -> Path:
    """Return the scratch directory of the load that writes the snapshot *file*."""
    return state_dir / TEMPORARY_DIRECTORY / Path(file).stem


def remove(path: Path) -> None:
    """Delete the file of a snapshot and the engine's files next to it. A missing file is not an error."""
    remove_ours(path.parent, re.compile(f"{re.escape(path.name)}.*"))


def source_version_of(served: Snapshot, dataset: DatasetConfig, refresh_sql: str | None) -> str | None:
    """Return the source version of *served*; None if unknown, or if it was built with other settings."""
    prefix, version = _version_prefix(refresh_sql), served.source_version
    if served.source != fingerprint(dataset) or version is None or not version.startswith(prefix):
        return None
    return version.removeprefix(prefix)


def _version_prefix(refresh_sql: str | None) -> str:
    """Return the prefix of `Snapshot.source_version`. Different SELECTs return different rows from the same source."""
    return hashlib.sha256(json.dumps(refresh_sql).encode()).hexdigest()[:16] + ":"


def _measure(path: Path) -> tuple[int, str]:
    """Return a file's size in bytes and its SHA-256, from one read."""
    with path.open("rb", buffering=0) as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), checksum
