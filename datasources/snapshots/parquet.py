"""
Writes the rows of a snapshot to a Parquet file that a cluster can read.

A type that clusters do not support is written as another type that keeps all values. If there is no such type, or a
value does not fit, the export fails. Nothing is rounded.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import duckdb

from datasources.deadline import Deadline
from datasources.errors import SnapshotError
from datasources.loading.loading_engine import TOO_LARGE, lock_down, open_engine
from datasources.sql import identifier, literal
from queryengine.manifest import Snapshot, snapshot_path

#: The written type for each non-nested type, by DuckDB name. Other types are not supported.
_WRITTEN_AS: Final[Mapping[str, str]] = {
    **{
        name: name.upper()
        for name in (
            *("boolean", "tinyint", "smallint", "integer", "bigint", "float", "double"),
            *("varchar", "blob", "date", "timestamp", "timestamp with time zone"),
        )
    },
    "utinyint": "SMALLINT",
    "usmallint": "INTEGER",
    "uinteger": "BIGINT",
    "ubigint": "DECIMAL(20,0)",
    "hugeint": "DECIMAL(38,0)",
    "uhugeint": "DECIMAL(38,0)",
    "timestamp_s": "TIMESTAMP",
    "timestamp_ms": "TIMESTAMP",
    # Written as text, in DuckDB's format.
    **dict.fromkeys(("time", "time_ns", "time with time zone", "interval", "uuid", "enum", "bit"), "VARCHAR"),
}

#: The prefix of our own error messages, which the engine raises.
_OURS: Final = 'Column "'

#: Clusters do not support infinite dates. An infinite date would become a day in the far future.
_INFINITE = (
    "SELECT path_in_schema FROM parquet_metadata({}) WHERE type IN ('INT32', 'INT64') "
    "AND (stats_min LIKE '%infinity' OR stats_max LIKE '%infinity')"
)


def parquet_path(state_dir: Path, snapshot: Snapshot) -> Path:
    """Return the path of the Parquet file of *snapshot*. The file exists between the export and the upload."""
    source = snapshot_path(state_dir, snapshot)
    return source.with_name(f"{source.name}.parquet")  # Code that removes a snapshot also removes files next to it.


def export(state_dir: Path, snapshot: Snapshot, memory_limit_bytes: int, deadline: Deadline) -> None:
    """
    Write the rows of *snapshot* to its Parquet file, with at most *memory_limit_bytes* of memory and one thread.

    Raises:
        SnapshotError: The file cannot be written, a value or type has no equivalent on a cluster, or *deadline* has
            passed. No file is left.
    """
    target = parquet_path(state_dir, snapshot)
    try:
        _write(snapshot, snapshot_path(state_dir, snapshot), target, memory_limit_bytes, deadline)
        deadline.check()
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _write(snapshot: Snapshot, source: Path, target: Path, memory_limit_bytes: int, deadline: Deadline) -> None:
    limits: dict[str, str | bool] = {"memory_limit": f"{memory_limit_bytes}B", "temp_directory": ""}
    with closing(open_engine(limits)) as connection, deadline.guard(connection):
        try:
            lock_down(connection, allowed_directories=[str(source.parent)])
            connection.execute(f"ATTACH {literal(str(source))} AS _snapshot (READ_ONLY)")
            table = f"_snapshot.main.{identifier(snapshot.dataset)}"
            rows = connection.sql(f"FROM {table}")
            columns = [_expression(*column) for column in zip(rows.columns, rows.types, strict=True)]
            content = f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608 - quoted names
            copy = f"COPY ({content}) TO {literal(str(target))} (FORMAT parquet, COMPRESSION zstd)"
            written = connection.execute(copy).fetchone()
            infinite = connection.execute(_INFINITE.format(literal(str(target)))).fetchone()
        except duckdb.ConversionException as exc:
            raise SnapshotError(
                f"The data of {snapshot.dataset} has a whole number of more than 38 digits, which the cluster "
                "cannot hold: cast it in a refresh_sql."
            ) from exc
        except duckdb.OutOfMemoryException as exc:
            raise SnapshotError(TOO_LARGE) from exc
        except duckdb.Error as exc:
            deadline.check()
            reason = str(exc).removeprefix("Invalid Input Error: ")
            if reason.startswith(_OURS):
                raise SnapshotError(reason) from exc
            raise SnapshotError(f"The data of {snapshot.dataset} cannot be written for the cluster.") from exc
    if infinite is not None:
        column = str(infinite[0]).partition(",")[0]
        raise SnapshotError(f'Column "{column}" has infinite dates, which the cluster lacks: see refresh_sql.')
    if written is None or written[0] != snapshot.rows:
        raise SnapshotError(f"The rows of {snapshot.dataset} were not all written for the cluster.")


def _expression(name: str, kind: Any) -> str:
    """Return the SQL for a column in the file."""
    column = identifier(name)
    if kind.id == "timestamp_ns":
        reason = f'Column "{name}" has nanoseconds, which the cluster lacks: cast it to TIMESTAMP in a refresh_sql.'
        value = f"CASE WHEN epoch_ns({column}) % 1000 <> 0 THEN error({literal(reason)}) ELSE {column} END"
        return f"CAST({value} AS TIMESTAMP) AS {column}"
    written = _written_as(kind)
    if written is None:
        raise SnapshotError(f'Column "{name}" has the type {kind}, which the cluster lacks: cast it in a refresh_sql.')
    return f"CAST({column} AS {written}) AS {column}"


def _written_as(kind: Any) -> str | None:
    """Return the type that *kind* is written as; None if there is none."""
    if kind.id == "decimal":
        return str(kind)
    if kind.id not in {"list", "array", "struct", "map"}:
        return _WRITTEN_AS.get(kind.id)
    members = [(name, _written_as(member)) for name, member in kind.children if name != "size" or kind.id == "struct"]
    if any(written is None for _, written in members):
        return None
    if kind.id == "struct":
        return f"STRUCT({', '.join(f'{identifier(name)} {written}' for name, written in members)})"
    if kind.id == "map":
        return f"MAP({members[0][1]}, {members[1][1]})"
    return f"{members[0][1]}[]"
