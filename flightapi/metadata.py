"""
Answers to Flight SQL's metadata commands, as Arrow tables with the schemas of the format (`FlightSql.proto`).

There is one catalog with one schema, and in it the datasets (TABLE) and views (VIEW) of the YAML, by their declared
names. SQL finds these in any case, and so do the patterns here.
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

#: Escapes the wildcards of a pattern; GetSqlInfo says so.
PATTERN_ESCAPE: Final = "\\"

#: Keys of a field's metadata in the Arrow schema of a table.
_PRECISION: Final = b"ARROW:FLIGHT:SQL:PRECISION"
_SCALE: Final = b"ARROW:FLIGHT:SQL:SCALE"


@dataclass(frozen=True, slots=True)
class Relation:
    """A declared dataset or view, by the name in the YAML."""

    name: str
    kind: Literal["TABLE", "VIEW"]


#: Gives the Arrow schemas of the relations of these names. One that it leaves out is shown without columns.
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
    """Return the schema of the answer to *plan*: known before there is an answer."""
    match plan:
        case GetTables():
            return _TABLES_WITH_SCHEMA if plan.include_schema else _TABLES
        case GetKeys():
            return _PRIMARY_KEYS if plan.kind == "primary" else _FOREIGN_KEYS
    return _SCHEMAS[type(plan)]


def answer(plan: Metadata, relations: Iterable[Relation], table_schemas: TableSchemas, facts: ServerFacts) -> pa.Table:
    """
    Return the answer to *plan*, in the order of the format.

    *table_schemas* is called at most once, and only when schemas are asked for. What it raises passes through.
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
            shown = _is_here(plan.catalog, plan.schema_pattern)
            return [{"catalog_name": CATALOG, "db_schema_name": SCHEMA}] if shown else []
        case GetTableTypes():
            return [{"table_type": "TABLE"}, {"table_type": "VIEW"}]
    return []  # There are no keys: nothing here could see to it that they hold.


def _tables(plan: GetTables, relations: Iterable[Relation], table_schemas: TableSchemas) -> list[dict[str, object]]:
    if not _is_here(plan.catalog, plan.schema_pattern):
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
            row["table_schema"] = encapsulated(_told(schemas.get(relation.name, pa.schema([]))))
    return rows


def _told(schema: pa.Schema) -> pa.Schema:
    """Return *schema* with what the type of a field does not tell every client: the digits of decimals."""
    return pa.schema([_told_field(field) for field in schema], metadata=schema.metadata)


def _told_field(field: pa.Field) -> pa.Field:
    if not pa.types.is_decimal(field.type):
        return field
    digits = {_PRECISION: str(field.type.precision).encode(), _SCALE: str(field.type.scale).encode()}
    return field.with_metadata({**(field.metadata or {}), **digits})


def _is_here(catalog: str | None, schema_pattern: str | None) -> bool:
    """Whether the one catalog and schema are asked for. An empty name asks for what has none."""
    return (catalog is None or catalog.casefold() == CATALOG) and _matcher(schema_pattern)(SCHEMA)


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return what says whether a name is LIKE *pattern*, in any case; None is every name."""
    if pattern is None:
        return lambda _: True
    parts = _parts(pattern.casefold())
    return lambda name: _is_like(name.casefold(), parts)


#: What `%` and `_` are once they are read.
_ANY_TEXT: Final = 0
_ANY_CHARACTER: Final = 1


def _parts(pattern: str) -> list[str | int]:
    """Read a pattern: a character, or one of the wildcards. Neighbouring `%` are one."""
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
    Match from the left, and go back to the last `%` only.

    No pattern takes longer than its length times that of the name, which a regular expression could not promise.
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
