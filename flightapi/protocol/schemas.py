"""Serialises Arrow schemas for Flight: as one encapsulated message (Arrow columnar format, "IPC Streaming Format")."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa


def encapsulated(schema: pa.Schema) -> bytes:
    """
    Return *schema* as an encapsulated IPC message.

    FlightInfo.schema, SchemaResult.schema, GetTables' table_schema and the schemas of a prepared statement have this
    form.
    """
    return bytes(schema.serialize())


def parameter_schema(names: Collection[str]) -> pa.Schema | None:
    """
    Return the schema of the row that binds the parameters *names*; None without parameters.

    The types are unknown before the values, so each is the null type.

    Args:
        names: "1" and "2" for `?` and `$1`, otherwise the words after `$`, as in `GatedStatement.parameters`.
    """
    if not names:
        return None
    numbered = all(name.isdecimal() for name in names)
    ordered = sorted(names, key=int) if numbered else sorted(names)
    return pa.schema([pa.field(f"${name}" if numbered else name, pa.null()) for name in ordered])
