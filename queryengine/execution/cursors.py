"""
The cursors of one DuckDB instance, each in a read-only transaction.

Making a cursor and its transaction takes longer than a small query itself, so a cursor on which a deterministic query
ran to its end is kept for the next one. It is kept for `_REUSED_S` only: the data never changes, but DuckDB functions
that read the clock without being listed as such see the time at which the transaction began.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass, field

import duckdb

from queryengine.execution import duckdb_errors
from queryengine.manifest import Column
from runtimeconf.model import RuntimeConfig

#: The database of the macros that replace functions in statements of keys that have a database of their own.
KEY_MACROS = "_macros"

#: How long queries share a cursor, in seconds, and how many idle cursors are kept.
_REUSED_S = 1.0
_MAX_IDLE = 8


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A statement as a relation that Arrow can hold, and the names and DuckDB types of its columns before that."""

    relation: duckdb.DuckDBPyRelation
    columns: tuple[Column, ...]
    lines_before: int


@dataclass(eq=False, slots=True)
class Cursor:
    """
    A DuckDB cursor with its transaction, which began at `begun_s` (`time.monotonic`), and the statements bound in it.

    Its statements find their names in *database*. No name changes its meaning within the transaction, so a statement
    without parameters is bound only once.
    """

    database: str
    connection: duckdb.DuckDBPyConnection
    begun_s: float | None = None
    bound: dict[str, BoundStatement] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin the transaction, unless it has begun."""
        if self.begun_s is None:
            self.begun_s = time.monotonic()
            if self.database == "runtime":
                self.connection.execute("USE runtime")
            else:
                self.connection.execute(f"SET search_path = '{self.database}.main,{KEY_MACROS}.main'")
            self.connection.execute("BEGIN TRANSACTION READ ONLY")


class Cursors:
    """
    The cursors of *connection*. Safe from any thread.

    `broken` becomes True once DuckDB reports a state that no further statement should trust.
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
        """Return a cursor whose names are those in *database*; a *shared* one may have run other statements of it."""
        oldest_s = max(time.monotonic() - _REUSED_S, self._renewed_s)
        with self._lock:  # All threads make their cursors from the one connection.
            for cursor in [one for one in reversed(self._idle) if shared and one.database == database]:
                self._idle.remove(cursor)
                if cursor.begun_s is not None and cursor.begun_s > oldest_s:
                    return cursor
                cursor.connection.close()
            return Cursor(database, self._connection.cursor())

    def renew(self) -> None:
        """Use no transaction again that has begun: what was defined since is not visible in it."""
        self._renewed_s = time.monotonic()

    def keep(self, cursor: Cursor) -> bool:
        """Take back *cursor*, in its transaction, for another query; False when it is not wanted."""
        with self._lock:
            if self._closed or self.broken:
                return False
            if len(self._idle) == _MAX_IDLE:  # The oldest one may be of a database that is not used any more.
                self._idle.popleft().connection.close()
            self._idle.append(cursor)
            return True

    def set_threads(self, number: int) -> None:
        """Give DuckDB *number* threads."""
        try:
            with self._lock:
                self._connection.execute(f"SET GLOBAL threads = {number}")
        except duckdb_errors.ENGINE_ERRORS as exc:
            raise self.failure(exc) from exc

    def failure(self, exc: BaseException, *, lines_before: int = 0) -> Exception:
        """Translate *exc*, which DuckDB raised, and set `broken` if no further statement should trust the instance."""
        if duckdb_errors.fault_of(exc) in {duckdb_errors.Fault.BROKEN, duckdb_errors.Fault.DATA}:
            self.broken = True
        return duckdb_errors.translate(exc, self._limits, self.state_dir, lines_before=lines_before)

    def close(self) -> None:
        """Close the idle cursors, and keep no other."""
        with self._lock:
            self._closed = True
            for cursor in self._idle:
                cursor.connection.close()
            self._idle.clear()
