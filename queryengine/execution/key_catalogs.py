"""
The catalogs of keys that may see only a part of the data, in one DuckDB instance.

A statement of such a key runs in a database of its own. Whole datasets are views there as they are in `runtime`. Rows
that a key may not see must not decide anything about its statements, neither an error nor a plan, an estimate, or the
order of rows. So a dataset with a row filter, and a view of the YAML, is a copy that holds nothing else. It is made
when a statement first reads it, and all keys with the same rule share it. A dataset that lacks only columns, or has
masks, has all of its rows, and is a secure view.
"""

import logging
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import duckdb

from queryengine.cancellation import TICK_S, Interruption
from queryengine.engine import GatedStatement
from queryengine.errors import DatasetNotLoadedError
from queryengine.execution.cursors import KEY_MACROS
from queryengine.execution.definitions import Definitions
from queryengine.execution.duckdb_errors import Fault, fault_of
from queryengine.key_catalog import GatedRule, KeyCatalog
from queryengine.values import qualified, quoted, split_relation
from runtimeconf.model import DatasetRule

logger = logging.getLogger(__name__)

#: The hidden database of the copies.
_COPIES: Final = "_copies"

#: As many catalogs are kept, the most recently used ones, and about so many bytes each takes.
_MOST_CATALOGS: Final = 1024
_CATALOG_BYTES: Final = 100 * 1024

#: Copies are emptied, the least recently used first, while all take more than this part of the memory limit.
_PART_OF_MEMORY: Final = 3

#: An ENUM in the name of a type; other quoted parts are left alone.
_ENUM: Final = re.compile(r"ENUM\((?:'(?:[^']|'')*'(?:, )?)*\)")

#: A copy counts as at least so many bytes.
_LEAST_BYTES: Final = 64 * 1024

_USED = "SELECT sum(memory_usage_bytes + temporary_storage_bytes) FROM duckdb_memory() WHERE tag = 'IN_MEMORY_TABLE'"

#: What a copy is made of: the SQL of its rows, and whether the data alone decides them. Others are made anew each time.
_Source = tuple[str, bool]


@dataclass(eq=False, slots=True)
class _Copy:
    """A table of `_COPIES` with the rows of `source`, or without rows until it is filled."""

    name: str
    source: _Source
    users: int = 0  # statements that have not begun to read it
    catalogs: int = 0  # those with a view of it
    is_filled: bool = False
    size: int = 0  # in bytes, about
    error: str = ""
    filling: threading.Lock = field(default_factory=threading.Lock)


@dataclass(eq=False, slots=True)
class _Catalog:
    """A database with views; `copies` are by relation, None for a relation that is not a copy."""

    key: KeyCatalog
    copies: dict[str, _Copy | None] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    users: int = 0


class UnfitRuleError(Exception):
    """A rule does not fit the data. The message is for the operator, and shows no data."""


class KeyCatalogs:
    """
    The catalogs of keys on *connection*. Safe from any thread.

    Args:
        connection: The instance.
        definitions: Its relations.
        memory_bytes: Its memory limit.
        failure: Translates an error of DuckDB.
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
        self._lock = threading.Lock()  # Held for definitions, which are short; not while a copy is filled.
        self._catalogs: OrderedDict[str, _Catalog] = OrderedDict()
        self._copies: OrderedDict[_Source, _Copy] = OrderedDict()
        self._filled_bytes = 0
        self._has_database = False

    @property
    def kept_bytes(self) -> int:
        """The memory of the catalogs and copies, in bytes, about."""
        return self._filled_bytes + len(self._catalogs) * _CATALOG_BYTES

    @contextmanager
    def ready(self, statement: GatedStatement, interruption: Interruption, *, rows: bool) -> Iterator[None]:
        """
        Define what *statement* reads in its `key_catalog`, with its *rows*, until the statement has begun.

        Raises:
            DatasetNotLoadedError: A rule does not fit the data.
            QueryError: *interruption* was stopped; its reason.
        """
        key = statement.key_catalog
        if key is None:
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

    # Definitions. Called under the lock.

    def _define(self, key: KeyCatalog, statement: GatedStatement, held: ExitStack) -> list[tuple[str, _Copy]]:
        """Define what *statement* reads, and return the copies among it; *held* lets them go."""
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
            if self._leaves_rows_out(name, rule):
                copy = self._copy(name, rule)
                define_view(f"FROM {_COPIES}.main.{copy.name}")
                copy.catalogs += 1
            elif rule is None:
                define_view(f"FROM runtime.{qualified(name)}")
            else:
                self._definitions.define_macros("runtime", rule.macros)
                self._definitions.define_macros(KEY_MACROS, rule.macros)
                with self._connection.cursor() as cursor:
                    define_view(rows_of(cursor, rule), is_secure=True)
        except (UnfitRuleError, duckdb.Error) as exc:
            if isinstance(exc, duckdb.Error) and fault_of(exc) is not Fault.SQL:
                raise
            catalog.errors[name] = str(exc)
            _log_unfit(name, str(exc))
            return
        catalog.copies[name] = copy
        self._definitions.renew_cursors()

    def _define_list(self, catalog: _Catalog, relations: frozenset[str]) -> None:
        """Define what `information_schema` and SHOW list: only databases that are not hidden can be listed."""
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

    def _leaves_rows_out(self, name: str, rule: GatedRule | None) -> bool:
        return self._definitions.is_view(name) or (rule is not None and rule.row_filter is not None)

    def _copy(self, name: str, rule: GatedRule | None) -> _Copy:
        """Return the copy for *rule*, or for the view *name*; it may be without rows."""
        with self._connection.cursor() as cursor:
            rule = rule or GatedRule(rule=DatasetRule(dataset=name), relations=frozenset({name}), deterministic=True)
            self._definitions.define_macros("runtime", rule.macros)
            is_constant = rule.deterministic and self._definitions.is_deterministic(rule.relations)
            source = rows_of(cursor, rule, leaves_rows_out=True), is_constant
            copy = self._copies.get(source)
            if copy is None:
                copy = _Copy(f"c{secrets.token_hex(6)}", source)
                cursor.execute("USE runtime")
                cursor.execute(f"CREATE TABLE {_COPIES}.main.{copy.name} AS FROM ({source[0]}) LIMIT 0")
                self._copies[source] = copy
        return copy

    def _leave(self, catalog: _Catalog) -> None:
        with self._lock:
            catalog.users -= 1

    def _release(self, copy: _Copy) -> None:
        with self._lock:
            copy.users -= 1

    # Rows.

    def _fill(self, name: str, copy: _Copy, interruption: Interruption) -> None:
        while not copy.filling.acquire(timeout=TICK_S):
            interruption.check()
        try:
            if copy.error:
                raise _unavailable(name)
            if not copy.is_filled or not copy.source[1]:
                self._run(name, copy, interruption)
        finally:
            copy.filling.release()

    def _run(self, name: str, copy: _Copy, interruption: Interruption) -> None:
        number = f"_{secrets.token_hex(6)}"
        # Sorted, because threads would otherwise cut the table into pieces where the source was cut, and the size of a
        # piece would tell how many rows of it are missing.
        numbered = f"FROM ({copy.source[0]}) SELECT *, row_number() OVER () AS {number}"
        sql = f"CREATE OR REPLACE TABLE {_COPIES}.main.{copy.name} AS FROM ({numbered})"
        sql += f" SELECT * EXCLUDE ({number}) ORDER BY {number}"
        with self._connection.cursor() as cursor:
            interruption.attach(cursor.interrupt)
            try:
                interruption.check()
                cursor.execute("USE runtime")
                before = _used_bytes(cursor)
                cursor.execute(sql)
                size = max(_LEAST_BYTES, _used_bytes(cursor) - before)
            except (duckdb.Error, UnicodeDecodeError) as exc:
                interruption.check()
                if isinstance(exc, duckdb.Error) and fault_of(exc) is not Fault.SQL:
                    raise
                # Its text may quote a value.
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
        """Empty the least recently used copies while all of them take too much memory. Called under the lock."""
        for copy in list(self._copies.values()):
            if self._filled_bytes <= self._budget_bytes:
                return
            if copy.is_filled and not copy.users:
                copy.is_filled = False
                self._filled_bytes -= copy.size
                table = f"{_COPIES}.main.{copy.name}"
                with self._connection.cursor() as cursor:
                    cursor.execute(f"CREATE OR REPLACE TABLE {table} AS FROM {table} LIMIT 0")


def _type_of(cursor: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return the type of the only column of *sql*, an expression of a rule."""
    found = _columns(cursor, sql)
    if len(found) != 1:
        raise UnfitRuleError("an expression gives more than one column")
    return next(iter(found.values()))


def _without_enums(type_: str) -> str:
    return _ENUM.sub("VARCHAR", type_)


def _used_bytes(cursor: duckdb.DuckDBPyConnection) -> int:
    (used,) = cursor.execute(_USED).fetchone() or (None,)
    return int(used or 0)


def rows_of(cursor: duckdb.DuckDBPyConnection, rule: GatedRule, *, leaves_rows_out: bool = False) -> str:
    """
    Return the SQL of the rows, columns and values that *rule* leaves.

    A column becomes text if its type is an ENUM that may list the values of hidden rows, or of a mask.

    Raises:
        UnfitRuleError: It does not fit the columns of its dataset, or the gate refused it.
        duckdb.Error: It does not fit their types, or the dataset is not there.
    """
    if rule.error:
        raise UnfitRuleError(rule.error)
    name = rule.rule.dataset
    alias = quoted(split_relation(name)[1])
    cursor.execute("USE runtime")
    types = _columns(cursor, f"FROM runtime.{qualified(name)}")
    named = {column.lower(): column for column in types}
    masks = {column.lower(): sql for column, sql in (rule.masks or {}).items()}
    listed = [column.lower() for column in (types if rule.rule.columns is None else rule.rule.columns)]
    if missing := [column for column in (*listed, *masks) if column not in named]:
        raise UnfitRuleError(f"there is no column {missing[0]}")
    source = f"FROM runtime.{qualified(name)} AS {alias}"
    if rule.row_filter is not None:
        if _type_of(cursor, f"{source} SELECT (\n{rule.row_filter}\n)") != "BOOLEAN":
            raise UnfitRuleError("row_filter is not BOOLEAN")
        # In a query of its own, where no name can mean a masked column.
        source = f"FROM ({source} WHERE (\n{rule.row_filter}\n)) AS {alias}"
    items = []
    for column in listed:
        actual, type_ = quoted(named[column]), types[named[column]]
        value = f"{alias}.{actual}"
        if column in masks:
            # An error of a mask would quote the value that it hides, so it gives null.
            value = f"TRY((\n{masks[column]}\n))"
            found = _type_of(cursor, f"{source} SELECT {value} AS {actual}")
            if found == '"NULL"':
                value = f"CAST({value} AS {_without_enums(type_)})"
            type_ = found
        if (leaves_rows_out or column in masks) and type_ != _without_enums(type_):
            value = f"CAST({value} AS {_without_enums(type_)})"
        items.append(f"{value} AS {actual}")
    sql = f"SELECT {', '.join(items)} {source}"
    if [*_columns(cursor, sql)] != [named[column] for column in listed]:
        raise UnfitRuleError("a mask gives more than one column")
    return sql


def _columns(cursor: duckdb.DuckDBPyConnection, sql: str) -> dict[str, str]:
    """Return the names and types of the columns of *sql*."""
    return {str(name): str(type_) for name, type_, *_ in cursor.execute(f"FROM ({sql}) LIMIT 0").description or ()}


def _unavailable(name: str) -> DatasetNotLoadedError:
    return DatasetNotLoadedError(f"'{name}' is not available to this key: its rules do not fit the data.")


def _log_unfit(name: str, reason: str) -> None:
    logger.error("rule of a key unusable", extra={"fields": {"dataset": name, "error": reason}})
