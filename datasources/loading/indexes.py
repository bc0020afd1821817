"""The indexes of a snapshot, as the YAML declares them."""

from collections.abc import Sequence

import duckdb

from datasources.errors import SourceError
from datasources.loading.columns import find_column
from datasources.sql import identifier
from queryengine.manifest import Column
from runtimeconf.model import DatasetConfig


def declared(dataset: DatasetConfig) -> tuple[tuple[str, str], ...]:
    """Return column and kind (primary, unique, enabled) of each index of *dataset*; none if its acceleration is off."""
    acceleration = dataset.acceleration
    if not acceleration.enabled:
        return ()
    primary = () if acceleration.primary_key is None else ((acceleration.primary_key, "primary"),)
    return *primary, *((index.column, "unique" if index.unique else "enabled") for index in acceleration.indexes)


def build(connection: duckdb.DuckDBPyConnection, table: str, columns: Sequence[Column], dataset: DatasetConfig) -> None:
    """
    Create the indexes of *dataset* on *table*, which is quoted and has *columns*.

    Raises:
        SourceError: A column is missing or cannot have an index, or its values violate a constraint.
    """
    for number, (name, kind) in enumerate(declared(dataset)):
        found = find_column(name, columns)
        if found is None:
            raise SourceError(f"The indexed column {name} of {dataset.name} does not exist.")
        column = identifier(found.name)
        try:
            if kind == "primary":
                connection.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({column})")
            else:
                unique = "UNIQUE" if kind == "unique" else ""
                connection.execute(f"CREATE {unique} INDEX _index_{number} ON {table} ({column})")
        except duckdb.ConstraintException as exc:
            raise refusal(dataset.name, name) from exc
        except duckdb.InvalidTypeException as exc:
            raise SourceError(f"The column {name} of {dataset.name} has a type that cannot be indexed.") from exc


def refusal(dataset: str, column: str = "") -> SourceError:
    """Return the error for values that violate the constraint on *column*, or on any of the columns."""
    which = f"the column {column}" if column else "a column with a unique index"
    return SourceError(f"Two rows of {dataset} have the same value in {which}, or one has none in the primary key.")
