"""
The engine for one load.

It has its own memory limit and temporary directory, and can open only the source's pinned files and the file that it
writes. A `refresh_sql` therefore cannot reach beyond its dataset even if the gate that checked it missed something.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
from msgspec import Struct
from msgspec.structs import replace

from datasources.errors import SnapshotError, SourceError, not_written
from datasources.loading import append, indexes
from datasources.loading.append import Watermark
from datasources.loading.columns import columns_of, count_of, find_column, refuse_changes, refuse_excess
from datasources.loading.expiry import kept, retention_of, window_of
from datasources.loading.pushdown import wanted_by
from datasources.sources.pinned_file import DESCRIPTORS
from datasources.sources.registry import source_of
from datasources.sources.source import Load, Scan, Wanted
from datasources.sql import identifier, literal, literals
from queryengine.errors import LENGTH_OF_LIST, WANT_OF_MEMORY
from queryengine.gate.arrays import with_lists
from queryengine.gate.macros import called_in
from queryengine.manifest import Column
from queryengine.values import qualified, split_relation
from runtimeconf.model import DatasetConfig

TOO_LARGE = (
    "The load needs more memory than query.memory_limit, or more temporary space than query.temp_directory_limit."
)

#: Types that are valid in a table but not in a result.
_UNSUPPORTED_TYPES = ("AGGREGATE_STATE",)

#: Engine messages about writing the snapshot, not about the source.
_WRITE_ERRNOS = (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOENT)
_WRITE_FAILURES = re.compile("|".join([*map(os.strerror, _WRITE_ERRNOS), "fsync failed"]))

#: Messages of a commit that runs out of memory. The engine raises no specific error for it.
_WANT_OF_MEMORY = re.compile(rf"{WANT_OF_MEMORY.pattern}|(?:allocate|pin) (?:block|data) of size", re.IGNORECASE)

#: The columns of the source's view. DESCRIBE would read a text file again to find its types.
_COLUMNS_READ = (
    "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = 'runtime' ORDER BY column_index"
)

#: The temporary table for the rows of a stream, because a SELECT may read them more than once.
_KEPT = "_rows"

#: A client library gets at most 1 / this of the engine's memory.
_MAX_HELD_PART = 2


def open_engine(settings: Mapping[str, str | bool]) -> duckdb.DuckDBPyConnection:
    """Return an in-memory engine with one thread and *settings*, which cannot load code."""
    # Thread stacks count as memory of the loading process.
    one_thread = {"threads": 1, "async_threads": 1}
    nothing_else = {"autoload_known_extensions": False, "python_enable_replacements": False}
    return duckdb.connect(":memory:", config={**one_thread, **nothing_else, **settings})


def lock_down(connection: duckdb.DuckDBPyConnection, **allowed: Sequence[str]) -> None:
    """Permanently confine the engine to the files in *allowed* (`allowed_paths`, `allowed_directories`)."""
    for setting, paths in allowed.items():
        connection.execute(f"SET GLOBAL {setting} = {literals(paths)}")
    connection.execute("SET GLOBAL enable_external_access = false")
    connection.execute("SET GLOBAL lock_configuration = true")


class Loaded(Struct, frozen=True):
    """The result of a load, the version of the source, and `Snapshot.is_reordered`."""

    columns: tuple[Column, ...]
    rows: int
    version: str | None
    is_reordered: bool = False


class LoadingEngine(Struct, frozen=True):
    """
    Reads sources into snapshot files. Errors never mention *state_dir*, the runtime's state directory.

    The engine uses one thread, at most *memory_limit_bytes* of memory, and the load's temporary space.
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
            dataset: The dataset to read.
            refresh_sql: See `Order`.
            path: The file. The caller deletes it after an error.
            load: The deadline, temporary space and served columns.
            newer_than: Read only newer rows; None for all.

        Raises:
            SchemaChangedError: The time column has a different type than in *newer_than*.
            SourceError: The source cannot be read, or its data is not valid.
            SnapshotError: The file cannot be written, or the deadline has passed.
        """
        deadline = load.deadline
        deadline.check()
        load = replace(load, wanted=_wanted(dataset, refresh_sql, newer_than))
        appends = append.time_column_of(dataset) is not None
        with source_of(dataset).open(load) as scan, self._connection(load, scan) as connection:
            table = f"_snapshot.main.{identifier(dataset.name)}"
            view = f"runtime.{qualified(dataset.name)}"
            with deadline.guard(connection), self._explained(connection, scan):
                rows = self._bound(connection, path, scan)
                rows, columns = _without_arrays(connection, dataset.name, rows, refresh_sql)
                refuse_excess(dataset.name, columns)
                scan.accept(connection, columns)
                if _has_unknown_types(connection, rows, columns, scan, load):
                    rows = _without_rows(columns, load.served)
                    columns = _columns_read(connection, dataset.name, rows, refresh_sql)
                needs_time = appends or window_of(dataset) is not None
                time = append.find_time_column(dataset, columns) if needs_time else None
                conditions = _conditions(dataset, time, newer_than, load.now)
                if conditions:
                    rows = f"{rows} WHERE {' AND '.join(conditions)}"
                if refresh_sql is not None:
                    _define_macros(connection, refresh_sql)
                if refresh_sql is not None and scan.is_read_once:
                    connection.execute(f"CREATE TEMP TABLE {_KEPT} AS {_chosen(rows, columns, load.wanted)}")
                    connection.execute(f"CREATE OR REPLACE VIEW {view} AS FROM temp.{_KEPT}")
                elif refresh_sql is not None and conditions:
                    connection.execute(f"CREATE OR REPLACE VIEW {view} AS {rows}")
            with deadline.guard(connection), self._explained(connection, scan, dataset if refresh_sql else None):
                written = _written(connection, dataset, refresh_sql or rows, scan)
                if [column.name for column in written] == [column.name for column in load.served]:
                    written = _with_types_served(connection, table, written, load)
                refuse_excess(dataset.name, written)
            with deadline.guard(connection), self._explained(connection):
                if newer_than is None:  # Otherwise `add` checks the rows.
                    indexes.build(connection, table, written, dataset)
                connection.execute("CHECKPOINT _snapshot")
            scan.confirm()
            _refuse_unsupported(dataset, written)
            if time is not None and appends:
                append.check_result(dataset, time, written)
            return Loaded(written, count_of(connection, table), scan.version)

    def columns(self, dataset: DatasetConfig, refresh_sql: str | None, load: Load) -> tuple[Column, ...]:
        """
        Return the columns that `load` would write. Rows are read only from text files, to find their types.

        Raises:
            SourceError: The source cannot be read, or *refresh_sql* fails.
            SnapshotError: The deadline has passed.
        """
        deadline = load.deadline
        with source_of(dataset).open(load) as scan, self._connection(load, scan) as connection:
            with deadline.guard(connection), self._explained(connection, scan):
                rows = self._bound(connection, load.scratch / "columns.duckdb", scan)
                rows, columns = _without_arrays(connection, dataset.name, rows, None)
                scan.accept(connection, columns)
                if refresh_sql is not None:
                    _define_macros(connection, refresh_sql)
                    _viewed(connection, dataset.name, rows)
            with deadline.guard(connection), self._explained(connection, scan, dataset if refresh_sql else None):
                return columns_of(connection, refresh_sql or rows)

    def has_expired(self, dataset: DatasetConfig, path: Path, load: Load) -> bool:
        """
        Return whether the table of *dataset* in the file *path* contains, or may contain, a row to drop.

        Raises:
            SourceError: The `time_format` does not fit the time column.
            SnapshotError: *path* cannot be read, or the deadline has passed.
        """
        age_s = retention_of(dataset)
        return age_s is not None and self._has_rows(dataset, path, load, age_s, are_kept=False)

    def has_current(self, dataset: DatasetConfig, path: Path, load: Load) -> bool:
        """
        Return whether the table of *dataset* in the file *path* contains, or may contain, a row that a load would keep.

        Raises:
            SourceError: See `has_expired`.
            SnapshotError: See `has_expired`.
        """
        age_s = window_of(dataset)
        return age_s is None or self._has_rows(dataset, path, load, age_s, are_kept=True)

    def _has_rows(self, dataset: DatasetConfig, path: Path, load: Load, age_s: float, *, are_kept: bool) -> bool:
        """Return whether the file contains rows up to the age *age_s*, or older rows; True if that is unknown."""
        with self._connection(load) as connection, load.deadline.guard(connection), self._explained(connection):
            connection.execute(f"ATTACH {literal(str(path))} AS _snapshot (READ_ONLY)")
            table = f"_snapshot.main.{identifier(dataset.name)}"
            time = find_column(str(dataset.time_column), columns_of(connection, table))
            if time is None:  # The refresh_sql leaves the column out.
                return True
            condition = f"{kept(dataset, time, age_s, load.now)} IS {'' if are_kept else 'NOT '}TRUE"
            return bool(connection.execute(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1").fetchall())  # noqa: S608 - quoted by us

    def add(self, dataset: DatasetConfig, new: Path, path: Path, load: Load) -> int:
        """
        Append the table of *dataset* in the file *new* to the table with the same columns in the file *path*.

        Expired rows in *path* are dropped, and rows with the same primary key are handled according to `on_conflict`.

        Returns:
            The number of rows afterwards.

        Raises:
            SourceError: A new value violates a unique index.
            SnapshotError: *path* cannot be written, or the deadline has passed.
        """
        served, added = (f"{where}.main.{identifier(dataset.name)}" for where in ("_snapshot", "_new"))
        with self._connection(load) as connection, load.deadline.guard(connection), self._explained(connection):
            connection.execute(f"ATTACH {literal(str(path))} AS _snapshot")
            connection.execute(f"ATTACH {literal(str(new))} AS _new (READ_ONLY)")
            if (age_s := retention_of(dataset)) is not None:
                time = append.find_time_column(dataset, columns_of(connection, served))
                condition = kept(dataset, time, age_s, load.now)
                connection.execute(f"DELETE FROM {served} WHERE {condition} IS NOT TRUE")  # noqa: S608 - quoted by us
            try:
                for statement in indexes.merge(dataset, served, added, columns_of(connection, served)):
                    connection.execute(statement)
            except duckdb.ConstraintException as exc:
                raise indexes.refusal(dataset.name) from exc
            connection.execute("CHECKPOINT _snapshot")
            return count_of(connection, served)

    def watermark(self, table: str, column: str, path: Path, load: Load) -> Watermark | None:
        """
        Return the greatest time in the *column* of *table* in the file *path*; None if there is none.

        Raises:
            SnapshotError: The file cannot be read, or the deadline has passed.
        """
        with self._connection(load) as connection, load.deadline.guard(connection), self._explained(connection):
            connection.execute(f"ATTACH {literal(str(path))} AS _snapshot (READ_ONLY)")
            return append.watermark(connection, f"_snapshot.main.{identifier(table)}", column)

    @contextlib.contextmanager
    def _connection(self, load: Load, scan: Scan | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
        # A client library's memory is subtracted from the engine's.
        held_bytes = min(scan.held_bytes if scan is not None else 0, self.memory_limit_bytes // _MAX_HELD_PART)
        connection = open_engine(
            {
                "memory_limit": f"{self.memory_limit_bytes - held_bytes}B",
                "temp_directory": str(load.scratch),
                "max_temp_directory_size": f"{load.scratch_bytes}B",
                "autoinstall_known_extensions": False,
                "allow_community_extensions": False,
                # A column without any value gets a type that tables and results support.
                "legacy_disable_null_type": True,
            }
        )
        try:
            with self._explained(connection, scan):
                connection.execute("SET GLOBAL TimeZone = 'UTC'")
            yield connection
        finally:
            connection.close()

    def _bound(self, connection: duckdb.DuckDBPyConnection, path: Path, scan: Scan) -> str:
        """Confine the engine to *scan* and the new file *path*, and return a SELECT of all source rows."""
        connection.execute(f"ATTACH {literal(str(path))} AS _snapshot (STORAGE_VERSION 'latest')")
        connection.execute("ATTACH ':memory:' AS runtime")
        connection.execute("USE runtime")
        # The engine compares the current name of a file. A replaced file has no name and is found only below this
        # directory. Descriptors of files with a name are never found there.
        needs_descriptors = any(path.startswith(f"{DESCRIPTORS}/") for path in scan.paths)
        lock_down(connection, allowed_paths=scan.paths, allowed_directories=[DESCRIPTORS] if needs_descriptors else [])
        return f"SELECT * FROM {scan.bind(connection)}"  # noqa: S608 - quoted by the source

    @contextlib.contextmanager
    def _explained(
        self, connection: duckdb.DuckDBPyConnection, scan: Scan | None = None, refreshed: DatasetConfig | None = None
    ) -> Iterator[None]:
        """
        Turn engine errors into errors of this package, except interrupts, which the deadline explains.

        *refreshed* is the dataset whose `refresh_sql` runs, if any.
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
            # A commit writes rows to disk and reports only that it failed.
            if (is_broken or isinstance(exc, duckdb.TransactionException)) and _WANT_OF_MEMORY.search(text):
                raise SnapshotError(TOO_LARGE) from exc
            reason = _WRITE_FAILURES.search(text)
            if scan is None or str(self.state_dir) in text or (is_broken and reason is not None):
                failed = SnapshotError("The snapshot cannot be written: the engine failed.")
                raise (not_written("The snapshot", reason[0]) if reason else failed) from exc
            if is_broken:
                raise SourceError(
                    "The engine failed: it cannot process the source or the result of the refresh_sql."
                ) from exc
            if refreshed is not None and not any(path in text for path in scan.paths):
                said = LENGTH_OF_LIST.sub(r"\1 ", text).partition("\n")[0].rstrip(".")[:300]
                raise SourceError(f"The refresh_sql of {refreshed.name} failed: {said}.") from exc
            raise scan.explain(connection, exc) from exc


def _refuse_unsupported(dataset: DatasetConfig, columns: Sequence[Column]) -> None:
    for column in columns:
        if column.type.startswith(_UNSUPPORTED_TYPES):
            raise SourceError(f"The column {column.name} of {dataset.name} has a type that cannot be displayed.")


def _has_unknown_types(
    connection: duckdb.DuckDBPyConnection, rows: str, columns: Sequence[Column], scan: Scan, load: Load
) -> bool:
    """Return whether the types of *columns* differ from the served ones only because the source has no *rows*."""
    types = {column.name: column.type for column in load.served}
    if scan.is_read_once or all(types.get(column.name, column.type) == column.type for column in columns):
        return False
    return not connection.execute(f"SELECT 1 FROM ({rows}) LIMIT 1").fetchall()  # noqa: S608 - quoted by the source


def _without_rows(columns: Sequence[Column], served: Sequence[Column]) -> str:
    """Return a SELECT of *columns* without rows, in which those that are *served* have the types served."""
    types = {column.name: column.type for column in served}
    names = ", ".join(f"NULL::{types.get(column.name, column.type)} AS {identifier(column.name)}" for column in columns)
    return f"SELECT * FROM (SELECT {names} WHERE false)"  # noqa: S608 - quoted by us


def _written(connection: duckdb.DuckDBPyConnection, dataset: DatasetConfig, sql: str, scan: Scan) -> tuple[Column, ...]:
    """
    Create the table of *dataset* with the rows of *sql*, and return its columns, which have no collations.

    A type does not show its collation, but `tenant = 'acme'` is true for `ACME` as well if the column is NOCASE.
    """
    table = f"_snapshot.main.{identifier(dataset.name)}"
    if not scan.has_collations and "collate" not in sql.lower():
        connection.execute(f"CREATE TABLE {table} AS\n{sql}")
        return columns_of(connection, table)
    connection.execute(f"CREATE TEMP VIEW _written AS\n{sql}")  # which gives each column a name of its own
    columns = columns_of(connection, "temp._written")
    connection.execute("DROP VIEW temp._written")
    _refuse_unsupported(dataset, columns)
    connection.execute(f"CREATE TABLE {table} ({_declared(columns)})")
    connection.execute(f"INSERT INTO {table}\n{sql}")
    return columns


def _declared(columns: Sequence[Column]) -> str:
    return ", ".join(f"{identifier(column.name)} {column.type}" for column in columns)


def _with_types_served(
    connection: duckdb.DuckDBPyConnection, table: str, written: tuple[Column, ...], load: Load
) -> tuple[Column, ...]:
    """If the new *table* has no rows, give it the types of the served columns. Return its columns."""
    if written == load.served or count_of(connection, table):
        return written
    connection.execute(f"CREATE OR REPLACE TABLE {table} ({_declared(load.served)})")
    return load.served


def _wanted(dataset: DatasetConfig, refresh_sql: str | None, newer_than: Watermark | None) -> Wanted:
    wanted = Wanted() if refresh_sql is None else wanted_by(refresh_sql)
    needs_time = append.time_column_of(dataset) is not None or window_of(dataset) is not None
    if needs_time and wanted.columns is not None:
        wanted = replace(wanted, columns=wanted.columns | {str(dataset.time_column).lower()})
    return wanted if newer_than is None else replace(wanted, bounds=(*wanted.bounds, *newer_than.bounds))


def _conditions(dataset: DatasetConfig, time: Column | None, newer_than: Watermark | None, now: float) -> list[str]:
    """Return the SQL conditions on the *time* of the rows that a load at *now* keeps; none if it is not needed."""
    conditions: list[str] = []
    if time is None:
        return conditions
    if newer_than is not None:
        refuse_changes(dataset.name, [newer_than.column], [time])
        conditions.append(newer_than.condition)
    if (age_s := window_of(dataset)) is not None:
        conditions.append(kept(dataset, time, age_s, now))
    return conditions


def _columns_read(
    connection: duckdb.DuckDBPyConnection, dataset: str, rows: str, refresh_sql: str | None
) -> tuple[Column, ...]:
    """Return the columns of *rows*. A *refresh_sql* reads them from a view."""
    return columns_of(connection, rows) if refresh_sql is None else _viewed(connection, dataset, rows)


def _without_arrays(
    connection: duckdb.DuckDBPyConnection, dataset: str, rows: str, refresh_sql: str | None
) -> tuple[str, tuple[Column, ...]]:
    """Return *rows*, a SELECT of all columns, with lists in place of arrays (see `queryengine.gate.arrays`)."""
    columns = _columns_read(connection, dataset, rows, refresh_sql)
    if all(with_lists(column.type) == column.type for column in columns):
        return rows, columns
    chosen = []
    for column in columns:
        name, type_ = identifier(column.name), with_lists(column.type)
        chosen.append(name if type_ == column.type else f"{name}::{type_} AS {name}")
    rows = f"SELECT {', '.join(chosen)} FROM ({rows})"  # noqa: S608 - quoted by us. `* REPLACE` would take cubic time.
    return rows, _columns_read(connection, dataset, rows, refresh_sql)


def _viewed(connection: duckdb.DuckDBPyConnection, dataset: str, rows: str) -> tuple[Column, ...]:
    """Create a view of *rows* named *dataset*, and return its columns."""
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS runtime.{identifier(split_relation(dataset)[0])}")
    connection.execute(f"CREATE OR REPLACE VIEW runtime.{qualified(dataset)} AS {rows}")
    return tuple(Column(name=name, type=kind) for name, kind in connection.execute(_COLUMNS_READ).fetchall())


def _define_macros(connection: duckdb.DuckDBPyConnection, refresh_sql: str) -> None:
    """Define macros for functions in *refresh_sql* that only DataFusion has."""
    for macro in called_in(refresh_sql):
        connection.execute(f"CREATE MACRO runtime.main.{macro.definition}")


def _chosen(rows: str, columns: Sequence[Column], wanted: Wanted) -> str:
    """Return *rows*, a SELECT of all *columns*, reduced to the wanted columns."""
    if wanted.columns is None:
        return rows
    names = [identifier(column.name) for column in columns if column.name.lower() in wanted.columns]
    return f"SELECT {', '.join(names)} FROM ({rows})" if names else rows  # noqa: S608 - quoted by us
