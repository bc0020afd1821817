"""
Returns the results of Flight SQL metadata commands as Arrow tables with the schemas of `FlightSql.proto`.

One catalog contains the datasets (TABLE) and views (VIEW) under their YAML names. They are in the schema `main`, or in
the schema before the dot in the name. As in SQL, patterns match names case-insensitively.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import pyarrow as pa
from msgspec import Struct

from flightapi import sql_info, xdbc_types
from flightapi.commands import CATALOG, SCHEMA
from queryengine.values import split_relation
from runtimeconf.model import Documentation

#: Keys of a field's metadata in the Arrow schema of a table.
_TYPE_NAME: Final = b"ARROW:FLIGHT:SQL:TYPE_NAME"
_PRECISION: Final = b"ARROW:FLIGHT:SQL:PRECISION"
_SCALE: Final = b"ARROW:FLIGHT:SQL:SCALE"
_REMARKS: Final = b"ARROW:FLIGHT:SQL:REMARKS"

_NO_DOCUMENTATION: Final = Documentation()


class Relation(Struct, frozen=True):
    """A dataset or view with its YAML name and description."""

    name: str
    kind: Literal["TABLE", "VIEW"]
    documentation: Documentation = _NO_DOCUMENTATION

    @property
    def schema(self) -> str:
        """The schema that contains the relation."""
        return split_relation(self.name)[0]

    @property
    def table(self) -> str:
        """The name within the schema."""
        return split_relation(self.name)[1]


#: Returns the Arrow schemas of relations by name. A relation that it leaves out is listed without columns.
TableSchemas = Callable[[Sequence[str]], Mapping[str, pa.Schema]]


def _optional(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.string()) for name in names]


def _required(*names: str, kind: pa.DataType | None = None) -> list[pa.Field]:
    return [pa.field(name, kind or pa.string(), nullable=False) for name in names]


_TABLES: Final = pa.schema(_optional("catalog_name", "db_schema_name") + _required("table_name", "table_type"))
_TABLES_WITH_SCHEMA: Final = pa.schema([*_TABLES, *_required("table_schema", kind=pa.binary())])
_FOREIGN_KEYS: Final = pa.schema(
    [
        *_optional("pk_catalog_name", "pk_db_schema_name"),
        *_required("pk_table_name", "pk_column_name"),
        *_optional("fk_catalog_name", "fk_db_schema_name"),
        *_required("fk_table_name", "fk_column_name"),
        *_required("key_sequence", kind=pa.int32()),
        *_optional("fk_key_name", "pk_key_name"),
        *_required("update_rule", "delete_rule", kind=pa.uint8()),
    ]
)
_SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "CommandGetCatalogs": pa.schema(_required("catalog_name")),
    "CommandGetDbSchemas": pa.schema(_optional("catalog_name") + _required("db_schema_name")),
    "CommandGetTables": _TABLES,
    "CommandGetTableTypes": pa.schema(_required("table_type")),
    "CommandGetPrimaryKeys": pa.schema(
        [
            *_optional("catalog_name", "db_schema_name"),
            *_required("table_name", "column_name"),
            *_optional("key_name"),
            *_required("key_sequence", kind=pa.int32()),
        ]
    ),
    "CommandGetExportedKeys": _FOREIGN_KEYS,
    "CommandGetImportedKeys": _FOREIGN_KEYS,
    "CommandGetCrossReference": _FOREIGN_KEYS,
    "CommandGetSqlInfo": sql_info.ANSWER,
    "CommandGetXdbcTypeInfo": xdbc_types.ANSWER,
}


def answer_schema(command: Any) -> pa.Schema:
    """Return the schema of a metadata command's result, without computing the result."""
    name = command.DESCRIPTOR.name
    return _TABLES_WITH_SCHEMA if name == "CommandGetTables" and command.include_schema else _SCHEMAS[name]


def answer(
    command: Any, relations: Iterable[Relation], table_schemas: TableSchemas, max_statement_bytes: int
) -> pa.Table:
    """
    Return the result of a metadata command, in the order that the protocol defines.

    *table_schemas* is called at most once, and only if schemas are requested. Its errors propagate.
    *max_statement_bytes* is the maximum statement length that GetSqlInfo reports.
    """
    rows: list[dict[str, object]] = []  # No rows for the key commands: keys are not enforced.
    match command.DESCRIPTOR.name:
        case "CommandGetSqlInfo":
            return sql_info.answer(command.info, max_statement_bytes)
        case "CommandGetXdbcTypeInfo":
            return xdbc_types.answer(command.data_type if command.HasField("data_type") else None)
        case "CommandGetCatalogs":
            rows = [{"catalog_name": CATALOG}]
        case "CommandGetDbSchemas":
            schemas = sorted({SCHEMA, *(relation.schema for relation in relations)})
            rows = [{"catalog_name": CATALOG, "db_schema_name": name} for name in schemas if _selects(command, name)]
        case "CommandGetTableTypes":
            rows = [{"table_type": "TABLE"}, {"table_type": "VIEW"}]
        case "CommandGetTables":
            rows = _tables(command, relations, table_schemas)
    return pa.Table.from_pylist(rows, schema=answer_schema(command))


def _tables(command: Any, relations: Iterable[Relation], table_schemas: TableSchemas) -> list[dict[str, object]]:
    is_named = _matcher(command, "table_name_filter_pattern")
    kinds = {kind.upper() for kind in command.table_types} or {"TABLE", "VIEW"}
    found = sorted(
        (
            relation
            for relation in relations
            if relation.kind in kinds and is_named(relation.table) and _selects(command, relation.schema)
        ),
        key=lambda relation: (relation.schema, relation.table, relation.kind),
    )
    rows: list[dict[str, object]] = [
        {
            "catalog_name": CATALOG,
            "db_schema_name": relation.schema,
            "table_name": relation.table,
            "table_type": relation.kind,
        }
        for relation in found
    ]
    if command.include_schema and found:
        schemas = table_schemas([relation.name for relation in found])
        for row, relation in zip(rows, found, strict=True):
            schema = _documented(schemas.get(relation.name, pa.schema([])), relation.documentation)
            row["table_schema"] = schema.serialize().to_pybytes()
    return rows


def _documented(schema: pa.Schema, documentation: Documentation) -> pa.Schema:
    """Add descriptions to the metadata of the schema and fields, and type names to the fields."""
    remarks = {column.lower(): description for column, description in documentation.columns.items()}
    for position, field in enumerate(schema):
        more = {_TYPE_NAME: xdbc_types.type_name(field.type).encode()}
        if pa.types.is_decimal(field.type):
            more |= {_PRECISION: str(field.type.precision).encode(), _SCALE: str(field.type.scale).encode()}
        if (remark := remarks.get(field.name.lower())) is not None:
            more[_REMARKS] = remark.encode()
        schema = schema.set(position, field.with_metadata({**(field.metadata or {}), **more}))
    described = {} if documentation.description is None else {"description": documentation.description}
    if not described and not documentation.metadata:
        return schema
    return schema.with_metadata({**(schema.metadata or {}), **documentation.metadata, **described})


def _selects(command: Any, schema: str) -> bool:
    """Return whether a command selects the only catalog and *schema*. An empty catalog selects schemas without one."""
    selects_catalog = not command.HasField("catalog") or command.catalog.casefold() == CATALOG
    return selects_catalog and _matcher(command, "db_schema_filter_pattern")(schema)


def _matcher(command: Any, field: str) -> Callable[[str], bool]:
    """Return a predicate that matches names with the LIKE pattern in *field*, ignoring case. No pattern matches all."""
    if not command.HasField(field):
        return lambda _: True
    texts: list[list[str | None]] = [[]]  # The characters between any two `%`; None means `_`.
    for part in re.findall(r"\\.|.", getattr(command, field).casefold(), re.DOTALL):
        if part == "%":
            if texts[-1] or len(texts) == 1:  # Several `%` in a row are equivalent to one.
                texts.append([])
        else:
            texts[-1].append(None if part == "_" else part[-1])
    return lambda name: _is_like(name.casefold(), texts)


def _is_like(name: str, texts: Sequence[Sequence[str | None]]) -> bool:
    """
    Search for each text at its first occurrence after the previous text.

    The time is bounded by the pattern length times the name length, which `re` does not guarantee.
    """

    def is_at(place: int, text: Sequence[str | None]) -> bool:
        found = name[place : place + len(text)]
        return len(found) == len(text) and all(part in (None, one) for part, one in zip(text, found, strict=True))

    first, *others = texts
    if not others or not is_at(0, first):
        return len(first) == len(name) and is_at(0, first)
    *between, last = others
    place = len(first)
    for text in between:
        while place < len(name) and not is_at(place, text):
            place += 1
        if place >= len(name):
            return False
        place += len(text)
    return place <= len(name) - len(last) and is_at(len(name) - len(last), last)
