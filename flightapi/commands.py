"""
What a Flight SQL caller asks for: bytes in, a plan out. Pure: nothing here runs, waits or remembers.

A descriptor, a ticket and an action say the same few things in several forms (Arrow Flight SQL, `FlightSql.proto`). Each
form becomes one small plan, so that whoever acts on plans knows no protobuf. A descriptor command or ticket that is no
Any is the text of a statement; a path names a dataset or view.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from flightapi.errors import (
    InvalidSqlTextError,
    MalformedMessageError,
    ReadOnlyError,
    UnknownPreparedStatementError,
    UnknownTicketError,
    UnsupportedError,
)
from flightapi.protocol import messages
from flightapi.protocol.messages import pack, parse

#: Bytes of the id of a ticket.
TICKET_ID_BYTES = 16

#: The longest handle of a prepared statement that is looked up.
MAX_HANDLE_BYTES = 1024

#: Names and patterns in metadata commands longer than this match nothing and are refused.
MAX_NAME_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class Statement:
    """
    Run the text *sql*. It is whatever the caller wrote: the engine judges it.

    `ticket_id` is that of the ticket it came in, None when it came as text or as a command: CancelFlightInfo names it.
    """

    sql: str
    ticket_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class PreparedExecution:
    """Run the prepared statement of *handle* with the parameters bound to it; `ticket_id` as in `Statement`."""

    handle: bytes
    ticket_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class GetCatalogs:
    """List the catalogs."""


@dataclass(frozen=True, slots=True)
class GetDbSchemas:
    """List the schemas: of *catalog* (None: any; "": those without one) and whose name is LIKE *schema_pattern*."""

    catalog: str | None = None
    schema_pattern: str | None = None


@dataclass(frozen=True, slots=True)
class GetTables:
    """List datasets and views. No `table_types` means all; `include_schema` adds each one's Arrow schema."""

    catalog: str | None = None
    schema_pattern: str | None = None
    table_pattern: str | None = None
    table_types: tuple[str, ...] = ()
    include_schema: bool = False


@dataclass(frozen=True, slots=True)
class GetTableTypes:
    """List the types of tables."""


@dataclass(frozen=True, slots=True)
class GetSqlInfo:
    """Give the facts of the server with these numbers of the enum SqlInfo; none means all."""

    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GetXdbcTypeInfo:
    """Describe the SQL types; `data_type` is a number of the enum XdbcDataType, None means all."""

    data_type: int | None = None


@dataclass(frozen=True, slots=True)
class GetKeys:
    """List keys between tables, of which there are none."""

    kind: Literal["primary", "exported", "imported", "cross"]


Metadata = GetCatalogs | GetDbSchemas | GetTables | GetTableTypes | GetSqlInfo | GetXdbcTypeInfo | GetKeys

#: What a descriptor or a ticket asks for.
Plan = Statement | PreparedExecution | Metadata


@dataclass(frozen=True, slots=True)
class BindParameters:
    """DoPut: take the row that follows as the parameters of the prepared statement of *handle*."""

    handle: bytes


def plan_descriptor(data: bytes) -> Plan:
    """
    Return what a serialised FlightDescriptor asks GetFlightInfo or GetSchema for.

    Raises:
        MalformedMessageError: It is no FlightDescriptor, or what is in it cannot be read.
        InvalidSqlTextError: It is neither a command nor text in UTF-8.
        ReadOnlyError: The command writes.
        UnsupportedError: The command is one that the runtime does not have.
    """
    return _plan_descriptor(parse(messages.FlightDescriptor, data))


def plan_ticket(data: bytes) -> Plan:
    """
    Return what a serialised Ticket asks DoGet for.

    Raises:
        UnknownTicketError: It looks like a ticket of this runtime, and is not, or is not whole.
        FlightApiError: As `plan_descriptor`.
    """
    return _plan_ticket(parse(messages.Ticket, data).ticket)


def plan_put(data: bytes) -> BindParameters:
    """
    Return what the first FlightData of a DoPut, serialised, asks for: binding parameters is all that there is.

    Raises:
        MalformedMessageError: It is no FlightData or has no descriptor.
        ReadOnlyError: It would write: an update, an ingestion, an upload to a path.
        UnsupportedError: The command is one that the runtime does not have.
    """
    first = parse(messages.FlightData, data)
    if not first.HasField("flight_descriptor"):
        raise MalformedMessageError("The first message of DoPut has no descriptor.")
    raise NotImplementedError


def ticket(plan: Plan, ticket_id: bytes) -> bytes:
    """
    Return the bytes of a ticket for *plan*, self-contained: any process of the runtime can answer it, for any key.

    Args:
        plan: What DoGet is to do. A metadata command is its own ticket.
        ticket_id: `TICKET_ID_BYTES` new random bytes, by which the statement can be cancelled.
    """
    raise NotImplementedError


def flight_info(descriptor: bytes, schema: bytes, ticket_bytes: bytes, *, total_records: int = -1) -> bytes:
    """
    Return the serialised FlightInfo of one endpoint, without a location: "where you are".

    Args:
        descriptor: The serialised FlightDescriptor as the caller sent it, which the answer repeats.
        schema: As `protocol.schemas.encapsulated` gives it; b"" when it is not known.
        ticket_bytes: As `ticket` gives it.
        total_records: -1 when it is not known.
    """
    raise NotImplementedError


def schema_result(schema: bytes) -> bytes:
    """Return the serialised SchemaResult of a schema as `protocol.schemas.encapsulated` gives it."""
    return bytes(messages.SchemaResult(schema=schema).SerializeToString())


def bind_result(handle: bytes) -> bytes:
    """Return the serialised PutResult after binding; the caller uses *handle* from then on."""
    result = messages.DoPutPreparedStatementResult(prepared_statement_handle=handle)
    return bytes(messages.PutResult(app_metadata=result.SerializeToString()).SerializeToString())
