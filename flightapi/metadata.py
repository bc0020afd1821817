"""
Answers Flight SQL's metadata commands, as Arrow tables with the schemas of the protocol (`FlightSql.proto`).

One catalog has one schema, which holds the datasets (TABLE) and views (VIEW) under their names in the YAML. As in SQL,
patterns match names in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from flightapi import sql_info, xdbc_types
from flightapi.commands import (
    CATALOG,
    SCHEMA,
    GetCatalogs,
    GetDbSchemas,
    GetKeys,
    GetSqlInfo,
    GetTables,
    GetTableTypes,
    GetXdbcTypeInfo,
    Metadata,
)
from flightapi.protocol.schemas import encapsulated
from flightapi.sql_info import ServerFacts

__all__ = ["CATALOG", "SCHEMA", "Relation", "ServerFacts", "TableSchemas", "answer", "answer_schema"]

#: Escapes the wildcards of a pattern, as GetSqlInfo reports.
PATTERN_ESCAPE: Final = "\\"

#: Keys of a field's metadata in the Arrow schema of a table.
_PRECISION: Final = b"ARROW:FLIGHT:SQL:PRECISION"
_SCALE: Final = b"ARROW:FLIGHT:SQL:SCALE"


@dataclass(frozen=True, slots=True)
class Relation:
    """A dataset or view with its name in the YAML."""

    name: str
    kind: Literal["TABLE", "VIEW"]


#: Returns the Arrow schemas of relations by name. A relation that it leaves out is listed without columns.
TableSchemas = Callable[[Sequence[str]], Mapping[str, pa.Schema]]


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_TEXT: Final = pa.string()
_CATALOGS: Final = pa.schema([_required("catalog_name", _TEXT)])
_DB_SCHEMAS: Final = pa.schema([pa.field("catalog_name", _TEXT), _required("db_schema_name", _TEXT)])
_TABLES: Final = pa.schema(
    [
        pa.field("catalog_name", _TEXT),
        pa.field("db_schema_name", _TEXT),
        _required("table_name", _TEXT),
        _required("table_type", _TEXT),
    ]
)
_TABLES_WITH_SCHEMA: Final = _TABLES.append(_required("table_schema", pa.binary()))
_TABLE_TYPES: Final = pa.schema([_required("table_type", _TEXT)])
_PRIMARY_KEYS: Final = pa.schema(
    [
        pa.field("catalog_name", _TEXT),
        pa.field("db_schema_name", _TEXT),
        _required("table_name", _TEXT),
        _required("column_name", _TEXT),
        pa.field("key_name", _TEXT),
        _required("key_sequence", pa.int32()),
    ]
)
_FOREIGN_KEYS: Final = pa.schema(
    [
        pa.field("pk_catalog_name", _TEXT),
        pa.field("pk_db_schema_name", _TEXT),
        _required("pk_table_name", _TEXT),
        _required("pk_column_name", _TEXT),
        pa.field("fk_catalog_name", _TEXT),
        pa.field("fk_db_schema_name", _TEXT),
        _required("fk_table_name", _TEXT),
        _required("fk_column_name", _TEXT),
        _required("key_sequence", pa.int32()),
        pa.field("fk_key_name", _TEXT),
        pa.field("pk_key_name", _TEXT),
        _required("update_rule", pa.uint8()),
        _required("delete_rule", pa.uint8()),
    ]
)


def answer_schema(plan: Metadata) -> pa.Schema:
    """Return the schema of the answer to *plan*, without computing the answer."""
    match plan:
        case GetTables():
            return _TABLES_WITH_SCHEMA if plan.include_schema else _TABLES
        case GetKeys():
            return _PRIMARY_KEYS if plan.kind == "primary" else _FOREIGN_KEYS
    return _SCHEMAS[type(plan)]


def answer(plan: Metadata, relations: Iterable[Relation], table_schemas: TableSchemas, facts: ServerFacts) -> pa.Table:
    """
    Return the answer to *plan*, in the order of the protocol.

    *table_schemas* is called at most once, and only if schemas are requested. Its errors propagate.
    """
    match plan:
        case GetSqlInfo():
            return sql_info.answer(plan.ids, facts)
        case GetXdbcTypeInfo():
            return xdbc_types.answer(plan.data_type)
        case GetTables():
            rows = _tables(plan, relations, table_schemas)
        case _:
            rows = _names(plan)
    return pa.Table.from_pylist(rows, schema=answer_schema(plan))


_SCHEMAS: Final[Mapping[type, pa.Schema]] = {
    GetCatalogs: _CATALOGS,
    GetDbSchemas: _DB_SCHEMAS,
    GetTableTypes: _TABLE_TYPES,
    GetSqlInfo: sql_info.ANSWER,
    GetXdbcTypeInfo: xdbc_types.ANSWER,
}


def _names(plan: GetCatalogs | GetDbSchemas | GetTableTypes | GetKeys) -> list[dict[str, object]]:
    match plan:
        case GetCatalogs():
            return [{"catalog_name": CATALOG}]
        case GetDbSchemas():
            matches = _selects_schema(plan.catalog, plan.schema_pattern)
            return [{"catalog_name": CATALOG, "db_schema_name": SCHEMA}] if matches else []
        case GetTableTypes():
            return [{"table_type": "TABLE"}, {"table_type": "VIEW"}]
    return []  # no keys: the runtime does not enforce any


def _tables(plan: GetTables, relations: Iterable[Relation], table_schemas: TableSchemas) -> list[dict[str, object]]:
    if not _selects_schema(plan.catalog, plan.schema_pattern):
        return []
    is_named = _matcher(plan.table_pattern)
    kinds = {kind.upper() for kind in plan.table_types} or {"TABLE", "VIEW"}
    found = sorted(
        (relation for relation in relations if relation.kind in kinds and is_named(relation.name)),
        key=lambda relation: (relation.name, relation.kind),
    )
    rows: list[dict[str, object]] = [
        {
            "catalog_name": CATALOG,
            "db_schema_name": SCHEMA,
            "table_name": relation.name,
            "table_type": relation.kind,
        }
        for relation in found
    ]
    if plan.include_schema and found:
        schemas = table_schemas([relation.name for relation in found])
        for row, relation in zip(rows, found, strict=True):
            row["table_schema"] = encapsulated(_with_decimal_digits(schemas.get(relation.name, pa.schema([]))))
    return rows


def _with_decimal_digits(schema: pa.Schema) -> pa.Schema:
    """Add the precision and scale of decimals to the field metadata, where some clients look for them."""
    return pa.schema([_with_digits(field) for field in schema], metadata=schema.metadata)


def _with_digits(field: pa.Field) -> pa.Field:
    if not pa.types.is_decimal(field.type):
        return field
    digits = {_PRECISION: str(field.type.precision).encode(), _SCALE: str(field.type.scale).encode()}
    return field.with_metadata({**(field.metadata or {}), **digits})


def _selects_schema(catalog: str | None, schema_pattern: str | None) -> bool:
    """Return whether the filter selects the one catalog and schema. An empty catalog selects schemas without one."""
    return (catalog is None or catalog.casefold() == CATALOG) and _matcher(schema_pattern)(SCHEMA)


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that tells whether a name is LIKE *pattern*, in any case; None matches every name."""
    if pattern is None:
        return lambda _: True
    parts = _parts(pattern.casefold())
    return lambda name: _is_like(name.casefold(), parts)


#: The wildcards `%` and `_` in a parsed pattern.
_ANY_TEXT: Final = 0
_ANY_CHARACTER: Final = 1


def _parts(pattern: str) -> list[str | int]:
    """Parse a pattern into characters and wildcards; adjacent `%` are merged."""
    parts: list[str | int] = []
    characters = iter(pattern)
    for character in characters:
        if character == PATTERN_ESCAPE:
            parts.append(next(characters, PATTERN_ESCAPE))
        elif character == "_":
            parts.append(_ANY_CHARACTER)
        elif character != "%":
            parts.append(character)
        elif not parts or parts[-1] != _ANY_TEXT:
            parts.append(_ANY_TEXT)
    return parts


def _is_like(name: str, parts: Sequence[str | int]) -> bool:
    """
    Match from the left, and backtrack to the last `%` only.

    The time is bounded by the length of the pattern times that of the name, which `re` does not guarantee.
    """
    at = part = 0
    resume: tuple[int, int] | None = None
    while at < len(name):
        if part < len(parts) and parts[part] == _ANY_TEXT:
            part += 1
            resume = part, at
        elif part < len(parts) and parts[part] in (_ANY_CHARACTER, name[at]):
            part += 1
            at += 1
        elif resume is None:
            return False
        else:
            part, at = resume[0], resume[1] + 1
            resume = part, at
    return all(rest == _ANY_TEXT for rest in parts[part:])
