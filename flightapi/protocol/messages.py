"""
The messages of Arrow Flight and Flight SQL as protobuf classes.

The classes are created at import from generated descriptors, in a separate pool: flightsql-dbapi registers messages of
the same names in protobuf's default pool, where names are unique.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from flightapi.errors import MalformedMessageError
from flightapi.protocol import DESCRIPTORS

SERVICE = "arrow.flight.protocol.FlightService"

#: The prefix of the type URL in the Any of a Flight SQL message.
TYPE_URL_PREFIX = "type.googleapis.com/"

_FLIGHT = "arrow.flight.protocol."
_FLIGHT_SQL = "arrow.flight.protocol.sql."


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One RPC of the service: its path, its messages, and which sides stream."""

    name: str
    path: str
    request: Any
    response: Any
    request_streams: bool
    response_streams: bool


def _load() -> descriptor_pool.DescriptorPool:
    """Return a pool with the messages of both protocols."""
    found = descriptor_pb2.FileDescriptorSet.FromString(files(__package__).joinpath(DESCRIPTORS).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _load()


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


def _flight(name: str) -> Any:
    return _class(_FLIGHT + name)


def _flight_sql(name: str) -> Any:
    return _class(_FLIGHT_SQL + name)


AnyMessage = _class("google.protobuf.Any")

HandshakeRequest = _flight("HandshakeRequest")
HandshakeResponse = _flight("HandshakeResponse")
BasicAuth = _flight("BasicAuth")
Empty = _flight("Empty")
ActionType = _flight("ActionType")
Action = _flight("Action")
Result = _flight("Result")
SchemaResult = _flight("SchemaResult")
FlightDescriptor = _flight("FlightDescriptor")
FlightInfo = _flight("FlightInfo")
CancelFlightInfoRequest = _flight("CancelFlightInfoRequest")
CancelFlightInfoResult = _flight("CancelFlightInfoResult")
Ticket = _flight("Ticket")
FlightData = _flight("FlightData")
PutResult = _flight("PutResult")
SetSessionOptionsRequest = _flight("SetSessionOptionsRequest")
SetSessionOptionsResult = _flight("SetSessionOptionsResult")
GetSessionOptionsRequest = _flight("GetSessionOptionsRequest")
GetSessionOptionsResult = _flight("GetSessionOptionsResult")
CloseSessionRequest = _flight("CloseSessionRequest")
CloseSessionResult = _flight("CloseSessionResult")

CommandGetSqlInfo = _flight_sql("CommandGetSqlInfo")
CommandGetXdbcTypeInfo = _flight_sql("CommandGetXdbcTypeInfo")
CommandGetCatalogs = _flight_sql("CommandGetCatalogs")
CommandGetDbSchemas = _flight_sql("CommandGetDbSchemas")
CommandGetTables = _flight_sql("CommandGetTables")
CommandGetTableTypes = _flight_sql("CommandGetTableTypes")
CommandGetPrimaryKeys = _flight_sql("CommandGetPrimaryKeys")
CommandGetExportedKeys = _flight_sql("CommandGetExportedKeys")
CommandGetImportedKeys = _flight_sql("CommandGetImportedKeys")
CommandGetCrossReference = _flight_sql("CommandGetCrossReference")
CommandStatementQuery = _flight_sql("CommandStatementQuery")
CommandStatementSubstraitPlan = _flight_sql("CommandStatementSubstraitPlan")
CommandPreparedStatementQuery = _flight_sql("CommandPreparedStatementQuery")
CommandStatementUpdate = _flight_sql("CommandStatementUpdate")
CommandPreparedStatementUpdate = _flight_sql("CommandPreparedStatementUpdate")
CommandStatementIngest = _flight_sql("CommandStatementIngest")
TicketStatementQuery = _flight_sql("TicketStatementQuery")
ActionCreatePreparedStatementRequest = _flight_sql("ActionCreatePreparedStatementRequest")
ActionCreatePreparedStatementResult = _flight_sql("ActionCreatePreparedStatementResult")
ActionClosePreparedStatementRequest = _flight_sql("ActionClosePreparedStatementRequest")
ActionCancelQueryRequest = _flight_sql("ActionCancelQueryRequest")
ActionCancelQueryResult = _flight_sql("ActionCancelQueryResult")
DoPutPreparedStatementResult = _flight_sql("DoPutPreparedStatementResult")


def enum_values(name: str) -> dict[str, int]:
    """Return the names and numbers of the Flight SQL enum *name*, such as `SqlInfo`."""
    return {value.name: int(value.number) for value in _POOL.FindEnumTypeByName(_FLIGHT_SQL + name).values}


def _methods() -> dict[str, Method]:
    service = _POOL.FindServiceByName(SERVICE)
    return {
        method.name: Method(
            name=method.name,
            path=f"/{SERVICE}/{method.name}",
            request=message_factory.GetMessageClass(method.input_type),
            response=message_factory.GetMessageClass(method.output_type),
            request_streams=method.client_streaming,
            response_streams=method.server_streaming,
        )
        for method in service.methods
    }


#: The RPCs of the service by their name.
METHODS = _methods()


def parse(kind: Any, data: bytes) -> Any:
    """
    Return the message of class *kind* that *data* holds.

    Raises:
        MalformedMessageError: *data* is not such a message.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        raise MalformedMessageError(f"The bytes are not a {kind.DESCRIPTOR.name} message.") from None


def pack(message: Any) -> bytes:
    """Return *message* serialised inside an Any, as Flight SQL sends commands and results."""
    url = TYPE_URL_PREFIX + message.DESCRIPTOR.full_name
    return bytes(AnyMessage(type_url=url, value=message.SerializeToString()).SerializeToString())


def full_name(kind: Any) -> str:
    """Return the full name of the message class *kind*, as in a type URL."""
    return str(kind.DESCRIPTOR.full_name)
