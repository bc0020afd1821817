"""Turns an admitted statement into the text for one session, with the session's views and their columns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from cluster.gate.text import literal, quoted_name, with_markers_replaced
from queryengine.engine import GatedStatement
from queryengine.values import split_relation

#: The lists that a statement may read, with their columns.
LISTS: Final[Mapping[str, Sequence[str]]] = {
    "tables": ("table_catalog", "table_schema", "table_name", "table_type"),
    "columns": (
        *("table_catalog", "table_schema", "table_name", "column_name"),
        *("ordinal_position", "is_nullable", "data_type"),
    ),
    "schemata": ("catalog_name", "schema_name"),
    "shown_tables": ("namespace", "tableName", "isTemporary"),
    "shown_columns": ("col_name",),
    "described": ("col_name", "data_type", "comment"),
}

_Value = str | int | bool | None


class Relation(Struct, frozen=True, kw_only=True):
    """
    A configured dataset or view in one session. `view` is the temporary view with the version to read.

    `columns` are names and types in the cluster's terms. The name of the view does not begin with `_cte_`.
    """

    name: str
    view: str
    is_view: bool
    columns: tuple[tuple[str, str], ...]


def bound(statement: GatedStatement, relations: Mapping[str, Relation]) -> str:
    """
    Return the text of *statement* for a session with these *relations*, by lower-case name.

    *relations* must include all names that the statement reads or lists.
    """
    visible = [relations[name] for name in sorted(statement.catalog or ())]
    schemas = sorted({"main", *(split_relation(one.name)[0] for one in visible)})
    rows: dict[str, Callable[[str], Iterable[tuple[_Value, ...]]]] = {
        "tables": lambda _: (("runtime", *split_relation(one.name), _TYPES[one.is_view]) for one in visible),
        "columns": lambda _: (
            ("runtime", *split_relation(one.name), column, position, "YES", type_)
            for one in visible
            for position, (column, type_) in enumerate(one.columns, 1)
        ),
        "schemata": lambda _: (("runtime", schema) for schema in schemas),
        "shown_tables": lambda _: ((*split_relation(one.name), False) for one in visible),
        "shown_columns": lambda name: ((column,) for column, _ in relations[name].columns),
        "described": lambda name: ((column, type_, None) for column, type_ in relations[name].columns),
    }

    def replacement(kind: str, name: str) -> str:
        return quoted_name(relations[name].view) if kind == "relation" else _inline(LISTS[kind], rows[kind](name))

    return with_markers_replaced(statement.sql, replacement)


_TYPES: Final = {False: "BASE TABLE", True: "VIEW"}


def _inline(columns: Sequence[str], rows: Iterable[tuple[_Value, ...]]) -> str:
    """Return *rows* as a parenthesised query. Without rows, it has a row of NULLs that the query filters out."""
    values = ", ".join(f"({', '.join(map(_written, row))})" for row in [(None,) * len(columns), *rows])
    names = ", ".join(map(quoted_name, columns))
    source = f"VALUES {values} AS `_list`({names})"
    return f"(SELECT * FROM {source} WHERE {quoted_name(columns[0])} IS NOT NULL)"  # noqa: S608 - literals of ours


def _written(value: _Value) -> str:
    if isinstance(value, str):
        return literal(value)
    return "NULL" if value is None else str(value).upper()
