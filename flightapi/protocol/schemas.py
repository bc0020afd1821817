"""Arrow schemas as Flight sends them: one encapsulated message (Arrow columnar format, "IPC Streaming Format")."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa

from flightapi.errors import AnswerCutError
from flightapi.protocol.framing import first_head
from flightapi.protocol.ipc import CONTINUATION, PREFIX


def encapsulated(schema: pa.Schema) -> bytes:
    """
    Return *schema* as an encapsulated IPC message.

    It is what FlightInfo.schema, SchemaResult.schema, GetTables' table_schema and a prepared statement's two schemas
    hold.
    """
    return bytes(schema.serialize())


def schema_of_stream(chunks: Iterable[bytes]) -> pa.Schema:
    """
    Return the schema of an Arrow IPC stream; no more of *chunks* is taken than it needs.

    Raises:
        AnswerCutError: The stream ends before, or begins with something else.
    """
    head = first_head(chunks)
    try:
        return pa.ipc.read_schema(pa.py_buffer(PREFIX.pack(CONTINUATION, len(head)) + head))
    except (pa.ArrowException, OSError, ValueError):
        raise AnswerCutError from None


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
