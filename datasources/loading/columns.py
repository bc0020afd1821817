"""Table columns: looking them up, limiting them, and detecting schema changes."""

from collections.abc import Sequence

import duckdb

from datasources.errors import SchemaChangedError, SourceError
from queryengine.gate.lexer import lower
from queryengine.manifest import Column, Snapshot

#: The maximum number of columns of a dataset. Each uses memory in every engine worker and is listed in the manifest.
MAX_COLUMNS = 10_000
#: The maximum total length of column names and types, in characters. A nested type can be long.
MAX_SCHEMA_LENGTH = 2_000_000


def columns_of(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[Column, ...]:
    """Return the columns of *table*, a quoted name or a SELECT, in order."""
    rows = connection.execute(f"DESCRIBE {table}").fetchall()
    return tuple(Column(name=row[0], type=row[1]) for row in rows)


def find_column(name: str, columns: Sequence[Column]) -> Column | None:
    """Return the column called *name*, ignoring case in all alphabets; None if there is none."""
    return next((column for column in columns if column.name.lower() == name.lower()), None)


def count_of(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    """Return the number of rows in *table*, a quoted name."""
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - a quoted name of the YAML
    return int(row[0]) if row else 0


def refuse_excess(dataset: str, columns: Sequence[Column]) -> None:
    """
    Refuse *columns* beyond the limits of a dataset.

    Raises:
        SourceError: There are too many columns, or their names and types are too long.
    """
    if len(columns) > MAX_COLUMNS:
        raise SourceError(
            f"The source of {dataset} has {len(columns)} columns: a dataset can have at most {MAX_COLUMNS}."
        )
    length = sum(len(column.name) + len(column.type) for column in columns)
    if length > MAX_SCHEMA_LENGTH:
        raise SourceError(
            f"The names and types of the columns of {dataset} have {length} characters: a dataset has at most "
            f"{MAX_SCHEMA_LENGTH}."
        )


def retyped(former: Snapshot | None, origin: str, columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return `Snapshot.retyped` for the new *columns* of a snapshot with this *origin*, which replaces *former*."""
    if former is None or former.origin != origin:
        return ()
    first = {lower(column.name): column.type for column in (*former.columns, *former.retyped)}
    new = {lower(column.name): column.type for column in columns}
    changed = (Column(name=name, type=type_) for name, type_ in first.items() if new.get(name) != type_)
    return tuple(changed)[:MAX_COLUMNS]


def refuse_changes(dataset: str, served: Sequence[Column], new: Sequence[Column]) -> None:
    """
    Refuse the *new* columns of *dataset* if their names, order or types differ from the *served* columns.

    Raises:
        SchemaChangedError: They differ. The message names the first differences.
    """
    if tuple(served) == tuple(new):
        return
    old_types = {column.name: column.type for column in served}
    new_types = {column.name: column.type for column in new}
    differences = [f"{name} is gone" for name in old_types if name not in new_types]
    differences += [f"{name} is new" for name in new_types if name not in old_types]
    differences += [
        f"{name} is {new_types[name]:.80} instead of {kind:.80}"
        for name, kind in old_types.items()
        if new_types.get(name, kind) != kind
    ]
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    what = ", ".join(differences[:3]) or "they are in a different order"
    raise SchemaChangedError(
        f"The columns of {dataset} changed ({what}{more}) and on_schema_change is fail: "
        "the previously loaded data stays in place. To use the new columns, set on_schema_change to accept."
    )
