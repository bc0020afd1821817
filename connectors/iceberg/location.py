"""
Finds an Iceberg table and its newest metadata file.

A catalog names the metadata file. This is a SQL catalog in a SQLite file, for which Iceberg's JDBC catalog and
pyiceberg's SQL catalog use the same table. Without a catalog, the metadata file is the file in `from:`, or the highest
version in the table's directory. This module reads the catalog itself because pyiceberg would need SQLAlchemy for one
SELECT.
"""

import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from msgspec.structs import replace

from connectors.iceberg.params import IcebergParams
from connectors.lake import TableRoot, inside
from connectors.lake_storage import root_of
from datasources.deadline import Deadline
from datasources.errors import SourceError
from runtimeconf.model import DatasetConfig

_DIRECTORY = "metadata"

#: Metadata file names begin with a number if the table has a catalog, otherwise with v and a number.
_VERSION = re.compile(r"(?:v(\d{1,18})|(\d{1,18})-[^/]+?)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_METADATA_FILE = re.compile(r"(.+)/metadata/([^/]+\.metadata\.json(?:\.gz)?)")

#: The longest wait for another program's lock on the catalog (seconds).
_LOCK_S = 5.0
#: Steps of SQLite's virtual machine between two deadline checks (a few milliseconds).
_STEPS = 100_000

#: SQLite's result codes for a file that another program is writing to.
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_NO_CATALOG = "damaged, or no SQL catalog of Iceberg"

_LOOKUP = """
SELECT metadata_location FROM iceberg_tables
WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?
LIMIT 1
"""


@contextmanager
def newest(dataset: DatasetConfig, params: IcebergParams, deadline: Deadline) -> Iterator[tuple[TableRoot, str]]:
    """
    Open the table's root, and yield it with the path of the newest metadata file in it.

    Raises:
        SourceError: The table does not exist or is outside the location in `from:`, or the catalog cannot be read.
    """
    catalog = params.iceberg_catalog
    named = None if catalog is not None else _METADATA_FILE.fullmatch(dataset.location)
    with root_of(replace(dataset, location=named[1]) if named else dataset, params, deadline) as root:
        if catalog is not None:
            yield _by_catalog(root, catalog, params, deadline)
        else:
            yield root, f"{_DIRECTORY}/{named[2]}" if named else _highest(root)


def _highest(root: TableRoot) -> str:
    versions: dict[int, list[str]] = {}
    for name in root.names(_DIRECTORY):
        if (match := _VERSION.fullmatch(name)) is not None:
            versions.setdefault(int(match[1] or match[2]), []).append(name)
    if not versions:
        raise SourceError(f"'{root.shown}' is not an Iceberg table: it has no metadata files.")
    newest, names = max(versions.items())
    if len(names) > 1:
        raise SourceError(
            f"'{root.shown}' has {len(names)} metadata files of version {newest}: only its catalog knows which one is "
            "current."
        )
    return f"{_DIRECTORY}/{names[0]}"


def _by_catalog(root: TableRoot, catalog: Path, params: IcebergParams, deadline: Deadline) -> tuple[TableRoot, str]:
    table = str(params.iceberg_table)
    location = _looked_up(catalog, table, params.iceberg_catalog_name or "default", deadline)
    if location is None:
        raise SourceError(f"The catalog has no table '{table}'.")
    path = root.relative(location)
    match = _METADATA_FILE.fullmatch(inside(path) or "") if path is not None else None
    if match is None:
        raise SourceError(
            f"The catalog says that '{table}' is outside '{root.shown}', or does not name its metadata file."
        )
    return root.below(match[1]), f"{_DIRECTORY}/{match[2]}"


def _looked_up(path: Path, table: str, catalog_name: str, deadline: Deadline) -> str | None:
    """Return the location of the metadata file in the catalog; None if the catalog has no such table."""
    namespace, _, name = table.rpartition(".")
    key = (catalog_name, namespace, name)
    try:
        # Check before opening, because opening a pipe would wait for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise SourceError("The file in iceberg_catalog is not a regular file.")
        timeout_s = max(0.0, min(_LOCK_S, deadline.left_s))
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=timeout_s)) as connection:
            connection.execute("PRAGMA trusted_schema = off")
            # Whoever wrote the file may have made the table a view whose query never ends.
            connection.set_progress_handler(lambda: deadline.passed, _STEPS)
            row = connection.execute(_LOOKUP, key).fetchone()
    except OSError as exc:
        raise SourceError(f"The file in iceberg_catalog cannot be read: {exc.strerror}.") from None
    except sqlite3.Error as exc:
        deadline.check()
        # The lowest byte of an extended code is the primary code.
        is_locked = getattr(exc, "sqlite_errorcode", 0) & 0xFF in _LOCKED
        reason = "locked by another program; the next refresh will retry" if is_locked else _NO_CATALOG
        raise SourceError(f"The file in iceberg_catalog is {reason}.") from None
    if row is None:
        return None
    if not isinstance(row[0], str):
        raise SourceError("The catalog does not name a metadata file for the table.")
    return row[0]
