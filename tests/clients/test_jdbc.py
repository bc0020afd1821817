"""
The Flight SQL driver for JDBC, replayed byte by byte: connecting, querying and closing.

The driver authenticates once, with an authorization header on Handshake and one empty HandshakeRequest, and uses the
bearer token in the answer's header. It prepares every statement.

tests/flightapi/test_handshake.py and test_authentication.py show which credentials are refused.
"""

from __future__ import annotations

import base64

import grpc
import pyarrow as pa
import pytest

from tests.clients.runtime import FlightServer
from tests.clients.wire import command, connect, field, first
from tests.system.harness import K1


def basic(user: str, password: str, *, padded: bool = True) -> str:
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return f"Basic {encoded if padded else encoded.rstrip('=')}"


def handshake(server: FlightServer, authorization: str | None) -> str:
    """Return the authorization header that the server answers with."""
    with connect(server, authorization) as wire:
        call = wire.stream("Handshake", [b""])
        headers = dict(call.initial_metadata() or ())
        assert list(call) in ([], [b""])
        assert call.code() is grpc.StatusCode.OK
        bearer = headers["authorization"]
        assert isinstance(bearer, str)
        return bearer


@pytest.mark.parametrize(
    "authorization",
    [
        pytest.param(basic("anybody", K1), id="user and password"),
        pytest.param(basic("", K1), id="password"),
        pytest.param(basic("a", K1, padded=False), id="not padded"),
        pytest.param(f"Bearer {K1}", id="token"),
    ],
)
def test_connect_query_and_close(flight: FlightServer, authorization: str) -> None:
    bearer = handshake(flight, authorization)
    assert bearer == f"Bearer {K1}"

    with connect(flight, bearer) as wire:
        created = wire.prepare("SELECT id, name FROM orders WHERE id < 2 ORDER BY id")
        handle, schema, is_update = first(created, 1), first(created, 2), first(created, 4)
        assert not is_update  # the driver would run it as an update
        assert pa.ipc.read_schema(pa.py_buffer(schema)).names == ["id", "name"]
        table = wire.rows(wire.ticket(command("CommandPreparedStatementQuery", field(1, handle))))
        closed = wire.action("ClosePreparedStatement", command("ActionClosePreparedStatementRequest", field(1, handle)))
        wire.action("CloseSession", b"")

    assert table.to_pylist() == [{"id": 0, "name": "name 0"}, {"id": 1, "name": "name 1"}]
    assert closed in ([], [b""])


def test_parameters(flight: FlightServer) -> None:
    batch = pa.record_batch({"1": pa.array([7], pa.int64())})
    schema, row = batch.schema.serialize().to_pybytes(), batch.serialize().to_pybytes()
    with connect(flight) as wire:
        handle = first(wire.prepare("SELECT name FROM orders WHERE id = ?"), 1)
        prepared = command("CommandPreparedStatementQuery", field(1, handle))
        (result,) = wire.stream("DoPut", [data(schema, descriptor=field(1, 2) + field(2, prepared)), data(row)])
        renewed = first(first(result, 1), 1) or handle
        table = wire.rows(wire.ticket(command("CommandPreparedStatementQuery", field(1, renewed))))

    assert table.to_pylist() == [{"name": "name 7"}]


def data(message: bytes, *, descriptor: bytes = b"") -> bytes:
    """Return the FlightData of an encapsulated IPC message: marker, length, header, body."""
    length = int.from_bytes(message[4:8], "little")
    content = field(2, message[8 : 8 + length]) + field(1000, message[8 + length :])
    return (field(1, descriptor) if descriptor else b"") + content


def test_the_metadata_that_the_driver_requests(flight: FlightServer) -> None:
    with connect(flight) as wire:

        def ask(name: str, body: bytes = b"") -> pa.Table:
            return wire.rows(wire.ticket(command(name, body)))

        assert ask("CommandGetCatalogs").to_pylist() == [{"catalog_name": "runtime"}]
        assert ask("CommandGetDbSchemas").to_pylist() == [{"catalog_name": "runtime", "db_schema_name": "main"}]
        tables = ask("CommandGetTables", field(3, "%") + field(5, True))
        assert tables["table_name"].to_pylist() == ["big_orders", "orders"]
        assert ask("CommandGetSqlInfo").num_rows > 10
        assert ask("CommandGetXdbcTypeInfo").num_rows > 10
        assert ask("CommandGetPrimaryKeys", field(3, "orders")).num_rows == 0
