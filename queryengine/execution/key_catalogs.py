"""
The catalogs of keys that may see only part of the data, in one DuckDB instance.

Statements of such a key run in a separate database. Whole datasets are views there, as they are in `runtime`. Rows that
a key may not see must not affect its statements, not even their errors, plans, estimates or row order. Therefore a
dataset with a row filter or masks, and a declared view, is a copy that contains only the visible rows and values. The
copy is created when a statement first reads it, and all keys with the same rule share it. A dataset of which only
columns are hidden is a secure view.
"""

import hmac
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple

import duckdb
from msgspec import Struct, field

from queryengine.cancellation import TICK_S, Interruption
from queryengine.engine import GatedStatement
from queryengine.errors import DatasetNotLoadedError
from queryengine.execution.cursors import KEY_MACROS
from queryengine.execution.definitions import Definitions
from queryengine.execution.duckdb_errors import Fault, fault_of
from queryengine.execution.views import BY_VALUES
from queryengine.execution.visible_rows import UnfitRuleError, check_types, columns_of, rows_of
from queryengine.gate.lexer import lower
from queryengine.key_catalog import GatedRule, KeyCatalog
from queryengine.values import qualified
from runtimeconf.model import DatasetRule

logger = logging.getLogger(__name__)

#: The hidden database that contains the copies.
_COPIES: Final = "_copies"

#: The maximum number of catalogs that are kept. The least recently used are dropped. Each uses about `_CATALOG_BYTES`.
_MOST_CATALOGS: Final = 1024
_CATALOG_BYTES: Final = 100 * 1024

#: Copies are emptied, least recently used first, while they use more than 1 / this of the memory limit in total.
_PART_OF_MEMORY: Final = 3

#: The faults that a rule or view causes. Their messages, which are for the author of a statement, are not shown.
_OF_RULES: Final = frozenset({Fault.SQL, Fault.SYNTAX, Fault.NOT_ALLOWED})

#: Each copy counts as at least this many bytes.
_LEAST_BYTES: Final = 64 * 1024

_USED = "SELECT sum(memory_usage_bytes + temporary_storage_bytes) FROM duckdb_memory() WHERE tag = 'IN_MEMORY_TABLE'"

#: The name of a temporary table with all rows of a view in order. No dataset can have this name.
_ORDERED: Final = "_s000000000000"


class _Source(NamedTuple):
    """
    The source of a copy: the SQL of its `rows` in order, and whether the data alone determines them.

    If not, the copy is always refilled. If `view` is set, the rows come from `_ORDERED`, which has the rows of `view`.
    """

    rows: str
    is_constant: bool
    view: str = ""


#: Plans show the names of copies, which must neither tell anything about a rule nor change when data is published.
_NAMING_KEY: Final = secrets.token_bytes(32)


def _name_of(source: _Source) -> str:
    """Return the name of the copy of *source*."""
    return "c" + hmac.digest(_NAMING_KEY, repr(source).encode(), "sha256").hex()[:12]


class _Copy(Struct, eq=False):
    """A table in `_COPIES` with the rows of `source`. It has no rows until it is filled."""

    name: str
    source: _Source
    users: int = 0  # statements that have not yet begun to read it
    catalogs: int = 0  # catalogs with a view of it
    is_filled: bool = False
    size: int = 0  # approximate, in bytes
    error: str = ""
    filling: threading.Lock = field(default_factory=threading.Lock)


class _Catalog(Struct, eq=False):
    """A database with views. `copies` are by relation. The value is None if a relation is not a copy."""

    key: KeyCatalog
    copies: dict[str, _Copy | None] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    users: int = 0


class KeyCatalogs:
    """
    The catalogs of keys on *connection*. Thread-safe.

    Args:
        connection: The DuckDB instance.
        definitions: The relations of the instance.
        memory_bytes: The memory limit of the instance.
        failure: Translates a DuckDB error.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        definitions: Definitions,
        memory_bytes: int,
        failure: Callable[[BaseException], Exception],
    ) -> None:
        self._connection = connection
        self._definitions = definitions
        self._budget_bytes = memory_bytes // _PART_OF_MEMORY
        self._failure = failure
        self._lock = threading.Lock()  # Held for definitions, which are short, but not while a copy is filled.
        self._catalogs: OrderedDict[str, _Catalog] = OrderedDict()
        self._unfit: dict[str, bool] = {}  # materialized views, for keys without a catalog
        self._copies: OrderedDict[_Source, _Copy] = OrderedDict()
        self._filled_bytes = 0
        self._has_database = False

    @property
    def kept_bytes(self) -> int:
        """The memory of the catalogs and copies, in bytes, about."""
        return self._filled_bytes + len(self._catalogs) * _CATALOG_BYTES

    @property
    def has_rows(self) -> bool:
        """Whether a copy is filled."""
        return self._filled_bytes > 0

    @contextmanager
    def ready(self, statement: GatedStatement, interruption: Interruption, *, rows: bool) -> Iterator[None]:
        """
        Define the relations that *statement* reads in its `key_catalog`, until it has begun. With *rows*, fill copies.

        Raises:
            DatasetNotLoadedError: A rule does not fit the data.
            QueryError: The reason why *interruption* was stopped.
        """
        key = statement.key_catalog
        if key is None:
            self._check(statement.limiting_views)
            yield
            return
        with ExitStack() as held:
            try:
                with self._lock:
                    copies = self._define(key, statement, held)
                for name, copy in copies if rows else ():
                    self._fill(name, copy, interruption)
            except duckdb.Error as exc:
                raise self._failure(exc) from exc
            yield

    def _check(self, views: frozenset[str]) -> None:
        """Raise DatasetNotLoadedError if the type of a column behind one of the materialized *views* has changed."""
        for name in sorted(views):
            if name not in self._unfit:
                try:
                    check_types(_without_rule(name), self._definitions)
                    is_unfit = False
                except UnfitRuleError as exc:
                    is_unfit = True
                    _log_unfit(name, str(exc))
                self._unfit[name] = is_unfit
            if self._unfit[name]:
                raise _unavailable(name)

    # Definitions. Call these methods with the lock held.

    def _define(self, key: KeyCatalog, statement: GatedStatement, held: ExitStack) -> list[tuple[str, _Copy]]:
        """Define the relations that *statement* reads, and return the copies among them. *held* releases them."""
        catalog = self._catalog(key)
        catalog.users += 1
        held.callback(self._leave, catalog)
        read = statement.relations if statement.catalog is None else key.relations
        for name in sorted(filter(self._definitions.is_readable, read)):
            self._declare(catalog, name)
        self._definitions.define_macros(KEY_MACROS, statement.macros)
        if statement.catalog is not None and not self._definitions.has_list(statement.catalog, key.name):
            self._define_list(catalog, statement.catalog)
        copies = []
        for name in sorted(statement.relations):
            if name in catalog.errors:
                raise _unavailable(name)
            if (copy := catalog.copies.get(name)) is not None:
                self._copies.move_to_end(copy.source)
                copy.users += 1
                held.callback(self._release, copy)
                copies.append((name, copy))
        return copies

    def _catalog(self, key: KeyCatalog) -> _Catalog:
        if (catalog := self._catalogs.get(key.name)) is not None:
            self._catalogs.move_to_end(key.name)
            return catalog
        while len(self._catalogs) >= _MOST_CATALOGS:
            unused = next((one for one in self._catalogs.values() if not one.users), None)
            if unused is None:
                break
            self._drop(unused)
        with self._connection.cursor() as cursor:
            if not self._has_database:
                cursor.execute(f"ATTACH ':memory:' AS {_COPIES} (HIDDEN)")
                cursor.execute(f"ATTACH ':memory:' AS {KEY_MACROS} (HIDDEN)")
                self._has_database = True
            cursor.execute(f"ATTACH ':memory:' AS {key.name} (HIDDEN)")
        catalog = self._catalogs[key.name] = _Catalog(key)
        return catalog

    def _drop(self, catalog: _Catalog) -> None:
        del self._catalogs[catalog.key.name]
        with self._connection.cursor() as cursor:
            cursor.execute(f"DETACH {catalog.key.name}")
            for copy in filter(None, catalog.copies.values()):
                copy.catalogs -= 1
                if not copy.catalogs and not copy.users:
                    cursor.execute(f"DROP TABLE {_COPIES}.main.{copy.name}")
                    del self._copies[copy.source]
                    self._filled_bytes -= copy.size if copy.is_filled else 0

    def _declare(self, catalog: _Catalog, name: str) -> None:
        """Define the relation *name*, without rows if it is a copy."""
        if name in catalog.copies or name in catalog.errors:
            return
        rule = catalog.key.rules.get(name)
        define_view = partial(self._definitions.define_view, catalog.key.name, name)
        copy = None
        try:
            if self._needs_copy(name, rule):
                copy = self._copy(name, rule)
                define_view(f"FROM {_COPIES}.main.{copy.name}")
                copy.catalogs += 1
            elif rule is None:
                check_types(_without_rule(name), self._definitions)
                define_view(f"FROM runtime.{qualified(name)}")
            else:
                self._definitions.define_macros("runtime", rule.macros)
                self._definitions.define_macros(KEY_MACROS, rule.macros)
                with self._connection.cursor() as cursor:
                    define_view(rows_of(cursor, rule, self._definitions), is_secure=True)
        except (UnfitRuleError, duckdb.Error) as exc:
            if isinstance(exc, duckdb.Error) and fault_of(exc) not in _OF_RULES:
                raise
            catalog.errors[name] = str(exc)
            _log_unfit(name, str(exc))
            return
        catalog.copies[name] = copy
        self._definitions.renew_cursors()

    def _define_list(self, catalog: _Catalog, relations: frozenset[str]) -> None:
        """Define the lists for `information_schema` and SHOW, in a visible database because others are not listed."""
        name = f"{catalog.key.name}_list"
        with self._connection.cursor() as cursor:
            cursor.execute(f"ATTACH ':memory:' AS {name}")
            try:
                for relation in catalog.copies.keys() & relations:
                    source = f"{catalog.key.name}.{qualified(relation)}"
                    self._definitions.define_view(name, relation, f"FROM {source}")
                self._definitions.define_list(relations, catalog.key.name, name)
            finally:
                cursor.execute(f"DETACH {name}")

    def _needs_copy(self, name: str, rule: GatedRule | None) -> bool:
        return self._definitions.is_view(name) or (
            rule is not None and (rule.rule.needs_copy or self._definitions.is_unsorted(name))
        )

    def _copy(self, name: str, rule: GatedRule | None) -> _Copy:
        """Return the copy for *rule*, or for the view *name*. The copy may have no rows yet."""
        with self._connection.cursor() as cursor:
            rule = rule or _without_rule(name)
            self._definitions.define_macros("runtime", rule.macros)
            is_constant = rule.deterministic and self._definitions.is_deterministic(rule.relations)
            table = None if self._definitions.is_unsorted(name) else self._definitions.table_of(name)
            view = ""
            if table is None and self._definitions.is_sorted(name) and rule.has_subquery:
                # The join that runs a subquery does not keep the order, and its sizes decide the order that it gives.
                view, table = f"FROM runtime.{qualified(name)}", f"temp.main.{_ORDERED}"
                cursor.execute(f"CREATE TEMP TABLE {_ORDERED} AS {view} LIMIT 0")
            if table is not None and "rowid" in map(lower, columns_of(cursor, f"FROM {table}")):
                view, table = "", None  # There is no other name for the position.
            leaves_rows_out = table is None or bool(view) or rule.row_filter is not None
            rows = rows_of(cursor, rule, self._definitions, leaves_rows_out=leaves_rows_out, table=table)
            # Hidden rows must not decide the order either: their number may decide in which order a join gives the
            # others. And the rows are sorted, because threads would otherwise cut the copy into pieces where the source
            # was cut, and the size of a piece would tell how many rows of it are missing.
            if table is None:
                is_in_order = self._definitions.is_sorted(name) and not rule.has_subquery
                order = "row_number() OVER ()" if is_in_order else BY_VALUES
                rows = f"FROM ({rows}) ORDER BY {order}"
            source = _Source(rows, is_constant, view)
            copy = self._copies.get(source)
            if copy is None:
                copy = _Copy(_name_of(source), source)
                cursor.execute("USE runtime")
                cursor.execute(f"CREATE TABLE {_COPIES}.main.{copy.name} AS FROM ({rows}) LIMIT 0")
                self._copies[source] = copy
        return copy

    def _leave(self, catalog: _Catalog) -> None:
        with self._lock:
            catalog.users -= 1

    def _release(self, copy: _Copy) -> None:
        with self._lock, suppress(duckdb.Error):  # After an error, the next statement tries again.
            copy.users -= 1
            self._shrink()

    # Rows.

    def _fill(self, name: str, copy: _Copy, interruption: Interruption) -> None:
        while not copy.filling.acquire(timeout=TICK_S):
            interruption.check()
        try:
            if copy.error:
                raise _unavailable(name)
            if not copy.is_filled or not copy.source.is_constant:
                self._run(name, copy, interruption)
        finally:
            copy.filling.release()

    def _run(self, name: str, copy: _Copy, interruption: Interruption) -> None:
        sql = f"CREATE OR REPLACE TABLE {_COPIES}.main.{copy.name} AS {copy.source.rows}"
        with self._connection.cursor() as cursor:
            interruption.attach(cursor.interrupt)
            try:
                interruption.check()
                cursor.execute("USE runtime")
                before = _used_bytes(cursor)
                if copy.source.view:
                    cursor.execute(f"CREATE TEMP TABLE {_ORDERED} AS {copy.source.view}")
                cursor.execute(sql)
                cursor.execute(f"DROP TABLE IF EXISTS temp.main.{_ORDERED}")
                size = max(_LEAST_BYTES, _used_bytes(cursor) - before)
            except (duckdb.Error, UnicodeDecodeError) as exc:
                interruption.check()
                if isinstance(exc, duckdb.Error) and fault_of(exc) not in _OF_RULES:
                    raise
                # The message of the error may quote a value.
                copy.error = f"{type(exc).__name__} while its rows were read"
                _log_unfit(name, copy.error)
                raise _unavailable(name) from None
            finally:
                interruption.detach()
        self._definitions.renew_cursors()
        with self._lock:
            self._filled_bytes += size - (copy.size if copy.is_filled else 0)
            copy.size, copy.is_filled = size, True
            self._shrink()

    def _shrink(self) -> None:
        """Empty the least recently used copies while copies use too much memory. Call with the lock held."""
        for copy in list(self._copies.values()):
            if self._filled_bytes <= self._budget_bytes:
                return
            if copy.is_filled and not copy.users:
                copy.is_filled = False
                self._filled_bytes -= copy.size
                table = f"{_COPIES}.main.{copy.name}"
                with self._connection.cursor() as cursor:
                    cursor.execute(f"CREATE OR REPLACE TABLE {table} AS FROM {table} LIMIT 0")
                self._definitions.renew_cursors()


def _without_rule(name: str) -> GatedRule:
    """Return the rule that makes all of the relation *name* visible."""
    return GatedRule(rule=DatasetRule(dataset=name), relations=frozenset({name}), deterministic=True)


def _used_bytes(cursor: duckdb.DuckDBPyConnection) -> int:
    (used,) = cursor.execute(_USED).fetchone() or (None,)
    return int(used or 0)


def _unavailable(name: str) -> DatasetNotLoadedError:
    return DatasetNotLoadedError(f"'{name}' is not available to this key: its rules or views do not fit the data.")


def _log_unfit(name: str, reason: str) -> None:
    logger.error("rule of a key unusable", extra={"fields": {"dataset": name, "error": reason}})
