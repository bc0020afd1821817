"""
The cursors of one DuckDB instance, each in a read-only transaction.

Creating a cursor and its transaction takes longer than a small query. Therefore a cursor on which a deterministic query
ran to its end is kept for the next one, but only for `_REUSED_S` seconds. The data never changes, but if a DuckDB
function reads the clock without being listed as nondeterministic, it sees the time at which the transaction began.
"""

import threading
import time
from collections import deque

import duckdb
from msgspec import Struct, field

from queryengine.execution import duckdb_errors
from queryengine.manifest import Column
from runtimeconf.model import RuntimeConfig

#: The database with the macros that replace functions in statements of keys with their own database.
KEY_MACROS = "_macros"

#: The seconds for which queries share a cursor, and the maximum number of idle cursors.
_REUSED_S = 1.0
_MAX_IDLE = 8


class BoundStatement(Struct, frozen=True):
    """A statement as a relation that Arrow can represent, with the column names and DuckDB types before conversion."""

    relation: duckdb.DuckDBPyRelation
    columns: tuple[Column, ...]
    lines_before: int


class Cursor(Struct, eq=False):
    """
    A DuckDB cursor with its transaction, which began at `begun_s` (`time.monotonic`), and the statements bound in it.

    Names in its statements refer to *database*. Names do not change their meaning within the transaction, so a
    statement without parameters is bound only once.
    """

    database: str
    connection: duckdb.DuckDBPyConnection
    begun_s: float | None = None
    bound: dict[str, BoundStatement] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin the transaction if it has not begun."""
        if self.begun_s is None:
            self.begun_s = time.monotonic()
            if self.database == "runtime":
                self.connection.execute("USE runtime")
            else:
                self.connection.execute(f"SET search_path = '{self.database}.main,{KEY_MACROS}.main'")
            self.connection.execute("BEGIN TRANSACTION READ ONLY")


class Cursors:
    """
    The cursors of *connection*. Thread-safe.

    `broken` becomes True when DuckDB reports a state in which no further statement should run.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, config: RuntimeConfig) -> None:
        self.broken = False
        self.state_dir = config.state_dir
        self._connection = connection
        self._limits = config.query
        self._lock = threading.Lock()
        self._idle: deque[Cursor] = deque()
        self._closed = False
        self._renewed_s = 0.0

    def take(self, *, shared: bool, database: str = "runtime") -> Cursor:
        """Return a cursor for *database*. A *shared* cursor may have run other statements of the same database."""
        oldest_s = max(time.monotonic() - _REUSED_S, self._renewed_s)
        with self._lock:  # All threads create their cursors from one connection.
            for cursor in [one for one in reversed(self._idle) if shared and one.database == database]:
                self._idle.remove(cursor)
                if cursor.begun_s is not None and cursor.begun_s > oldest_s:
                    return cursor
                cursor.connection.close()
            return Cursor(database, self._connection.cursor())

    def renew(self) -> None:
        """
        End all idle transactions, and reuse none that has begun.

        They do not see new definitions, and keep the memory of dropped tables.
        """
        with self._lock:
            self._renewed_s = time.monotonic()
            for cursor in self._idle:
                cursor.connection.close()
            self._idle.clear()

    def keep(self, cursor: Cursor) -> bool:
        """Keep *cursor*, in its transaction, for another query. Return False if it is not kept."""
        with self._lock:
            is_stale = cursor.begun_s is None or cursor.begun_s <= self._renewed_s
            if self._closed or self.broken or is_stale:
                return False
            if len(self._idle) == _MAX_IDLE:  # The oldest one may belong to a database that is no longer used.
                self._idle.popleft().connection.close()
            self._idle.append(cursor)
            return True

    def set_threads(self, number: int) -> None:
        """Set the number of DuckDB threads."""
        try:
            with self._lock:
                self._connection.execute(f"SET GLOBAL threads = {number}")
        except duckdb_errors.ENGINE_ERRORS as exc:
            raise self.failure(exc) from exc

    def failure(self, exc: BaseException, *, lines_before: int = 0) -> Exception:
        """Translate *exc*, which DuckDB raised, and set `broken` if no further statement should run."""
        if duckdb_errors.fault_of(exc) in {duckdb_errors.Fault.BROKEN, duckdb_errors.Fault.DATA}:
            self.broken = True
        return duckdb_errors.translate(exc, self._limits, self.state_dir, lines_before=lines_before)

    def close(self) -> None:
        """Close the idle cursors, and keep no more cursors."""
        with self._lock:
            self._closed = True
            for cursor in self._idle:
                cursor.connection.close()
            self._idle.clear()
