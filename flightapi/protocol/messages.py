"""
The messages of Arrow Flight and Flight SQL as protobuf classes.

The classes are created from generated descriptors at first use. They are in a separate pool because flightsql-dbapi
registers messages with the same names in protobuf's default pool, where names must be unique.
"""

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from flightapi.errors import MalformedMessageError

SERVICE = "arrow.flight.protocol.FlightService"

#: The type URL prefix in the Any of a Flight SQL message.
TYPE_URL_PREFIX = "type.googleapis.com/"

_FLIGHT = "arrow.flight.protocol."
_FLIGHT_SQL = "arrow.flight.protocol.sql."

_DESCRIPTORS = files(__package__).joinpath("descriptors.binpb").read_bytes()
_POOL = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTORS).file:
    _POOL.AddSerializedFile(_file.SerializeToString())

#: RPC paths by name.
PATHS = {method.name: f"/{SERVICE}/{method.name}" for method in _POOL.FindServiceByName(SERVICE).methods}


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


AnyMessage = _class("google.protobuf.Any")


def __getattr__(name: str) -> Any:
    """Return the class of the Flight or Flight SQL message *name*, such as `FlightInfo`, and cache it here."""
    for package in (_FLIGHT, _FLIGHT_SQL):
        try:
            kind = globals()[name] = _class(package + name)
        except KeyError:
            continue
        return kind
    raise AttributeError(f"There is no message {name!r}.")


def enum_values(name: str) -> dict[str, int]:
    """Return the names and numbers of the Flight SQL enum *name*, such as `SqlInfo`."""
    return {value.name: int(value.number) for value in _POOL.FindEnumTypeByName(_FLIGHT_SQL + name).values}


def parse(kind: Any, data: bytes) -> Any:
    """
    Parse *data* as a message of class *kind*.

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
