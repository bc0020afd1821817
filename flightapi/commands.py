"""
Parses Flight SQL requests into plans and serialises responses, without side effects.

A descriptor, a ticket and an upload encode the same few commands in different ways (Arrow Flight SQL,
`FlightSql.proto`). Each becomes a small plan. A descriptor command or ticket that is not an Any is the text of a
statement. A path names a dataset or view.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sized
from typing import Any, Final

from msgspec import Struct

from flightapi.errors import (
    InvalidSqlTextError,
    MalformedMessageError,
    ReadOnlyError,
    UnknownPreparedStatementError,
    UnknownTicketError,
    UnsupportedError,
)
from flightapi.protocol import messages
from flightapi.protocol.messages import TYPE_URL_PREFIX, full_name, pack, parse

#: The catalog and schema of all datasets and views.
CATALOG = "runtime"
SCHEMA = "main"

#: The size of a ticket id in bytes.
TICKET_ID_BYTES = 16

#: The maximum length of prepared statement handles, and of names and patterns in metadata commands.
MAX_HANDLE_BYTES = 1024
MAX_NAME_CHARACTERS = 10_000

#: The maximum number of ids in GetSqlInfo and of table types in GetTables.
MAX_ITEMS = 10_000

#: A path has at most a catalog, a schema and a name.
MAX_PATH_PARTS = 3

#: A ticket consists of version, kind, id, checksum, and the statement text or handle. The checksum detects accidental
#: damage. It is not a signature, because a ticket permits nothing that its statement does not permit.
_TICKET: Final = struct.Struct("!BB16s8s")
_TICKET_VERSION: Final = 1
_TEXT, _HANDLE = 1, 2

#: A Flight SQL Any begins with field 1, a one-byte length, and the prefix of the type URL.
_ANY_BEGINS: Final = b"\n"
_TYPE_URL_BEGINS: Final = b"type.goog"
_FLIGHT_PREFIX: Final = "arrow.flight.protocol."

NO_TRANSACTIONS = "Transactions are not supported: each statement reads the newest data."
NO_SUBSTRAIT = "Substrait plans are not supported: send SQL."


class Statement(Struct, frozen=True):
    """
    Run the statement *sql*, which only the engine validates.

    `ticket_id` is the id of the statement's ticket, which CancelFlightInfo uses. It is b"" if the statement was sent as
    text or as a command.
    """

    sql: str
    ticket_id: bytes = b""


class PreparedExecution(Struct, frozen=True):
    """Run the prepared statement *handle* with its bound parameters. See `Statement` for `ticket_id`."""

    handle: bytes
    ticket_id: bytes = b""


class MetadataCommand(Struct, frozen=True):
    """Answer *message*, a metadata command of `FlightSql.proto` such as CommandGetTables."""

    message: Any


#: The request in a descriptor or a ticket.
Plan = Statement | PreparedExecution | MetadataCommand


def plan_descriptor(data: bytes) -> Plan:
    """
    Parse the serialised FlightDescriptor of GetFlightInfo or GetSchema.

    Raises:
        MalformedMessageError: *data* is not a FlightDescriptor, or its content cannot be read.
        InvalidSqlTextError: The content is neither a command nor text in UTF-8.
        ReadOnlyError: The command writes.
        UnsupportedError: The runtime does not support the command.
    """
    descriptor = parse(messages.FlightDescriptor, data)
    kinds = messages.FlightDescriptor.DescriptorType
    if descriptor.type == kinds.Value("CMD"):
        return _plan_command(descriptor.cmd)
    if descriptor.type == kinds.Value("PATH"):
        return _plan_path(tuple(descriptor.path))
    raise MalformedMessageError("The descriptor must be a command or a path.")


def plan_ticket(data: bytes) -> Plan:
    """
    Parse the serialised Ticket of DoGet.

    Raises:
        UnknownTicketError: The ticket has the format of this runtime, but is damaged or was issued elsewhere.
        FlightApiError: See `plan_descriptor`.
    """
    return plan_ticket_bytes(parse(messages.Ticket, data).ticket)


def plan_ticket_bytes(content: bytes) -> Plan:
    """Parse the bytes inside a Ticket, as `plan_ticket` does."""
    wrapped = _command_in(content)
    if wrapped is not None and _message_name(wrapped) == full_name(messages.TicketStatementQuery):
        return _open_ticket(parse(messages.TicketStatementQuery, wrapped.value).statement_handle)
    return _plan_text(content) if wrapped is None else _plan_wrapped(wrapped)


def plan_put(data: bytes) -> bytes:
    """
    Parse the first serialised FlightData of a DoPut. Only binding parameters is supported.

    Returns:
        The handle of the prepared statement to which the next row is bound.

    Raises:
        MalformedMessageError: *data* is not a FlightData, or has no descriptor with a command.
        ReadOnlyError: The command would write (an update, an ingestion, or an upload to a path).
        UnsupportedError: The runtime does not support the command in DoPut.
    """
    first = parse(messages.FlightData, data)
    if not first.HasField("flight_descriptor"):
        raise MalformedMessageError("The first message of DoPut has no descriptor.")
    descriptor = first.flight_descriptor
    if descriptor.type == messages.FlightDescriptor.DescriptorType.Value("PATH"):
        raise ReadOnlyError("An upload")
    wrapped = _command_in(descriptor.cmd)
    if wrapped is None:
        raise MalformedMessageError("The DoPut descriptor contains no Flight SQL command.")
    plan = _plan_wrapped(wrapped)
    if not isinstance(plan, PreparedExecution):
        raise UnsupportedError(f"{_shown(_message_name(wrapped))} is not a DoPut command.")
    return plan.handle


def ticket(plan: Plan, ticket_id: bytes) -> bytes:
    """
    Return the bytes of a self-contained ticket, which any process of the runtime can redeem for any key.

    Args:
        plan: The request for DoGet. A metadata command is its own ticket.
        ticket_id: `TICKET_ID_BYTES` new random bytes, which identify the statement for cancellation.
    """
    match plan:
        case Statement():
            kind, content = _TEXT, plan.sql.encode()
        case PreparedExecution():
            kind, content = _HANDLE, plan.handle
        case MetadataCommand():
            return pack(plan.message)
    checksum = _checksum(kind, ticket_id, content)
    handle = _TICKET.pack(_TICKET_VERSION, kind, ticket_id, checksum) + content
    return pack(messages.TicketStatementQuery(statement_handle=handle))


def flight_info(descriptor: bytes, schema: bytes, ticket_bytes: bytes) -> bytes:
    """
    Return a serialised FlightInfo with one endpoint. It has no location, which means this server.

    Args:
        descriptor: The serialised FlightDescriptor of the request, which the response repeats.
        schema: The schema as an encapsulated IPC message; b"" if it is unknown.
        ticket_bytes: The ticket from `ticket`.

    Raises:
        MalformedMessageError: *descriptor* is not a FlightDescriptor.
    """
    info = messages.FlightInfo(
        schema=schema,
        flight_descriptor=parse(messages.FlightDescriptor, descriptor),
        total_records=-1,  # unknown before the statement has run, like total_bytes
        total_bytes=-1,
    )
    info.endpoint.add().ticket.ticket = ticket_bytes
    return bytes(info.SerializeToString())


def schema_result(schema: bytes) -> bytes:
    """Return the serialised SchemaResult of *schema*, an encapsulated IPC message."""
    return bytes(messages.SchemaResult(schema=schema).SerializeToString())


def bind_result(handle: bytes) -> bytes:
    """Return the serialised PutResult of binding parameters; the caller must use *handle* from then on."""
    result = messages.DoPutPreparedStatementResult(prepared_statement_handle=handle)
    return bytes(messages.PutResult(app_metadata=result.SerializeToString()).SerializeToString())


def checked_handle(handle: bytes) -> bytes:
    """
    Return *handle*, which names a prepared statement.

    Raises:
        UnknownPreparedStatementError: The handle is longer than any handle of this runtime.
    """
    if len(handle) > MAX_HANDLE_BYTES:
        raise UnknownPreparedStatementError
    return handle


def refuse_transaction(message: Any) -> None:
    """
    Refuse a command or action that names a transaction. An empty id means no transaction.

    Raises:
        UnsupportedError: The message names a transaction.
    """
    if message.transaction_id:
        raise UnsupportedError(NO_TRANSACTIONS)


def unwrap(kind: Any, data: bytes) -> Any:
    """
    Return the message of class *kind* inside the Any in *data*.

    Raises:
        MalformedMessageError: *data* is not such an Any.
    """
    wrapped = parse(messages.AnyMessage, data)
    if _message_name(wrapped) != full_name(kind):
        raise MalformedMessageError(f"The bytes are not a {kind.DESCRIPTOR.name} message in an Any.")
    return parse(kind, wrapped.value)


def _plan_command(content: bytes) -> Plan:
    wrapped = _command_in(content)
    return _plan_text(content) if wrapped is None else _plan_wrapped(wrapped)


def _plan_text(content: bytes) -> Statement:
    try:
        return Statement(content.decode())
    except UnicodeDecodeError:
        raise InvalidSqlTextError from None


def _plan_path(parts: tuple[str, ...]) -> Statement:
    """Select from the dataset or view that a path names. The engine checks that it exists."""
    if not 1 <= len(parts) <= MAX_PATH_PARTS or not all(1 <= len(part) <= MAX_NAME_CHARACTERS for part in parts):
        raise MalformedMessageError(
            "A path must be the name of a dataset or view, optionally preceded by its catalog and schema."
        )
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
    return Statement(f"SELECT * FROM {quoted}")  # noqa: S608 - each part is a quoted name


def _command_in(content: bytes) -> Any | None:
    """
    Return the Any in *content*, or None if it is not a command.

    The type URL decides, because text can happen to parse as an Any.

    Raises:
        MalformedMessageError: The content begins like a Flight SQL command but is incomplete.
    """
    try:
        wrapped = parse(messages.AnyMessage, content)
    except MalformedMessageError:
        if content.startswith(_ANY_BEGINS) and content[2:].startswith(_TYPE_URL_BEGINS):
            raise MalformedMessageError("The command is incomplete.") from None
        return None
    if wrapped.type_url.startswith(TYPE_URL_PREFIX) or _message_name(wrapped).startswith(_FLIGHT_PREFIX):
        return wrapped
    return None


def _message_name(wrapped: Any) -> str:
    """Return the full name of the message in an Any: the part of its type URL after the last slash."""
    return str(wrapped.type_url.rpartition("/")[2])


def _plan_wrapped(wrapped: Any) -> Plan:
    name = _message_name(wrapped)
    if name in _REFUSED:
        refusal, reason = _REFUSED[name]
        raise refusal(reason)
    if name not in _READERS:
        raise UnsupportedError(f"The runtime does not support the command {_shown(name)}.")
    kind, read = _READERS[name]
    return read(parse(kind, wrapped.value))


def _shown(name: str) -> str:
    """Quote text of the caller, shortened and on one line."""
    return repr(name[:100])


def _statement(message: Any) -> Statement:
    refuse_transaction(message)
    return Statement(message.query)


def _prepared(message: Any) -> PreparedExecution:
    return PreparedExecution(checked_handle(message.prepared_statement_handle))


def _filtered(message: Any) -> MetadataCommand:
    """
    Accept a metadata command with filters.

    Raises:
        MalformedMessageError: A name, a pattern or a list is too long.
    """
    for _, value in message.ListFields():
        if isinstance(value, str) and len(value) > MAX_NAME_CHARACTERS:
            raise MalformedMessageError(f"A name or pattern is longer than {MAX_NAME_CHARACTERS:,} characters.")
        if isinstance(value, Sized) and len(value) > MAX_ITEMS:
            raise MalformedMessageError(f"A command requests more than {MAX_ITEMS:,} items.")
    return MetadataCommand(message)


#: The supported commands, with the functions that turn them into plans.
_READERS: Final[Mapping[str, tuple[Any, Callable[[Any], Plan]]]] = {
    full_name(kind): (kind, read)
    for kind, read in (
        (messages.CommandStatementQuery, _statement),
        (messages.CommandPreparedStatementQuery, _prepared),
        (messages.CommandGetCatalogs, MetadataCommand),
        (messages.CommandGetDbSchemas, _filtered),
        (messages.CommandGetTables, _filtered),
        (messages.CommandGetTableTypes, MetadataCommand),
        (messages.CommandGetSqlInfo, _filtered),
        (messages.CommandGetXdbcTypeInfo, MetadataCommand),
        (messages.CommandGetPrimaryKeys, MetadataCommand),
        (messages.CommandGetExportedKeys, MetadataCommand),
        (messages.CommandGetImportedKeys, MetadataCommand),
        (messages.CommandGetCrossReference, MetadataCommand),
    )
}

#: Known commands that are always refused.
_REFUSED: Final[Mapping[str, tuple[type[ReadOnlyError | UnsupportedError], str]]] = {
    full_name(messages.CommandStatementUpdate): (ReadOnlyError, "An update"),
    full_name(messages.CommandPreparedStatementUpdate): (ReadOnlyError, "An update"),
    full_name(messages.CommandStatementIngest): (ReadOnlyError, "An ingestion"),
    full_name(messages.CommandStatementSubstraitPlan): (UnsupportedError, NO_SUBSTRAIT),
}


def _open_ticket(handle: bytes) -> Statement | PreparedExecution:
    if len(handle) < _TICKET.size:
        raise UnknownTicketError
    version, kind, ticket_id, checksum = _TICKET.unpack_from(handle)
    content = handle[_TICKET.size :]
    if version != _TICKET_VERSION or checksum != _checksum(kind, ticket_id, content):
        raise UnknownTicketError
    if kind == _HANDLE:
        return PreparedExecution(checked_handle(content), ticket_id)
    try:
        return Statement(content.decode(), ticket_id)
    except UnicodeDecodeError:
        raise UnknownTicketError from None


def _checksum(kind: int, ticket_id: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(bytes((kind,)) + ticket_id + content, digest_size=8).digest()
