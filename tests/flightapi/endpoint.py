"""A Flight SQL server in this process, on a socket, a client that adds nothing of its own, and Arrow streams."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc
import pyarrow as pa
from msgspec.structs import replace

from authkeys.access import Access
from authkeys.keys import KeySet
from flightapi.protocol import messages
from flightapi.protocol.messages import PATHS, pack
from flightapi.server import FlightServer
from queryengine.engine import QueryEngine
from runtimeconf.model import FlightConfig, RuntimeConfig
from runtimeconf.secret import Secret
from system.addresses import Address
from tests.system.harness import K1, K2

PATIENCE_S = 60.0

Metadata = Sequence[tuple[str, str | bytes]]

_KEY_SET = KeySet([Secret(K1), Secret(K2)], b"salt")
FINGERPRINTS = _KEY_SET.fingerprints()
LOCKED = Access(key_set=_KEY_SET)
OPEN = Access(key_set=None)


#: The numbers of requests, as their ids.
REQUESTS = count(1)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def bearer(key: str) -> Metadata:
    return (("authorization", f"Bearer {key}"),)


@dataclass(frozen=True)
class Answer:
    """The answer to a successful call."""

    messages: list[bytes]
    initial: dict[str, str | bytes]
    trailing: dict[str, str | bytes]


@dataclass(frozen=True)
class Refused:
    """The end of a failed call."""

    status: str
    message: str
    trailing: dict[str, str | bytes]
    messages: list[bytes]


@dataclass
class Endpoint:
    """A running server."""

    port: int
    server: FlightServer
    channel: grpc.Channel

    def begin(
        self, path: str, requests: Iterable[bytes], metadata: Metadata = (), timeout_s: float = PATIENCE_S
    ) -> Any:
        """Start a call of *path* and return gRPC's call object, an iterator over the answers."""
        if all(name != "x-request-id" for name, _ in metadata):
            metadata = (*metadata, ("x-request-id", f"{next(REQUESTS):032x}"))
        return self.channel.stream_stream(path)(iter(requests), metadata=metadata, timeout=timeout_s)

    def call(self, method: str, *requests: bytes, metadata: Metadata | None = None) -> Answer | Refused:
        """Call an RPC by its name, or anything by its path, with the first key by default."""
        path = PATHS.get(method, method)
        call = self.begin(path, requests, bearer(K1) if metadata is None else metadata)
        received: list[bytes] = []
        try:
            received.extend(call)
        except grpc.RpcError as error:
            return Refused(error.code().name, error.details(), dict(error.trailing_metadata() or ()), received)
        return Answer(received, dict(call.initial_metadata() or ()), dict(call.trailing_metadata() or ()))

    def works(self, method: str, *requests: bytes, metadata: Metadata | None = None) -> Answer:
        """Make a call that must succeed."""
        answer = self.call(method, *requests, metadata=metadata)
        assert isinstance(answer, Answer), answer
        return answer

    def fails(self, method: str, *requests: bytes, metadata: Metadata | None = None) -> Refused:
        """Make a call that must fail."""
        answer = self.call(method, *requests, metadata=metadata)
        assert isinstance(answer, Refused), answer
        return answer

    # Whole conversations.

    def info(self, command: Any, metadata: Metadata | None = None) -> Any:
        """Return the FlightInfo of a Flight SQL command."""
        (message,) = self.works("GetFlightInfo", descriptor(command), metadata=metadata).messages
        return messages.parse(messages.FlightInfo, message)

    def table(self, info: Any, metadata: Metadata | None = None) -> pa.Table:
        """Return the answer behind a FlightInfo."""
        return table_of(self.works("DoGet", ticket_of(info), metadata=metadata).messages)

    def sql(self, statement: str, metadata: Metadata | None = None) -> pa.Table:
        """Return the answer to a statement."""
        info = self.info(messages.CommandStatementQuery(query=statement), metadata)
        table = self.table(info, metadata)
        assert table.schema == schema_of(info.schema)
        return table

    def prepare(self, statement: str, metadata: Metadata | None = None) -> Any:
        """Prepare a statement."""
        body = pack(messages.ActionCreatePreparedStatementRequest(query=statement))
        (message,) = self.works("DoAction", action("CreatePreparedStatement", body), metadata=metadata).messages
        return unpacked(messages.ActionCreatePreparedStatementResult, message)

    def bind(self, handle: bytes, row: pa.Table) -> bytes:
        """Bind the parameters of a prepared statement and return its new handle."""
        (message,) = self.works("DoPut", *upload(handle, row)).messages
        result = messages.parse(messages.PutResult, message)
        bound = messages.parse(messages.DoPutPreparedStatementResult, result.app_metadata)
        return bytes(bound.prepared_statement_handle)

    def close(self, handle: bytes, metadata: Metadata | None = None) -> list[bytes]:
        """Close a prepared statement."""
        request = messages.ActionClosePreparedStatementRequest(prepared_statement_handle=handle)
        return self.works("DoAction", action("ClosePreparedStatement", pack(request)), metadata=metadata).messages

    def cancel(self, info: Any, metadata: Metadata | None = None) -> int:
        """Cancel the statement of a FlightInfo and return the status of the cancellation."""
        request = messages.CancelFlightInfoRequest(info=info).SerializeToString()
        (message,) = self.works("DoAction", action("CancelFlightInfo", request), metadata=metadata).messages
        body = messages.parse(messages.Result, message).body
        return int(messages.parse(messages.CancelFlightInfoResult, body).status)


#: Begins a call to an endpoint of an RPC by its name, with these metadata, that sends nothing.
Silent = Callable[..., Any]
Outcomes = Callable[[], list[str]]


def descriptor(command: Any) -> bytes:
    """Return a serialised FlightDescriptor of a Flight SQL command."""
    cmd = command if isinstance(command, bytes) else pack(command)
    return bytes(messages.FlightDescriptor(type=2, cmd=cmd).SerializeToString())


def ticket_of(info: Any) -> bytes:
    (endpoint,) = info.endpoint
    return bytes(endpoint.ticket.SerializeToString())


def ticket(data: bytes) -> bytes:
    return bytes(messages.Ticket(ticket=data).SerializeToString())


def action(kind: str, body: bytes = b"") -> bytes:
    return bytes(messages.Action(type=kind, body=body).SerializeToString())


def unpacked(kind: Any, message: bytes) -> Any:
    """Return the message of class *kind* in a serialised Result."""
    wrapped = messages.parse(messages.AnyMessage, messages.parse(messages.Result, message).body)
    assert wrapped.type_url.endswith(f".{kind.DESCRIPTOR.name}")
    return messages.parse(kind, wrapped.value)


def executing(handle: bytes) -> Any:
    """Return the command that runs a prepared statement."""
    return messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)


def upload(handle: bytes, row: pa.Table) -> Iterator[bytes]:
    """Yield the messages of a DoPut that binds *row*."""
    command = descriptor(executing(handle))
    schema, *batches = as_upload(ipc_stream(row))
    data = messages.parse(messages.FlightData, schema)
    data.flight_descriptor.CopyFrom(messages.parse(messages.FlightDescriptor, command))
    yield bytes(data.SerializeToString())
    yield from batches


def ipc_stream(table: pa.Table, **options: Any) -> bytes:
    """Return the table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def as_upload(stream: bytes) -> list[bytes]:
    """Return the messages of an IPC stream as a client's FlightData, read by pyarrow."""
    found = []
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
        body = message.body.to_pybytes() if message.body is not None else b""
        data = messages.FlightData(data_header=message.metadata.to_pybytes(), data_body=body)
        found.append(data.SerializeToString())
    return found


def table_of(flight_data: Iterable[bytes]) -> pa.Table:
    """Return the table that serialised FlightData messages hold, fully validated."""
    stream = bytearray()
    for serialised in flight_data:
        data = messages.parse(messages.FlightData, serialised)
        head = bytes(data.data_header)
        padded = head + b"\0" * (-len(head) % 8)
        stream += b"\xff\xff\xff\xff" + len(padded).to_bytes(4, "little") + padded + bytes(data.data_body)
    with pa.ipc.open_stream(bytes(stream)) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


def schema_of(encapsulated: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.BufferReader(encapsulated))


def row_of(**values: Any) -> pa.Table:
    """Return a table of one row."""
    return pa.table({name: value if isinstance(value, pa.Array) else [value] for name, value in values.items()})


@contextmanager
def serving(config: RuntimeConfig, engine: QueryEngine, access: Access = LOCKED, **flight: Any) -> Iterator[Endpoint]:
    """Serve *engine* on a port of the system's choice."""
    flight_config = replace(FlightConfig(bind=Address("127.0.0.1", 0)), **flight)
    server = FlightServer(replace(config, flight=flight_config), engine, access)
    server.start()
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    # Separate connections: channels to one address share a connection by default.
    with grpc.insecure_channel(
        f"127.0.0.1:{server.port}", options=[*options, ("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        try:
            yield Endpoint(server.port, server, channel)
        finally:
            server.close()
