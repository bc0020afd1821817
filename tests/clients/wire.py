"""
Flight SQL byte by byte over gRPC, for requests that no client sends, and for exact status codes.

Messages are encoded by hand with the field numbers of `Flight.proto` and `FlightSql.proto`, so these tests share no
code with the runtime.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pyarrow as pa

from tests.clients.runtime import FlightServer
from tests.system.harness import K1

SERVICE = "/arrow.flight.protocol.FlightService/"
TYPE_URL = "type.googleapis.com/arrow.flight.protocol.sql."
CMD = 2

#: Seconds after which a call is considered hung.
HANG_S = 120.0


def varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def field(number: int, value: bytes | str | int | bool) -> bytes:
    """Return one field: text and bytes with their length, numbers as varints."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message with only varints and length-delimited fields."""
    position = 0

    def number() -> int:
        nonlocal position
        result = shift = 0
        while True:
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return result

    while position < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
        else:
            assert tag & 7 == 2
            size = number()
            yield tag >> 3, data[position : position + size]
            position += size


def first(data: bytes, number: int) -> Any:
    """Return the first field with that number; b"" if there is none."""
    return next((value for found, value in fields(data) if found == number), b"")


def command(name: str, body: bytes = b"") -> bytes:
    """Return a Flight SQL message in its Any."""
    return field(1, TYPE_URL + name) + field(2, body)


def descriptor(content: bytes) -> bytes:
    """Return a FlightDescriptor of a command."""
    return field(1, CMD) + field(2, content)


@dataclass
class Wire:
    """A connection that sends *metadata* with each call."""

    channel: grpc.Channel
    metadata: list[tuple[str, str]]

    def unary(self, method: str, message: bytes) -> bytes:
        answer: bytes = self.channel.unary_unary(SERVICE + method)(message, timeout=HANG_S, metadata=self.metadata)
        return answer

    def stream(self, method: str, messages: Iterable[bytes]) -> Any:
        """Return the running call."""
        return self.channel.stream_stream(SERVICE + method)(iter(messages), timeout=HANG_S, metadata=self.metadata)

    def down(self, method: str, message: bytes) -> list[bytes]:
        return list(self.channel.unary_stream(SERVICE + method)(message, timeout=HANG_S, metadata=self.metadata))

    def ticket(self, content: bytes) -> bytes:
        """Return the bytes in the ticket of GetFlightInfo for a descriptor's command."""
        info = self.unary("GetFlightInfo", descriptor(content))
        return bytes(first(first(first(info, 3), 1), 1))

    def rows(self, ticket: bytes) -> pa.Table:
        """Return the table of DoGet."""
        parts = []
        for message in self.down("DoGet", field(1, ticket)):
            header, body = first(message, 2), first(message, 1000)
            parts += [b"\xff\xff\xff\xff", len(header).to_bytes(4, "little"), header, body]
        with pa.ipc.open_stream(b"".join(parts)) as reader:
            return reader.read_all()

    def action(self, name: str, body: bytes) -> list[bytes]:
        """Return the bodies of the results."""
        return [first(result, 1) for result in self.down("DoAction", field(1, name) + field(2, body))]

    def prepare(self, sql: str) -> bytes:
        """Return the ActionCreatePreparedStatementResult in the Any of the answer."""
        (result,) = self.action(
            "CreatePreparedStatement", command("ActionCreatePreparedStatementRequest", field(1, sql))
        )
        assert first(result, 1) == (TYPE_URL + "ActionCreatePreparedStatementResult").encode()
        return bytes(first(result, 2))

    def run(self, sql: str) -> pa.Table:
        """GetFlightInfo of a CommandStatementQuery, then DoGet."""
        return self.rows(self.ticket(command("CommandStatementQuery", field(1, sql))))

    def run_prepared(self, sql: str) -> pa.Table:
        """Prepare, execute, close."""
        handle = first(self.prepare(sql), 1)
        try:
            return self.rows(self.ticket(command("CommandPreparedStatementQuery", field(1, handle))))
        finally:
            self.action("ClosePreparedStatement", command("ActionClosePreparedStatementRequest", field(1, handle)))

    def run_text(self, sql: str) -> pa.Table:
        """DoGet of a ticket that is the text of the statement."""
        return self.rows(sql.encode())


@contextmanager
def connect(server: FlightServer, authorization: str | None = f"Bearer {K1}") -> Iterator[Wire]:
    """Open a connection without TLS."""
    with grpc.insecure_channel(f"127.0.0.1:{server.flight_port}") as channel:
        yield Wire(channel, [] if authorization is None else [("authorization", authorization)])
