"""
Build one immutable DuckDB file per version of a dataset, and tell a good one from a damaged one.

The loading engine is private to one build: it has its own memory limit and temporary directory, and can open nothing
but the pinned files of the source and the file it writes. So a `refresh_sql`, gated before, cannot reach further than
its dataset even if the gate let something through.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import duckdb

from datasets.deadline import Deadline
from datasets.errors import SchemaChangedError, SnapshotError, SourceError
from datasets.sources.registry import source_of
from datasets.sources.source import Load, Scan
from datasets.sql import identifier, literal, literals
from queryengine.catalog import SNAPSHOT_DIRECTORY, Column, Snapshot, snapshot_path, sync_directory
from queryengine.errors import WANT_OF_MEMORY
from runtimeconf.connectors import CONNECTORS
from runtimeconf.model import DatasetConfig, RuntimeConfig

#: Below the state directory: where a load spills. Nobody else writes there, so it is emptied at each start.
TEMPORARY_DIRECTORY = "refresh_tmp"

#: Types that a table can hold but no answer can show.
_UNSUPPORTED_TYPES = ("AGGREGATE_STATE",)

#: What the engine says when the snapshot, not the source, is the trouble; the system's words, free of paths.
_WRITE_FAILURES = re.compile(r"No space left on device|File too large|Input/output error|Disk quota exceeded")


TOO_LARGE = (
    "The load needs more memory than query.memory_limit, or more temporary space than query.temp_directory_limit."
)

_HASH_BLOCK_BYTES = 4 * 1024 * 1024


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fingerprint(dataset: DatasetConfig) -> str:
    """Return what tells whether data was built from these settings: other settings, another fingerprint."""
    secrets = {param.name for param in CONNECTORS[dataset.connector].params if param.is_secret}
    settings = [
        dataset.name,
        dataset.from_,
        dataset.location,
        sorted((name, value) for name, value in dataset.params.items() if name not in secrets),
        refresh_sql_of(dataset),
    ]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def refresh_sql_of(dataset: DatasetConfig) -> str | None:
    """Return the `refresh_sql` of the YAML, which is a part of the acceleration and off with it."""
    return dataset.acceleration.refresh_sql if dataset.acceleration.enabled else None


def verify(state_dir: Path, snapshot: Snapshot) -> None:
    """
    Compare a snapshot's file with what the manifest says of it: size, checksum, columns and rows.

    Raises:
        SnapshotError: It is missing, damaged, or of an engine that this one cannot read.
    """
    path = snapshot_path(state_dir, snapshot)
    try:
        size, checksum = _measure(path)
    except OSError as exc:
        raise SnapshotError(f"The snapshot of {snapshot.dataset} cannot be read: {exc.strerror}.") from exc
    if (size, checksum) != (snapshot.size_bytes, snapshot.sha256):
        raise SnapshotError(f"The snapshot of {snapshot.dataset} is damaged: its checksum is wrong.")
    _verify_content(path, snapshot)


def compare_columns(served: Snapshot, new: Snapshot) -> None:
    """
    Refuse *new* when its columns, their order or their types differ from those served.

    Raises:
        SchemaChangedError: They differ; the sentence names the first differences.
    """
    if served.columns == new.columns:
        return
    old_types = {column.name: column.type for column in served.columns}
    new_types = {column.name: column.type for column in new.columns}
    differences = [f"{name} is gone" for name in old_types if name not in new_types]
    differences += [f"{name} is new" for name in new_types if name not in old_types]
    differences += [
        f"{name} is {new_types[name]:.80} instead of {kind:.80}"
        for name, kind in old_types.items()
        if new_types.get(name, kind) != kind
    ]
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    what = ", ".join(differences[:3]) or "they are in another order"
    raise SchemaChangedError(
        f"The columns of {new.dataset} changed ({what}{more}) and on_schema_change is fail: "
        "the data loaded before stays; set it to accept to take the new columns."
    )


def new_file_name(dataset: DatasetConfig) -> str:
    """Return the name of a file that no snapshot has yet."""
    slug = re.sub(r"[^a-z0-9_]", "_", dataset.name.lower())[:40]
    return f"{slug}-{secrets.token_hex(8)}.duckdb"


class Builder(Protocol):
    """What loads a dataset."""

    def build(self, dataset: DatasetConfig, refresh_sql: str | None, deadline: Deadline) -> Snapshot:
        """
        Read the source and leave a verified file that survives a loss of power. Nothing is published yet.

        Args:
            dataset: What to read.
            refresh_sql: A gated SELECT over the dataset's own name, run on what was read; None for all of it.
            deadline: What ends the build early.

        Raises:
            SourceError: The source cannot be read, or is not what it should be.
            SnapshotError: The file cannot be written, or *deadline* passed. No file is left.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBuilder:
    """
    Builds snapshots below *state_dir*, in the thread that asks for one.

    A load uses at most *memory_limit_bytes* of memory and *temp_directory_limit_bytes* of temporary space, and one
    thread: what it takes from running statements is at most one core.
    """

    state_dir: Path
    memory_limit_bytes: int
    temp_directory_limit_bytes: int

    @classmethod
    def of(cls, config: RuntimeConfig) -> SnapshotBuilder:
        """Return the builder that *config* asks for."""
        return cls(
            state_dir=config.state_dir,
            memory_limit_bytes=config.query.memory_limit_bytes,
            temp_directory_limit_bytes=config.query.temp_directory_limit_bytes,
        )

    def build(self, dataset: DatasetConfig, refresh_sql: str | None, deadline: Deadline) -> Snapshot:
        """As `Builder.build`."""
        return self.build_file(new_file_name(dataset), dataset, refresh_sql, deadline)

    def build_file(self, file: str, dataset: DatasetConfig, refresh_sql: str | None, deadline: Deadline) -> Snapshot:
        """As `Builder.build`, into a *file* of the directory of snapshots that is not there yet."""
        path = self.state_dir / SNAPSHOT_DIRECTORY / file
        try:
            columns, rows = self._load(dataset, refresh_sql, path, deadline)
            path.chmod(0o600)
            _sync(path)
            sync_directory(path.parent)
            size, checksum = _measure(path)
            snapshot = Snapshot(
                dataset=dataset.name,
                file=path.name,
                rows=rows,
                size_bytes=size,
                sha256=checksum,
                created_at=utc_now(),
                source=fingerprint(dataset),
                columns=columns,
            )
            _verify_content(path, snapshot)
            deadline.check()
        except OSError as exc:
            remove(path)
            raise SnapshotError(f"The snapshot of {dataset.name} cannot be written: {exc.strerror}.") from exc
        except MemoryError as exc:
            remove(path)
            raise SnapshotError(TOO_LARGE) from exc
        except BaseException:
            remove(path)
            raise
        return snapshot

    def _load(
        self, dataset: DatasetConfig, refresh_sql: str | None, path: Path, deadline: Deadline
    ) -> tuple[tuple[Column, ...], int]:
        deadline.check()
        with (
            self._scratch(deadline) as load,
            source_of(dataset).open(load) as scan,
            self._connection(path, scan) as connection,
        ):
            table = f"_snapshot.main.{identifier(dataset.name)}"
            view = f"runtime.main.{identifier(dataset.name)}"
            with deadline.guard(connection), self._explained(connection, scan):
                relation = scan.bind(connection)
                connection.execute(f"CREATE VIEW {view} AS SELECT * FROM {relation}")  # noqa: S608 - quoted by us
                # Not DESCRIBE: that reads a text file once more to find its types.
                names = "SELECT column_name FROM duckdb_columns() WHERE database_name = 'runtime'"
                scan.accept(connection, [name for (name,) in connection.execute(names).fetchall()])
            with deadline.guard(connection), self._explained(connection, scan, refresh_sql):
                content = refresh_sql or f"SELECT * FROM {view}"  # noqa: S608 - gated, or quoted by us
                connection.execute(f"CREATE TABLE {table} AS\n{content}")
                connection.execute("CHECKPOINT _snapshot")
            scan.confirm()
            columns = _columns(connection, table)
            for column in columns:
                if column.type.startswith(_UNSUPPORTED_TYPES):
                    raise SourceError(f"The column {column.name} of {dataset.name} has a type that cannot be shown.")
            return columns, _count(connection, table)

    @contextlib.contextmanager
    def _scratch(self, deadline: Deadline) -> Iterator[Load]:
        """Begin a load with a directory of its own, which is gone when it ends."""
        scratch = self.state_dir / TEMPORARY_DIRECTORY
        scratch.mkdir(mode=0o700, exist_ok=True)
        try:
            yield Load(deadline=deadline, scratch=scratch, scratch_bytes=self.temp_directory_limit_bytes)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @contextlib.contextmanager
    def _connection(self, path: Path, scan: Scan) -> Iterator[duckdb.DuckDBPyConnection]:
        connection = duckdb.connect(
            ":memory:",
            config={
                "threads": 1,
                "memory_limit": f"{self.memory_limit_bytes}B",
                "temp_directory": str(self.state_dir / TEMPORARY_DIRECTORY),
                "max_temp_directory_size": f"{self.temp_directory_limit_bytes}B",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
                "python_enable_replacements": False,
                # A column without a single value gets a type that every table and every answer knows.
                "legacy_disable_null_type": True,
            },
        )
        try:
            with self._explained(connection, scan):
                connection.execute("SET GLOBAL TimeZone = 'UTC'")
                connection.execute(f"ATTACH {literal(str(path))} AS _snapshot (STORAGE_VERSION 'latest')")
                connection.execute("ATTACH ':memory:' AS runtime")
                connection.execute("USE runtime")
                connection.execute(f"SET GLOBAL allowed_paths = {literals(scan.paths)}")
                connection.execute("SET GLOBAL enable_external_access = false")
                connection.execute("SET GLOBAL lock_configuration = true")
            yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def _explained(
        self, connection: duckdb.DuckDBPyConnection, scan: Scan, refresh_sql: str | None = None
    ) -> Iterator[None]:
        """Turn what the engine raises into this room's errors; an interrupt is the deadline's to explain."""
        try:
            yield
        except duckdb.InterruptException:
            raise
        except duckdb.OutOfMemoryException as exc:
            raise SnapshotError(TOO_LARGE) from exc
        except duckdb.Error as exc:
            text = str(exc)
            if isinstance(exc, duckdb.FatalException | duckdb.InternalException) and WANT_OF_MEMORY.search(text):
                raise SnapshotError(TOO_LARGE) from exc
            if str(self.state_dir) in text or isinstance(exc, duckdb.FatalException | duckdb.InternalException):
                reason = _WRITE_FAILURES.search(text)
                raise SnapshotError(
                    f"The snapshot cannot be written: {reason[0] if reason else 'the engine failed'}."
                ) from exc
            if refresh_sql is not None and not any(path in text for path in scan.paths):
                raise SourceError(f"The refresh_sql failed: {text.partition(chr(10))[0].rstrip('.')[:300]}.") from exc
            raise scan.explain(connection, exc) from exc


def remove(path: Path) -> None:
    """Delete a snapshot's file and what the engine may have left beside it; what is not there is no matter."""
    for leftover in path.parent.glob(f"{path.name}*"):
        with contextlib.suppress(OSError):
            leftover.unlink()


def _columns(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[Column, ...]:
    rows = connection.execute(f"DESCRIBE {table}").fetchall()
    return tuple(Column(name=row[0], type=row[1]) for row in rows)


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - a quoted name of the YAML
    return int(row[0]) if row else 0


def _measure(path: Path) -> tuple[int, str]:
    """Return the size of a file in bytes and its SHA-256, of one and the same read."""
    size, digest = 0, hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            size += len(block)
            digest.update(block)
    return size, digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _verify_content(path: Path, snapshot: Snapshot) -> None:
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "enable_external_access": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    try:
        with duckdb.connect(str(path), read_only=True, config=config) as connection:
            table = identifier(snapshot.dataset)
            same = _columns(connection, table) == snapshot.columns and _count(connection, table) == snapshot.rows
    except duckdb.Error as exc:
        raise SnapshotError(f"The snapshot of {snapshot.dataset} cannot be opened by this engine.") from exc
    if not same:
        raise SnapshotError(f"The snapshot of {snapshot.dataset} does not hold the rows and columns it should.")
