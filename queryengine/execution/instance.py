"""
A locked DuckDB instance over the snapshots of one manifest.

The instance is opened once for a manifest and never changes. After its definitions are created, access to files and
settings is permanently closed. The gate, not this module, decides which statements may run.

Each statement runs in a read-only transaction that is rolled back, so none of its effects remain. A short,
deterministic query that DuckDB also considers a single query may share its transaction with others (see `cursors`).

The interface is in `queryengine.execution.session`. Sessions on other engines implement it too.
"""

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from msgspec.structs import replace

from queryengine.bounded_dict import BoundedDict
from queryengine.cancellation import Interruption, Watchdog
from queryengine.engine import Encoding, GatedStatement, Parameters, Query
from queryengine.errors import EngineUnavailableError, QueryCancelledError, QueryError, StatementError
from queryengine.execution import duckdb_errors
from queryengine.execution.arrow_parameters import values_of
from queryengine.execution.cursors import Cursors
from queryengine.execution.definitions import Definitions
from queryengine.execution.key_catalogs import KeyCatalogs
from queryengine.execution.parameters import nulls
from queryengine.execution.reader import Reader, Values
from queryengine.execution.session import UnfitView
from queryengine.execution.statistics import Statistics, Threads
from queryengine.execution.views import GatedView
from queryengine.execution.visible_rows import UnfitRuleError, rows_of
from queryengine.gate.arrays import has_array
from queryengine.gate.gate import Gate
from queryengine.key_catalog import GatedRule
from queryengine.manifest import Column, Manifest, Snapshot
from runtimeconf.model import RuntimeConfig

logger = logging.getLogger(__name__)

#: The maximum length of a statement that shares a cursor, in characters. DuckDB holds the GIL while parsing it.
_SHARED_CHARACTERS = 1000

#: The maximum number of key databases with their own statistics.
_MOST_STATISTICS = 256

#: The fraction of the time limit after which fetching a small result is abandoned, and its maximum in seconds.
_SMALL_PART = 0.1
_MAX_SMALL_S = 1.0


class EngineInstance:
    """A locked DuckDB instance over the snapshots of *manifest*, private to this object."""

    speculates = True
    is_ready = True

    def __init__(
        self,
        config: RuntimeConfig,
        manifest: Manifest,
        views: Sequence[GatedView],
        scratch: Path,
        *,
        tolerant: bool = False,
    ) -> None:
        """
        Attach the snapshots, define all names, and lock the instance.

        Each of *views* reads only earlier views. The instance spills to *scratch*, its own directory. With *tolerant*,
        a missing or unreadable snapshot makes only its dataset unavailable.

        Raises:
            SnapshotGoneError: A snapshot is missing or unreadable, and *tolerant* is false.
            EngineUnavailableError: DuckDB cannot start, or cannot open that many files.
        """
        threads = len(os.sched_getaffinity(0))
        settings: dict[str, Any] = {
            "threads": threads,
            "async_threads": 1,  # They wait for files. DuckDB's default of eight uses memory for stacks.
            "memory_limit": f"{config.query.memory_limit_bytes}B",
            "temp_directory": str(scratch),
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
        }
        manifest = replace(manifest, snapshots=tuple(filter(_is_safe, manifest.snapshots)))
        self.generation = manifest.generation
        self._config = config
        self._scratch = scratch
        self._files = {snapshot.dataset.lower(): snapshot.file for snapshot in manifest.snapshots}
        self._statistics_in: BoundedDict[str, Statistics] = BoundedDict(_MOST_STATISTICS)
        try:
            self._connection = duckdb.connect(":memory:", config=settings)
            self.cursors = Cursors(self._connection, config)
            #: None if statements run concurrently, because the number of threads applies to the whole instance.
            self._threads = Threads(threads, self.cursors.set_threads) if config.query.workers == 1 else None
            with ExitStack() as undo:
                undo.callback(self.close)
                self._define(manifest, views, tolerant=tolerant)
                undo.pop_all()
        except duckdb.Error as exc:
            logger.exception("engine cannot start")
            raise EngineUnavailableError("The engine cannot start.") from exc

    @property
    def cached_bytes(self) -> int:
        """The memory of the copies for keys, and the size of the snapshots, which DuckDB's cache can grow to."""
        return self._snapshot_bytes + self._key_catalogs.kept_bytes

    @property
    def is_broken(self) -> bool:
        """Whether DuckDB has reported a state in which no further statement should run."""
        return self.cursors.broken

    def run(
        self,
        statement: GatedStatement,
        query: Query,
        interruption: Interruption,
        watchdog: Watchdog | None = None,
    ) -> Reader:
        """
        Run one *statement* that the gate admitted for *query*, and wait for its first rows.

        The caller closes the reader.

        With a *watchdog*, a small result may be fetched as Python values. With an encoding in `small_rows.ENCODINGS`,
        the result is then already encoded, in `Reader.encoded`.

        Raises:
            ParameterError: The parameters do not fit the statement.
            DatasetNotLoadedError: A dataset that the statement reads has no data yet.
            EngineUnavailableError: The engine failed.
            StatementError: The statement is wrong, or fails on the data.
            ResourceLimitError: Memory or temporary space is used up.
            QueryTimeoutError: DuckDB's own time limit has passed.
            QueryError: The reason why *interruption* was stopped.
        """
        values = values_of(statement, query.parameters)
        with self._ready(statement, interruption, rows=True):
            if self._threads is not None:
                self._threads.begin(statement.pattern)
            shared = self._may_share(statement)
            reader = None
            small_results = self._statistics(statement).small_results(query.encoding)
            if watchdog and shared and small_results.get(statement.pattern or ""):
                reader = self._fetched(statement, values, interruption, query.encoding, watchdog)
            if reader is None:
                reader = self._reader(statement, interruption, shared=shared)
                try:
                    reader.start(statement, values)
                except BaseException:
                    reader.close()
                    raise
            if self._threads is not None:
                self._threads.learn(statement.pattern, whole=reader.is_complete)
            return reader

    def describe(
        self, statement: GatedStatement, parameters: Parameters | None, interruption: Interruption
    ) -> tuple[tuple[Column, ...], pa.Schema] | None:
        """
        Return the columns and schema that the reader of `run` would have; None if they depend on missing values.

        If the *parameters* of a statement are missing, it is described as far as possible.

        Raises:
            QueryError: See `run`.
        """
        unbound = bool(statement.parameters) and parameters is None
        values = nulls(statement.parameters) if unbound else values_of(statement, parameters)
        shared = not unbound and self._may_share(statement)
        # A PIVOT reads the data to find its columns.
        with (
            self._ready(statement, interruption, rows=statement.kind == "pivot"),
            closing(self._reader(statement, interruption, shared=shared)) as reader,
        ):
            schema = reader.describe(statement, values, unbound=unbound)
            return None if schema is None else (reader.columns, schema)

    def misfit(self, rule: GatedRule) -> str | None:
        """Return why *rule* does not fit the data; None if it fits, or if data that it reads is not loaded."""
        if not all(map(self._definitions.is_readable, rule.relations)):
            return None
        self._definitions.define_macros("runtime", rule.macros)
        try:
            with self._connection.cursor() as cursor:
                rows_of(cursor, rule, self._definitions)
        except UnfitRuleError as exc:
            return str(exc)
        except duckdb.Error as exc:
            # Leave out the excerpt, which shows our statement.
            return " ".join(duckdb_errors.sentence(exc, self._config.state_dir).partition("\n\nLINE ")[0].split())
        return None

    def free_cache(self) -> None:
        """See `Session.free_cache`."""
        if self._key_catalogs.has_rows:  # Copies, which have no file, would be written to the disk.
            return
        try:
            self._free_blocks()
        except duckdb.Error:  # The limit may now be too low.
            self.cursors.broken = True

    def close(self) -> None:
        """Close the snapshots and delete the spilled files. Close all readers first."""
        self.cursors.close()
        self._connection.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def reads_the_same(self, statement: GatedStatement, files: Mapping[str, str]) -> bool:
        """Return whether *statement* reads the same data here as in *files*, which are by lower-case dataset name."""
        datasets = self._definitions.datasets_read_by(statement)
        return self.is_cacheable(statement) and all(self._files.get(name) == files.get(name) for name in datasets)

    def holds_superseded(self, files: Mapping[str, str]) -> bool:
        """Return whether the instance uses a file that is not in *files*, which are by lower-case dataset name."""
        return any(files.get(name) != file for name, file in self._files.items())

    @contextmanager
    def _ready(self, statement: GatedStatement, interruption: Interruption, *, rows: bool) -> Iterator[None]:
        """
        Check and define everything that *statement* needs, including the *rows* that its key sees, until it has begun.

        Raises the same errors as `run`.
        """
        try:
            self._definitions.require(statement)
        except duckdb.Error as exc:
            raise self.cursors.failure(exc) from exc
        with self._key_catalogs.ready(statement, interruption, rows=rows):
            yield

    def _reader(self, statement: GatedStatement, interruption: Interruption, *, shared: bool) -> Reader:
        database = "runtime" if statement.key_catalog is None else statement.key_catalog.name
        statistics = self._statistics(statement)
        return Reader(self.cursors, statistics, interruption, shared=shared, database=database)

    def _statistics(self, statement: GatedStatement) -> Statistics:
        """Return the statistics of the statements whose names refer to the same relations as in *statement*."""
        database = "" if statement.key_catalog is None else statement.key_catalog.name
        found = self._statistics_in.get(database)
        if found is None:
            found = self._statistics_in[database] = Statistics()
        return found

    def _fetched(
        self,
        statement: GatedStatement,
        values: Values,
        interruption: Interruption,
        encoding: Encoding,
        watchdog: Watchdog,
    ) -> Reader | None:
        """
        Return a reader with the complete result of *statement*; None if it must be computed as record batches.

        The fetch has a short separate time limit, so that a slow statement does not run almost to its end twice.
        """
        limit_s = min(_SMALL_PART * self._config.query.timeout_s, _MAX_SMALL_S)
        with limited(interruption, watchdog, limit_s) as early:
            reader = self._reader(statement, early, shared=True)
            try:
                if reader.fetch(statement, values, encoding):
                    return reader
                reader.close()
            except StatementError:
                reader.close()
                return None  # The second run reports the error with the usual message.
            except BaseException:
                reader.close()
                raise
        self._statistics(statement).small_results(encoding).learn(statement.pattern, small=False)
        return None

    def _may_share(self, statement: GatedStatement) -> bool:
        """Return whether *statement* may share a cursor with other statements."""
        return len(statement.sql) <= _SHARED_CHARACTERS and self.is_cacheable(statement)

    def _define(self, manifest: Manifest, views: Sequence[GatedView], *, tolerant: bool) -> None:
        execute = self._connection.execute
        execute("ATTACH ':memory:' AS runtime")
        execute("USE runtime")
        execute("DETACH memory")  # `connect` created this database. Statements must not see it or write to it.
        execute("SET GLOBAL TimeZone = 'UTC'")  # independent of the machine's time zone
        # If this were a setting of `connect`, DuckDB 2.0 would show it, but not enforce it.
        execute(f"SET max_temp_directory_size = '{self._config.query.temp_directory_limit_bytes}B'")
        self._definitions = Definitions(self._connection, self._config, manifest.snapshots, views, tolerant=tolerant)
        self._definitions.renew_cursors = self.cursors.renew
        self._snapshot_bytes = sum(snapshot.size_bytes for snapshot in manifest.snapshots)
        memory_bytes = self._config.query.memory_limit_bytes
        self._key_catalogs = KeyCatalogs(self._connection, self._definitions, memory_bytes, self.cursors.failure)
        self.unfit_views: Mapping[str, UnfitView] = self._definitions.unfit_views
        self.is_cacheable = self._definitions.is_cacheable
        self._free_blocks()  # Attaching a snapshot reads a block of 256 KiB.
        # A time limit that needs no Python thread. It starts after ours, so ours passes first. Opening is not timed.
        execute(f"SET GLOBAL max_execution_time = {max(1, round(self._config.query.timeout_s * 1000))}")
        in_workers = [] if self._threads is None else ["memory_limit", "threads"]
        allowed = [*in_workers, "tracked_metrics"]
        execute(f"SET allowed_configs = {allowed}")
        execute("SET enable_external_access = false")
        execute("SET lock_configuration = true")

    def _free_blocks(self) -> None:
        """Free the blocks of snapshots that DuckDB keeps in memory although no statement reads them."""
        with suppress(duckdb.OutOfMemoryException):  # Some cannot be freed. In this case the limit does not change.
            self._connection.execute("SET memory_limit = '1MB'")
        self._connection.execute(f"SET memory_limit = '{self._config.query.memory_limit_bytes}B'")


def _is_safe(snapshot: Snapshot) -> bool:
    """Return whether *snapshot* has no arrays. Those of former versions may have some (see `gate.arrays`)."""
    if not any(has_array(column.type) for column in snapshot.columns):
        return True
    fields = {"dataset": snapshot.dataset, "error": "A former version wrote it, with arrays. Refresh the dataset."}
    logger.warning("snapshot left out", extra={"fields": fields})
    return False


class DuckDBBackend:
    """DuckDB as a `Backend`. For *variant_casts*, see `Gate`."""

    def __init__(self, config: RuntimeConfig, *, variant_casts: bool = True) -> None:
        self._config = config
        self.gate = Gate(datafusion_sql=config.query.datafusion_sql, variant_casts=variant_casts)
        self.close = self.gate.close

    def open(self, manifest: Manifest, views: Sequence[GatedView], scratch: Path, *, tolerant: bool) -> EngineInstance:
        """See `Backend.open`."""
        return EngineInstance(self._config, manifest, views, scratch, tolerant=tolerant)


@contextmanager
def limited(interruption: Interruption, watchdog: Watchdog, limit_s: float) -> Iterator[Interruption]:
    """
    Stop the block when *interruption* is stopped, or after *limit_s* seconds, which raises no error.

    Raises:
        QueryError: The block failed, or the reason why *interruption* was stopped.
    """
    early = Interruption()
    interruption.attach(partial(early.stop, QueryCancelledError))
    try:
        watchdog.watch(early, limit_s)
        yield early
    except QueryError:
        interruption.check()
        if not early.stopped:
            raise
    finally:
        watchdog.forget(early)
        interruption.detach()
