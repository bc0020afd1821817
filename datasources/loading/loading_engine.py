"""
The engine that loads: private to one load, confined to it, and thrown away with it.

It has its own memory limit and temporary directory, and can open nothing but the pinned files of the source and the
file that it writes. So a `refresh_sql`, gated before, cannot reach further than its dataset even if the gate let
something through.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from datasources.errors import SnapshotError, SourceError, not_written
from datasources.loading import append, indexes
from datasources.loading.append import Watermark
from datasources.loading.columns import columns_of, count_of, refuse_changes, refuse_excess
from datasources.loading.pushdown import wanted_by
from datasources.sources.formats import DESCRIPTORS
from datasources.sources.registry import source_of
from datasources.sources.source import Load, Scan, Wanted
from datasources.sql import identifier, literal, literals
from queryengine.errors import WANT_OF_MEMORY
from queryengine.manifest import Column
from runtimeconf.model import DatasetConfig

TOO_LARGE = (
    "The load needs more memory than query.memory_limit, or more temporary space than query.temp_directory_limit."
)

#: Types that a table can hold but no answer can show.
_UNSUPPORTED_TYPES = ("AGGREGATE_STATE",)

#: What the engine says when the snapshot, not the source, is the trouble, free of paths.
_WRITE_ERRNOS = (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOENT)
_WRITE_FAILURES = re.compile("|".join([*map(os.strerror, _WRITE_ERRNOS), "fsync failed"]))

#: What the engine says in a commit that lacks memory, for which it has no type of error then.
_WANT_OF_MEMORY = re.compile(rf"{WANT_OF_MEMORY.pattern}|(?:allocate|pin) (?:block|data) of size", re.IGNORECASE)

#: The columns of the view of the source. Not DESCRIBE: that reads a text file once more to find its types.
_COLUMNS_READ = (
    "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = 'runtime' ORDER BY column_index"
)

#: Where a stream that a SELECT may read more than once is kept meanwhile; it spills as any temporary table does.
_KEPT = "_rows"


#: What a source holds beside the engine comes out of the engine's memory: at most this part of it.
_MAX_HELD_PART = 2


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load wrote, and the version of the source that it read."""

    columns: tuple[Column, ...]
    rows: int
    version: str | None


@dataclass(frozen=True, slots=True)
class LoadingEngine:
    """
    Loads for the runtime whose state is in *state_dir*, of which no error says anything.

    It uses at most *memory_limit_bytes* of memory, the temporary space that a load allows, and one thread.
    """

    state_dir: Path
    memory_limit_bytes: int

    def load(
        self,
        dataset: DatasetConfig,
        refresh_sql: str | None,
        path: Path,
        load: Load,
        newer_than: Watermark | None = None,
    ) -> Loaded:
        """
        Read the source into a table named like *dataset*, in a new file at *path*.

        Args:
            dataset: What to read.
            refresh_sql: As in `Builder.build`.
            path: The file; what is there of it after an error is the caller's to delete.
            load: The load, of which everything is wanted.
            newer_than: Only newer rows are read; None for all.

        Raises:
            SchemaChangedError: The time of the source is of another type than in *newer_than*.
            SourceError: The source cannot be read, or is not what it should be.
            SnapshotError: The file cannot be written, or the deadline passed.
        """
        deadline = load.deadline
        deadline.check()
        load = replace(load, wanted=_wanted(dataset, refresh_sql, newer_than))
        with source_of(dataset).open(load) as scan, self._connection(load, scan) as connection:
            table = f"_snapshot.main.{identifier(dataset.name)}"
            view = f"runtime.main.{identifier(dataset.name)}"
            with deadline.guard(connection), self._explained(connection, scan):
                self._confine(connection, path, scan)
                relation = scan.bind(connection)
                rows = f"SELECT * FROM {relation}"  # noqa: S608 - quoted by the source
                columns = columns_of(connection, rows) if refresh_sql is None else _viewed(connection, view, rows)
                refuse_excess(dataset.name, columns)
                scan.accept(connection, [column.name for column in columns])
                time = append.find_time_column(dataset, columns) if append.time_column_of(dataset) else None
                if time is not None and newer_than is not None:
                    refuse_changes(dataset.name, [newer_than.column], [time])
                    rows = f"{rows} WHERE {newer_than.condition}"
                if refresh_sql is not None and scan.is_read_once:
                    connection.execute(f"CREATE TEMP TABLE {_KEPT} AS {_chosen(rows, columns, load.wanted)}")
                    connection.execute(f"CREATE OR REPLACE VIEW {view} AS FROM temp.{_KEPT}")
                elif refresh_sql is not None and newer_than is not None:
                    connection.execute(f"CREATE OR REPLACE VIEW {view} AS {rows}")
            with deadline.guard(connection), self._explained(connection, scan, dataset if refresh_sql else None):
                connection.execute(f"CREATE TABLE {table} AS\n{refresh_sql or rows}")
                written = columns_of(connection, table)
                refuse_excess(dataset.name, written)
            with deadline.guard(connection), self._explained(connection):
                if newer_than is None:  # What is added to others is checked with them.
                    indexes.build(connection, table, written, dataset)
                connection.execute("CHECKPOINT _snapshot")
            scan.confirm()
            for column in written:
                if column.type.startswith(_UNSUPPORTED_TYPES):
                    raise SourceError(f"The column {column.name} of {dataset.name} has a type that cannot be shown.")
            if time is not None:
                append.check_result(dataset, time, written)
            return Loaded(written, count_of(connection, table), scan.version)

    def columns(self, dataset: DatasetConfig, refresh_sql: str | None, load: Load) -> tuple[Column, ...]:
        """
        Return the columns that `load` would write. No rows are read but those by which a text file shows its types.

        Raises:
            SourceError: The source cannot be read, or *refresh_sql* does not fit it.
            SnapshotError: The deadline passed.
        """
        deadline = load.deadline
        with source_of(dataset).open(load) as scan, self._connection(load, scan) as connection:
            with deadline.guard(connection), self._explained(connection, scan):
                self._confine(connection, load.scratch / "columns.duckdb", scan)
                rows = f"SELECT * FROM {scan.bind(connection)}"  # noqa: S608 - quoted by the source
                if refresh_sql is not None:
                    _viewed(connection, f"runtime.main.{identifier(dataset.name)}", rows)
            with deadline.guard(connection), self._explained(connection, scan, dataset if refresh_sql else None):
                return columns_of(connection, refresh_sql or rows)

    def add(self, table: str, new: Path, path: Path, load: Load) -> int:
        """
        Add to the *table* in the file *path* the one of the same name and columns in the file *new*.

        Returns:
            The rows there are then.

        Raises:
            SourceError: A value is there already, and the column has a unique index.
            SnapshotError: *path* cannot be written, or the deadline passed.
        """
        quoted = identifier(table)
        with self._connection(load) as connection, load.deadline.guard(connection), self._explained(connection):
            connection.execute(f"ATTACH {literal(str(path))} AS _snapshot")
            connection.execute(f"ATTACH {literal(str(new))} AS _new (READ_ONLY)")
            try:
                connection.execute(f"INSERT INTO _snapshot.main.{quoted} FROM _new.main.{quoted}")
            except duckdb.ConstraintException as exc:
                raise indexes.refusal(table) from exc
            connection.execute("CHECKPOINT _snapshot")
            return count_of(connection, f"_snapshot.main.{quoted}")

    def watermark(self, table: str, column: str, path: Path, load: Load) -> Watermark | None:
        """
        Return the greatest time in the *column* of *table* in the file *path*, None when there is none.

        Raises:
            SnapshotError: It cannot be read, or the deadline passed.
        """
        with self._connection(load) as connection, load.deadline.guard(connection), self._explained(connection):
            connection.execute(f"ATTACH {literal(str(path))} AS _snapshot (READ_ONLY)")
            return append.watermark(connection, f"_snapshot.main.{identifier(table)}", column)

    @contextlib.contextmanager
    def _connection(self, load: Load, scan: Scan | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
        connection = duckdb.connect(
            ":memory:",
            config={
                "threads": 1,
                # The stacks of threads count as memory of the process that loads.
                "async_threads": 1,
                "memory_limit": f"{self._engine_bytes(scan)}B",
                "temp_directory": str(load.scratch),
                "max_temp_directory_size": f"{load.scratch_bytes}B",
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
            yield connection
        finally:
            connection.close()

    def _engine_bytes(self, scan: Scan | None) -> int:
        """Return what the engine itself may use while it reads *scan*."""
        held_bytes = scan.held_bytes if scan is not None else 0
        return self.memory_limit_bytes - min(held_bytes, self.memory_limit_bytes // _MAX_HELD_PART)

    def _confine(self, connection: duckdb.DuckDBPyConnection, path: Path, scan: Scan) -> None:
        connection.execute(f"ATTACH {literal(str(path))} AS _snapshot (STORAGE_VERSION 'latest')")
        connection.execute("ATTACH ':memory:' AS runtime")
        connection.execute("USE runtime")
        connection.execute(f"SET GLOBAL allowed_paths = {literals(scan.paths)}")
        if any(path.startswith(f"{DESCRIPTORS}/") for path in scan.paths):
            # The engine compares the name that a file has by then. A file that was renamed over has none any more, and
            # is found below this directory only; a descriptor of what has a name never is.
            connection.execute(f"SET GLOBAL allowed_directories = {literals([DESCRIPTORS])}")
        connection.execute("SET GLOBAL enable_external_access = false")
        connection.execute("SET GLOBAL lock_configuration = true")

    @contextlib.contextmanager
    def _explained(
        self, connection: duckdb.DuckDBPyConnection, scan: Scan | None = None, refreshed: DatasetConfig | None = None
    ) -> Iterator[None]:
        """
        Turn what the engine raises into this room's errors; an interrupt is the deadline's to explain.

        *refreshed* is the dataset whose `refresh_sql` runs, if one does.
        """
        try:
            yield
        except duckdb.InterruptException:
            raise
        except duckdb.OutOfMemoryException as exc:
            raise SnapshotError(TOO_LARGE) from exc
        except duckdb.Error as exc:
            text = str(exc)
            is_broken = isinstance(exc, duckdb.FatalException | duckdb.InternalException)
            # A commit writes rows out, and says of itself only that it failed.
            if (is_broken or isinstance(exc, duckdb.TransactionException)) and _WANT_OF_MEMORY.search(text):
                raise SnapshotError(TOO_LARGE) from exc
            reason = _WRITE_FAILURES.search(text)
            if scan is None or str(self.state_dir) in text or (is_broken and reason is not None):
                failed = SnapshotError("The snapshot cannot be written: the engine failed.")
                raise (not_written("The snapshot", reason[0]) if reason else failed) from exc
            if is_broken:
                raise SourceError(
                    "The engine broke off: the source, or what the refresh_sql makes of it, is not what it can take."
                ) from exc
            if refreshed is not None and not any(path in text for path in scan.paths):
                said = text.partition("\n")[0].rstrip(".")[:300]
                raise SourceError(f"The refresh_sql of {refreshed.name} failed: {said}.") from exc
            raise scan.explain(connection, exc) from exc


def _wanted(dataset: DatasetConfig, refresh_sql: str | None, newer_than: Watermark | None) -> Wanted:
    wanted = Wanted() if refresh_sql is None else wanted_by(refresh_sql)
    time = append.time_column_of(dataset)
    if time is not None and wanted.columns is not None:
        wanted = replace(wanted, columns=wanted.columns | {time.lower()})
    return wanted if newer_than is None else replace(wanted, bounds=(*wanted.bounds, *newer_than.bounds))


def _viewed(connection: duckdb.DuckDBPyConnection, view: str, rows: str) -> tuple[Column, ...]:
    """Make *view* of *rows*, and return its columns."""
    connection.execute(f"CREATE VIEW {view} AS {rows}")
    return tuple(Column(name=name, type=kind) for name, kind in connection.execute(_COLUMNS_READ).fetchall())


def _chosen(rows: str, columns: Sequence[Column], wanted: Wanted) -> str:
    """Return *rows*, a SELECT of all *columns*, with those only that are wanted."""
    if wanted.columns is None:
        return rows
    names = [identifier(column.name) for column in columns if column.name.lower() in wanted.columns]
    return f"SELECT {', '.join(names)} FROM ({rows})" if names else rows  # noqa: S608 - quoted by us
