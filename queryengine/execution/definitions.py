"""
Defines the names that statements can use: the datasets, views and catalog of one DuckDB instance.

Each snapshot is attached read-only under a hidden name. Each declared dataset is a view of its snapshot, named
`runtime.main.<dataset>` or `runtime.<schema>.<dataset>`. The declared views are then defined on these views.
"""

import errno
import hashlib
import io
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import duckdb

from queryengine.engine import GatedStatement
from queryengine.errors import DatasetNotLoadedError, EngineUnavailableError, QueryError, SqlError
from queryengine.execution import duckdb_errors
from queryengine.execution.bounded_functions import MACROS
from queryengine.execution.session import UnfitView
from queryengine.execution.views import GatedView, unsorted_datasets
from queryengine.gate import macros
from queryengine.gate.lexer import lower, scan
from queryengine.gate.parse_tree import CATALOG, SHOWN_COLUMNS, SHOWN_TABLES, catalog_schema
from queryengine.gate.rewriting import is_sorted
from queryengine.key_catalog import GatedRule
from queryengine.manifest import Snapshot, snapshot_path
from queryengine.values import qualified, quoted, split_relation
from runtimeconf.model import DatasetConfig, Documentation, RuntimeConfig

logger = logging.getLogger(__name__)

#: The operating system's message when a process or the whole system has no free file descriptors.
_NO_DESCRIPTOR_LEFT = os.strerror(errno.EMFILE)

#: The maximum number of scopes whose catalog lists are kept, in addition to those that views read. Each uses 0.7 MiB.
_MOST_CATALOGS: Final = 64

#: Macros that make a statement in a key's catalog see the name `runtime`, which the catalog stands for, and hide the
#: schema of these macros.
IN_KEY_CATALOGS: Final = (
    "current_catalog() AS 'runtime'",
    "current_database() AS 'runtime'",
    "current_schemas(i) AS CASE i WHEN true THEN system.main.current_schemas(true)[2:] WHEN false THEN ['main'] END",
)


class SnapshotGoneError(Exception):
    """A snapshot file in the manifest is missing. A newer manifest superseded it, or somebody deleted the file."""


class Definitions:
    """
    The relations of one DuckDB instance over *snapshots*.

    `unfit_views` contains the views that do not fit the data, by name, but not views that only read such a view.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        config: RuntimeConfig,
        snapshots: Sequence[Snapshot],
        views: Sequence[GatedView],
        *,
        tolerant: bool,
    ) -> None:
        """
        Define everything. Each of *views* reads only earlier views.

        With *tolerant*, a missing or unreadable snapshot makes only its dataset unavailable.

        Raises:
            SnapshotGoneError: A snapshot is missing or unreadable, and *tolerant* is false.
            EngineUnavailableError: The process has too few file descriptors.
        """
        self.unfit_views: dict[str, UnfitView] = {}
        self._connection = connection
        #: Called after a definition, because earlier transactions do not see it.
        self.renew_cursors: Callable[[], None] = lambda: None
        self._config = config
        datasets = {dataset.name.lower() for dataset in config.datasets}
        # A name may have been a dataset before it became a view.
        self._snapshots = {one.dataset.lower(): one for one in snapshots if one.dataset.lower() in datasets}
        #: The datasets that each view reads, by lower-case name.
        self._datasets_of: dict[str, frozenset[str]] = {}
        #: The datasets that each materialized view reads, by lower-case name.
        self._reads_of = {one.name.lower(): one.view.reads for one in config.datasets if one.view is not None}
        #: The dataset that each `localpod:` dataset copies, both in lower case. A copy of a plain view reads datasets
        #: behind that view.
        self._copied = {
            one.name.lower(): one.view.reads[0]
            for one in config.datasets
            if one.view is not None and one.view.is_copy and not one.view.views
        }
        #: The errors of relations without data, and of views whose SQL does not fit the data.
        self._unreadable: dict[str, tuple[type[QueryError], str]] = {}
        self._nondeterministic_views: set[str] = set()
        self._sorted_views: set[str] = set()
        self._unsorted = unsorted_datasets(config)
        #: The schemas of the hidden catalog: those that views read, and the others, least recently used first.
        self._catalogs_of_views: frozenset[str] = frozenset()
        self._catalogs: dict[str, None] = {}
        #: The defined macros of `queryengine.gate.macros`, by database.
        self._macros: dict[str, frozenset[str]] = {"runtime": frozenset()}
        #: The declared names and the documentation of all relations, by lower-case name.
        self._declared = {one.name.lower(): (one.name, one.documentation) for one in config.datasets}
        self._declared |= {one.name.lower(): (one.name, one.documentation) for one in config.views}
        self._defining = threading.Lock()
        self._define_datasets(tolerant=tolerant)
        self._connection.execute(f"ATTACH ':memory:' AS {CATALOG} (HIDDEN)")
        for macro in MACROS:
            connection.execute(f"CREATE MACRO runtime.main.{macro}")
        catalogs = {view.statement.catalog for view in views if view.statement.catalog is not None}
        for catalog in catalogs:  # It also lists the views that read it, so its tables are filled later.
            self._define_catalog(catalog, "VIEW")
        for view in views:
            self._define_view(view)
        for catalog in catalogs:
            self._connection.execute(f"DROP SCHEMA {CATALOG}.{catalog_schema(catalog)} CASCADE")
            self._catalogs.clear()
            self._define_catalog(catalog, "TABLE")
            self._catalogs_of_views |= self._catalogs.keys()
        self._catalogs.clear()

    def is_readable(self, name: str) -> bool:
        """Return whether the dataset or view *name* can be read."""
        return name not in self._unreadable

    def is_view(self, name: str) -> bool:
        """Return whether *name* is a view without a snapshot of its own."""
        return name in self._datasets_of

    def is_derived(self, name: str) -> bool:
        """Return whether the rows of *name* depend on a view, materialized or not."""
        while name in self._copied:
            name = self._copied[name]
        return name in self._datasets_of or name in self._reads_of

    def table_of(self, name: str) -> str | None:
        """Return the table of the dataset *name*, which has a `rowid`; None for a view without a snapshot."""
        snapshot = self._snapshots.get(name)
        return None if snapshot is None else f"{_attachment(name)}.main.{quoted(snapshot.dataset)}"

    def is_sorted(self, name: str) -> bool:
        """Say whether *name* is a view that fixes the order of its rows."""
        return name in self._sorted_views

    def is_unsorted(self, name: str) -> bool:
        """Say whether columns that a key may not see determine the order of the rows of the dataset *name*."""
        snapshot = self._snapshots.get(name)
        return name in self._unsorted or (snapshot is not None and snapshot.is_reordered)

    def is_deterministic(self, relations: Iterable[str]) -> bool:
        """Return whether the data alone determines the rows of *relations*."""
        return self._nondeterministic_views.isdisjoint(relations)

    def require(self, statement: GatedStatement) -> None:
        """
        Check that each relation of *statement* can be read. Define the catalog that it reads and the macros it calls.

        Raises:
            DatasetNotLoadedError: A relation has no data.
            SqlError: A relation is a view that does not fit the data.
        """
        for name in sorted(statement.relations & self._unreadable.keys()):
            error, reason = self._unreadable[name]
            if statement.key_catalog is not None and self.is_view(name):  # The reason may contain hidden names.
                error, reason = DatasetNotLoadedError, f"View '{self._declared[name][0]}' cannot be read at the moment."
            raise error(reason)
        if statement.key_catalog is None:
            if statement.catalog is not None:
                self._define_catalog(statement.catalog, "TABLE")
            self.define_macros("runtime", statement.macros)

    def is_cacheable(self, statement: GatedStatement) -> bool:
        """Return whether the data and the parameters of *statement* alone determine its result."""
        rules = _rules_of(statement)
        read = statement.relations.union(*(rule.relations for rule in rules))
        return (
            statement.deterministic
            and all(rule.deterministic for rule in rules)
            and self._nondeterministic_views.isdisjoint(read)
        )

    def datasets_read_by(self, statement: GatedStatement) -> frozenset[str]:
        """Return the datasets that *statement* reads, including those read through views and rules of its key."""
        return self.datasets_of(statement.relations.union(*(rule.relations for rule in _rules_of(statement))))

    def datasets_of(self, relations: Iterable[str]) -> frozenset[str]:
        """Return the datasets among *relations*, and those that the views among them read."""
        return frozenset().union(*(self._datasets_of.get(name, {name}) for name in relations))

    def retyped(self, relation: str, *, with_inputs: bool) -> Iterator[tuple[str, str, str]]:
        """
        Yield the columns of the datasets behind *relation* that had another type: name, first and present type.

        *with_inputs* includes those that a materialized view reads.
        """
        behind = pending = self.datasets_of({relation})
        while pending and with_inputs:
            pending = frozenset().union(*(self._reads_of.get(name, ()) for name in pending)) - behind
            behind |= pending
        for snapshot in map(self._snapshots.get, sorted(behind)):
            if snapshot is not None and snapshot.retyped:
                types = {lower(column.name): column.type for column in snapshot.columns}
                yield from ((one.name, one.type, types[one.name]) for one in snapshot.retyped if one.name in types)

    def define_macros(self, database: str, names: frozenset[str]) -> None:
        """Define the macros *names*. Defining all macros would take longer than opening the rest of an instance."""
        if database in self._macros and names <= self._macros[database]:
            return
        with self._defining, self._connection.cursor() as cursor:
            known = self._macros.get(database, frozenset())
            new = [macro for macro in macros.needed(names) if macro.name not in known]
            always = [] if database in self._macros else [*MACROS, *IN_KEY_CATALOGS]
            texts = [*always, *(macro.definition for macro in new)]
            definitions = [f"CREATE MACRO {database}.main.{text}" for text in texts]
            # Without USE, DuckDB does not find the macros that a macro calls.
            cursor.execute("; ".join([f"USE {database}", "BEGIN", *definitions, "COMMIT"]))
            self.renew_cursors()
            self._macros[database] = known | {macro.name for macro in new}

    def has_list(self, relations: frozenset[str], database: str) -> bool:
        """Return whether the definitions of a `define_list` call still exist."""
        return f"{CATALOG}.{catalog_schema(relations, database)}" in self._catalogs

    def define_list(self, relations: frozenset[str], database: str, listed: str) -> None:
        """Define the gate's substitutes for `information_schema` and SHOW in *database*, from views in *listed*."""
        self._define_catalog(relations, "TABLE", database, listed)

    def define_view(self, database: str, name: str, sql: str, *, is_secure: bool = False) -> None:
        """Define the relation *name* in a key's *database*."""
        kind = "SECURE VIEW" if is_secure else "VIEW"
        with self._connection.cursor() as cursor:
            declared, documentation = self._declared[name]
            self._create_view(declared, sql, documentation, cursor, f"{kind} {database}")

    def _define_catalog(
        self, relations: frozenset[str], kind: Literal["TABLE", "VIEW"], database: str = "", listed: str = "runtime"
    ) -> None:
        """
        Define the gate's substitutes for `information_schema` and SHOW: the same lists, but only of *relations*.

        Statements read tables, because the plan of a view would reveal the number of other relations.
        """
        schema = f"{CATALOG}.{catalog_schema(relations, database)}"
        names = _text_list(sorted(relations))
        datasets = _text_list(one.name.lower() for one in self._config.datasets if one.name.lower() in relations)
        schemas = _text_list(sorted({"main", *(split_relation(name)[0] for name in relations)}))
        full_name = "lower(if(table_schema = 'main', table_name, concat(table_schema, '.', table_name)))"
        table_type = f"if({full_name} IN ({datasets}), 'BASE TABLE', 'VIEW') AS table_type"
        ours = f"table_catalog = '{listed}' AND {full_name} IN ({names})"
        shown_name = "lower(if(schema = 'main', name, concat(schema, '.', name)))"
        lists = {
            "tables": f"FROM information_schema.tables SELECT * REPLACE ({table_type}, 'runtime' AS table_catalog) "
            f"WHERE {ours}",
            "columns": f"FROM information_schema.columns SELECT * REPLACE ('runtime' AS table_catalog) WHERE {ours}",
            "schemata": "FROM information_schema.schemata SELECT * REPLACE ('runtime' AS catalog_name) "
            f"WHERE catalog_name = '{listed}' AND lower(schema_name) IN ({schemas})",
            SHOWN_TABLES: f"FROM (SHOW TABLES FROM {listed}.main) WHERE lower(name) IN ({names}) ORDER BY name",
            SHOWN_COLUMNS: "FROM (SHOW ALL TABLES) SELECT * REPLACE ('runtime' AS database) "
            f"WHERE database = '{listed}' AND {shown_name} IN ({names}) ORDER BY schema, name",
        }
        with self._defining, self._connection.cursor() as cursor:
            if schema in self._catalogs_of_views:
                return
            if schema in self._catalogs:
                self._catalogs[schema] = self._catalogs.pop(schema)
                return
            definitions = [f"CREATE {kind} {schema}.{name} AS {sql}" for name, sql in lists.items()]
            cursor.execute("; ".join(["BEGIN", f"CREATE SCHEMA {schema}", *definitions, "COMMIT"]))
            self._catalogs[schema] = None
            if len(self._catalogs) > _MOST_CATALOGS:  # A statement that has begun to read the schema still sees it.
                cursor.execute(f"DROP SCHEMA {next(iter(self._catalogs))} CASCADE")
                del self._catalogs[next(iter(self._catalogs))]

    def _define_datasets(self, *, tolerant: bool) -> None:
        opened: list[tuple[DatasetConfig, Snapshot, io.FileIO]] = []
        with ExitStack() as held:
            # Open all files first, because an open file can be attached even after it is superseded. Otherwise, if
            # refreshes came faster than files are attached, a file would be missing at each attempt. Opening takes a
            # fiftieth of the time of attaching.
            for dataset in self._config.datasets:
                name = dataset.name
                if (snapshot := self._snapshots.get(name.lower())) is None:
                    self._unreadable[name.lower()] = DatasetNotLoadedError, f"Dataset '{name}' is not loaded yet."
                    continue
                with self._refusing(name, snapshot, tolerant=tolerant):
                    file = held.enter_context(io.FileIO(snapshot_path(self._config.state_dir, snapshot)))
                    opened.append((dataset, snapshot, file))
            for dataset, snapshot, file in opened:
                with file, self._refusing(dataset.name, snapshot, tolerant=tolerant):
                    path = snapshot_path(self._config.state_dir, snapshot)
                    attachment = _attachment(dataset.name)
                    try:
                        self._attach(attachment, path)
                    except duckdb.IOException:
                        if path.exists():
                            raise
                        self._attach(attachment, Path(f"/proc/self/fd/{file.fileno()}"))
                    self._create_view(
                        dataset.name, f"FROM {self.table_of(dataset.name.lower())}", dataset.documentation
                    )

    @contextmanager
    def _refusing(self, name: str, snapshot: Snapshot, *, tolerant: bool) -> Iterator[None]:
        """If *snapshot* is unreadable, make the dataset *name* unavailable, or raise an error if not *tolerant*."""
        try:
            yield
        except (OSError, duckdb.Error) as exc:
            if _NO_DESCRIPTOR_LEFT in str(exc):  # The file is good, and the instance is opened again later.
                fields: dict[str, object] = {"snapshots": len(self._snapshots)}
                logger.error("too few file descriptors", extra={"fields": fields})  # noqa: TRY400 - the caller gets it
                raise EngineUnavailableError("The limit on open files is too low for the engine.") from exc
            if not tolerant:
                raise SnapshotGoneError(snapshot.file) from exc
            fields = {"dataset": name, "snapshot": snapshot.file}
            logger.exception("snapshot unusable", extra={"fields": fields})
            self._unreadable[name.lower()] = DatasetNotLoadedError, f"Dataset '{name}' cannot be read at the moment."

    def _attach(self, attachment: str, path: Path) -> None:
        self._connection.execute(f"ATTACH {_text_literal(str(path))} AS {attachment} (READ_ONLY, HIDDEN)")

    def _define_view(self, view: GatedView) -> None:
        name = view.config.name
        self._datasets_of[name.lower()] = self.datasets_of(view.statement.relations)
        if is_sorted(scan(view.statement.sql)):
            self._sorted_views.add(name.lower())
        if not self.is_cacheable(view.statement):
            self._nondeterministic_views.add(name.lower())
        for needed in sorted(view.statement.relations & self._unreadable.keys()):
            error, reason = self._unreadable[needed]
            lack = "has no data yet" if error is DatasetNotLoadedError else "cannot be read"
            self._unreadable[name.lower()] = error, f"View '{name}' {lack}: {reason}"
            return
        try:
            self.define_macros("runtime", view.statement.macros)
            self._create_view(name, view.statement.sql, view.config.documentation)
        except duckdb.Error as exc:
            # Leave out the excerpt, which shows our CREATE VIEW and not the author's statement.
            reason = duckdb_errors.sentence(exc, self._config.state_dir).partition("\n\nLINE ")[0]
            self.unfit_views[name] = UnfitView(view.config.yaml_path, reason)
            self._unreadable[name.lower()] = SqlError, f"View '{name}' does not fit the data: {reason}"

    def _create_view(
        self,
        name: str,
        sql: str,
        documentation: Documentation,
        connection: duckdb.DuckDBPyConnection | None = None,
        kind: str = "VIEW runtime",
    ) -> None:
        """Create the view *name*. *kind* is the kind of view, followed by its database."""
        execute = (connection or self._connection).execute
        database = kind.rpartition(" ")[2]
        view, schema = f"{database}.{qualified(name)}", split_relation(name)[0]
        if schema != "main":
            execute(f"CREATE SCHEMA IF NOT EXISTS {database}.{quoted(schema)}")
        execute(f"CREATE {kind.removesuffix(database)}{view} AS {sql}")
        if documentation.description is not None:
            execute(f"COMMENT ON VIEW {view} IS {_text_literal(documentation.description)}")
        for column, description in documentation.columns.items():
            with suppress(duckdb.BinderException):  # `manage.py check` reports unknown columns.
                comment = _text_literal(description)
                execute(f"COMMENT ON COLUMN {view}.{quoted(column)} IS {comment}")


def _rules_of(statement: GatedStatement) -> list[GatedRule]:
    """Return the rules of the relations that *statement* reads."""
    rules = statement.key_catalog.rules if statement.key_catalog is not None else {}
    return [rules[name] for name in statement.relations & rules.keys()]


def _attachment(dataset: str) -> str:
    """Return the hidden name of a snapshot. Plans show it, so unlike a number, it must not hint at other datasets."""
    return f"_s{hashlib.blake2s(dataset.lower().encode(), digest_size=6).hexdigest()}"


def _text_literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _text_list(values: Iterable[str]) -> str:
    return ", ".join(["NULL", *map(_text_literal, values)])
