"""
`duckdb:` sources: a table or view of a DuckDB database file, which the loading engine attaches to read only.

The engine may open that file and its write-ahead log, and nothing else: a view in it that reads another file is
refused. It holds the file's shared lock while it reads, so no program can write to the file meanwhile, and the load
fails while a program has it open for writing.
"""

from __future__ import annotations

import hashlib
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from datasources.errors import SourceError
from datasources.sources.formats import Identity
from datasources.sources.source import Load
from datasources.sql import identifier, literal
from runtimeconf.connectors.tables import table_parts
from runtimeconf.model import DatasetConfig

#: A file that was written to this short a time ago (seconds) may be written to again under the same time.
_SETTLED_S = 0.05

_DEFAULT_SCHEMA = "main"

#: What the file is called in the loading engine where its own name is taken there.
_OTHER_NAME = "_source"

_REASONS = (
    ("Could not set lock", "another program has it open for writing; the next refresh reads it again"),
    ("version number", "it was written by another version of DuckDB, whose files this engine does not read"),
    ("not a valid DuckDB database", "it is not a DuckDB database"),
    ("encrypted", "it is encrypted"),
    ("Corrupt|checksum|Could not read enough bytes|WAL|deserializ", "it is damaged, or was cut short"),
    ("file system operations are disabled|disabled by configuration", "its view reads another file, which is refused"),
    ("Extension|extension", "it needs an extension of DuckDB, which is not there"),
)


class DuckdbFileSource:
    """One table or view of a database file."""

    def __init__(self, dataset: DatasetConfig) -> None:
        parts = table_parts(dataset.location)
        self._database = parts[0] if len(parts) > 2 else None
        self._schema, self._table = parts[-2] if len(parts) > 1 else _DEFAULT_SCHEMA, parts[-1]
        self._shown = dataset.location
        self._path = Path(dataset.params["duckdb_open"])

    @contextmanager
    def open(self, load: Load) -> Iterator[DuckdbFileScan]:
        """Look at the file, as `Source.open` promises."""
        load.deadline.check()
        # Only the file itself: the engine follows links before it compares a path with those that it may open.
        path = Path(self._resolved())
        if self._database not in {None, path.stem, self._path.stem}:
            raise SourceError(f"The database in '{self._path.name}' is called {self._path.stem}, not {self._database}.")
        yield DuckdbFileScan(path, self._path.stem, (self._schema, self._table), self._shown)

    def has_changed(self, version: str, load: Load) -> bool:
        """Compare what the system says about the file and its write-ahead log with what it said."""
        load.deadline.check()
        return _version(Path(self._resolved())) != version

    def _resolved(self) -> str:
        try:
            info = self._path.stat()
            resolved = str(self._path.resolve(strict=True))
        except OSError as exc:
            raise SourceError(f"'{self._path.name}' cannot be read: {exc.strerror}.") from exc
        if not stat.S_ISREG(info.st_mode):
            raise SourceError(f"'{self._path.name}' is not a regular file.")
        return resolved


class DuckdbFileScan:
    """A database file that the loading engine reads by itself; `Scan` says what the methods promise."""

    is_read_once = False
    held_bytes = 0

    def __init__(self, path: Path, name: str, table: tuple[str, str], shown: str) -> None:
        self._path = path
        self._name = name
        self._schema, self._table = table
        self._shown = shown
        self._before = _identities(path)
        self.version = _version(path)

    @property
    def paths(self) -> tuple[str, ...]:
        """The file and its write-ahead log, which may not be there."""
        return str(self._path), f"{self._path}.wal"

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Attach the file under its own name, which its views may use."""
        taken = connection.execute("SELECT lower(database_name) FROM duckdb_databases()").fetchall()
        name = _OTHER_NAME if (self._name.lower(),) in taken else self._name
        connection.execute(f"ATTACH {literal(str(self._path))} AS {identifier(name)} (READ_ONLY)")
        found = connection.execute(
            "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = $1 UNION ALL "
            "SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = $1 AND NOT internal",
            [name],
        ).fetchall()
        if (self._schema, self._table) not in found:
            raise SourceError(
                f"The database has no table or view {self._schema}.{self._table}. "
                "A name is taken as it is written, capital letters too."
            )
        return ".".join(map(identifier, (name, self._schema, self._table)))

    def accept(self, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
        """Take them: they are those of a table of the same engine."""

    def explain(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> SourceError:
        """Say what is wrong with the file, or with the view in it."""
        text = str(error)
        reason = next((reason for words, reason in _REASONS if re.search(words, text)), None)
        if reason is None and isinstance(error, duckdb.CatalogException | duckdb.BinderException):
            reason = f"the view {self._shown} names what is not there; in it, write a schema before each table"
        return SourceError(f"'{self._path.name}': {reason or f'the engine cannot read {self._shown}'}.")

    def confirm(self) -> None:
        """Compare the file with what it was: another may have been put in its place."""
        if _identities(self._path) != self._before:
            raise SourceError(f"'{self._path.name}' changed while it was read; the next refresh reads it again.")


def _identities(path: Path) -> list[Identity]:
    """Return which file it is, and which write-ahead log it has, in which version."""
    found = []
    for part in (path, Path(f"{path}.wal")):
        try:
            found.append(Identity.of(part.stat()))
        except FileNotFoundError:
            if part == path:
                raise SourceError(f"'{path.name}' is not there any more.") from None
        except OSError as exc:
            raise SourceError(f"'{path.name}' cannot be read: {exc.strerror}.") from exc
    return found


def _version(path: Path) -> str | None:
    """Return what tells one version of the file from another; None while it may change without a trace."""
    identities = _identities(path)
    now_ns = time.time_ns()
    if any(0 <= now_ns - identity.modified_ns < _SETTLED_S * 1e9 for identity in identities):
        return None
    return hashlib.sha256(repr([tuple(identity) for identity in identities]).encode()).hexdigest()
