"""Creates the indexes of a snapshot as declared in the configuration."""

from collections.abc import Iterator, Sequence

import duckdb

from datasources.errors import SourceError
from datasources.loading.columns import find_column
from datasources.sql import identifier
from queryengine.manifest import Column
from runtimeconf.model import DatasetConfig


def declared(dataset: DatasetConfig) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return the columns and kind (primary, unique, enabled) of each index of *dataset*; none without acceleration."""
    acceleration = dataset.acceleration
    if not acceleration.enabled:
        return ()
    primary = ((acceleration.primary_key, "primary"),) if acceleration.primary_key else ()
    return *primary, *((index.columns, "unique" if index.unique else "enabled") for index in acceleration.indexes)


def build(connection: duckdb.DuckDBPyConnection, table: str, columns: Sequence[Column], dataset: DatasetConfig) -> None:
    """
    Create the indexes of *dataset* on *table*, a quoted name, which has *columns*.

    Raises:
        SourceError: A column is missing or cannot be indexed, or its values violate a constraint.
    """
    for number, (names, kind) in enumerate(declared(dataset)):
        keys = ", ".join(_quoted(names, columns, dataset))
        try:
            if kind == "primary":
                connection.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({keys})")
            else:
                unique = "UNIQUE" if kind == "unique" else ""
                connection.execute(f"CREATE {unique} INDEX _index_{number} ON {table} ({keys})")
        except duckdb.ConstraintException as exc:
            raise refusal(dataset.name, names) from exc
        except duckdb.InvalidTypeException as exc:
            raise SourceError(
                f"The column {', '.join(names)} of {dataset.name} has a type that cannot be indexed."
            ) from exc


def merge(dataset: DatasetConfig, served: str, added: str, columns: Sequence[Column]) -> Iterator[str]:
    """
    Yield the statements that add the rows of the table *added* to *served*, according to `on_conflict`.

    Both arguments are quoted names of tables with the given *columns*.
    """
    acceleration = dataset.acceleration
    keys = _quoted(acceleration.primary_key, columns, dataset)
    same = " AND ".join(f"s.{key} = a.{key}" for key in keys)
    if acceleration.on_conflict == "upsert":
        yield f"DELETE FROM {served} AS s USING {added} AS a WHERE {same}"  # noqa: S608 - quoted by us
    left_out = f" AS a ANTI JOIN {served} AS s ON {same}" if acceleration.on_conflict == "drop" else ""
    yield f"INSERT INTO {served} FROM {added}{left_out}"


def _quoted(names: Sequence[str], columns: Sequence[Column], dataset: DatasetConfig) -> list[str]:
    found = {name: find_column(name, columns) for name in names}
    for name, column in found.items():
        if column is None:
            raise SourceError(f"The indexed column {name} of {dataset.name} does not exist.")
    return [identifier(column.name) for column in found.values() if column is not None]


def refusal(dataset: str, columns: Sequence[str] = ()) -> SourceError:
    """Return the error for values that violate the constraint on *columns*, or on unspecified columns."""
    which = f"the column {', '.join(columns)}" if columns else "a column with a unique index"
    return SourceError(f"Two rows of {dataset} have the same value in {which}, or one has none in the primary key.")
