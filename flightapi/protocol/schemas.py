"""Arrow schemas as Flight sends them: one encapsulated message (Arrow columnar format, "IPC Streaming Format")."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa


def encapsulated(schema: pa.Schema) -> bytes:
    """
    Return *schema* as an encapsulated IPC message.

    It is what FlightInfo.schema, SchemaResult.schema, GetTables' table_schema and a prepared statement's two schemas
    hold.
    """
    return bytes(schema.serialize())


def parameter_schema(names: Collection[str]) -> pa.Schema | None:
    """
    Return the schema of the row that binds the parameters *names*; None when there are none.

    The types are not known before the values are: each is the null type, which says just that.

    Args:
        names: "1" and "2" for `?` and `$1`, else the words after `$`, as `GatedStatement.parameters`.
    """
    if not names:
        return None
    numbered = all(name.isdecimal() for name in names)
    ordered = sorted(names, key=int) if numbered else sorted(names)
    return pa.schema([pa.field(f"${name}" if numbered else name, pa.null()) for name in ordered])
