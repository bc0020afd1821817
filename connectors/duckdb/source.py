"""
`duckdb:` sources: a table or view in a DuckDB database file, which the loading engine attaches read-only.

The engine may open only that file and its write-ahead log, so a view that reads another file is refused. The engine
holds a shared lock on the file while it reads, so no program can write to the file during a load. The load fails while
a program has the file open for writing.
"""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from connectors.duckdb.params import DuckdbParams
from datasources.errors import SourceError
from datasources.sources.pinned_file import Identity, version_of
from datasources.sources.source import Load, Scan, reason_for
from datasources.sql import identifier, literal
from runtimeconf.model import DatasetConfig
from runtimeconf.tables import table_parts

_REASONS = (
    ("Could not set lock", "another program has it open for writing; the next refresh tries again"),
    ("version number", "it was written by another version of DuckDB, whose files this engine does not read"),
    ("not a valid DuckDB database", "it is not a DuckDB database"),
    ("encrypted", "it is encrypted"),
    ("Corrupt|checksum|Could not read enough bytes|WAL|deserializ", "it is damaged, or was cut short"),
    ("file system operations are disabled|disabled by configuration", "its view reads another file, which is refused"),
    ("Extension|extension", "it needs a DuckDB extension that is not available"),
)


class DuckdbFileSource:
    """One table or view in a database file."""

    def __init__(self, dataset: DatasetConfig, params: DuckdbParams) -> None:
        parts = table_parts(dataset.location)
        self._database = parts[0] if len(parts) > 2 else None
        self._table = (parts[-2] if len(parts) > 1 else "main", parts[-1])
        self._shown = dataset.location
        self._path = params.duckdb_open

    @contextmanager
    def open(self, load: Load) -> "Iterator[DuckdbFileScan]":
        """See `Source.open`."""
        load.deadline.check()
        # Resolve links, because the engine does so before it compares a path with the allowed paths.
        path = self._resolved()
        if self._database not in {None, path.stem, self._path.stem}:
            raise SourceError(f"The database in '{self._path.name}' is named {self._path.stem}, not {self._database}.")
        yield DuckdbFileScan(path, self._path.stem, self._table, self._shown)

    def has_changed(self, version: str, load: Load) -> bool:
        """Compare the identities of the file and of its write-ahead log."""
        load.deadline.check()
        return version_of(_identities(self._resolved())) != version

    def _resolved(self) -> Path:
        try:
            info = self._path.stat()
            resolved = self._path.resolve(strict=True)
        except OSError as exc:
            raise SourceError(f"'{self._path.name}' cannot be read: {exc.strerror}.") from exc
        if not stat.S_ISREG(info.st_mode):
            raise SourceError(f"'{self._path.name}' is not a regular file.")
        return resolved


class DuckdbFileScan(Scan):
    """A database file that the loading engine reads, and its write-ahead log, which may not exist."""

    has_collations = True

    def __init__(self, path: Path, name: str, table: tuple[str, str], shown: str) -> None:
        self._path = path
        self._name = name
        self._table = table
        self._shown = shown
        self._before = _identities(path)
        self.version = version_of(self._before)
        self.paths = (str(path), f"{path}.wal")

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Attach the file under its own name unless the name is taken, because its views may use that name."""
        taken = connection.execute("SELECT lower(database_name) FROM duckdb_databases()").fetchall()
        name = "_source" if (self._name.lower(),) in taken else self._name
        connection.execute(f"ATTACH {literal(str(self._path))} AS {identifier(name)} (READ_ONLY)")
        found = connection.execute(
            "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = $1 UNION ALL "
            "SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = $1 AND NOT internal",
            [name],
        ).fetchall()
        if self._table not in found:
            raise SourceError(f"The database has no table or view {'.'.join(self._table)}. Names are case-sensitive.")
        return ".".join(map(identifier, (name, *self._table)))

    def explain(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> SourceError:
        """Return the problem of the file, or of a view in it."""
        reason = reason_for(str(error), _REASONS)
        if reason is None and isinstance(error, duckdb.CatalogException | duckdb.BinderException):
            reason = (
                f"the view {self._shown} references a table or column that does not exist; qualify each table in the "
                "view with its schema"
            )
        return SourceError(f"'{self._path.name}': {reason or f'the engine cannot read {self._shown}'}.")

    def confirm(self) -> None:
        """Refuse the load if the file was replaced."""
        if _identities(self._path) != self._before:
            raise SourceError(
                f"'{self._path.name}' changed while it was being read; the next refresh will read it again."
            )


def _identities(path: Path) -> list[Identity]:
    """Return the identities of the file and of its write-ahead log, if there is one."""
    found = []
    for part in (path, Path(f"{path}.wal")):
        try:
            found.append(Identity.of(part.stat()))
        except FileNotFoundError:
            if part == path:
                raise SourceError(f"'{path.name}' no longer exists.") from None
        except OSError as exc:
            raise SourceError(f"'{path.name}' cannot be read: {exc.strerror}.") from exc
    return found
