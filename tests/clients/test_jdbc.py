"""
The Flight SQL driver for JDBC, replayed: what it sends to connect, to ask and to part, byte by byte.

The driver authenticates once, with an authorization header on Handshake and one empty HandshakeRequest, and takes the
bearer from the header of the answer; then it prepares every statement.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

import grpc
import pyarrow as pa
import pytest

from tests.clients.runtime import FlightServer
from tests.clients.wire import HANG_S, SERVICE, Wire, command, connect, field, first
from tests.system.harness import K1, K2, WRONG


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
def test_connect_ask_and_close(flight: FlightServer, authorization: str) -> None:
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


def test_what_the_driver_asks_for_its_tree_of_tables(flight: FlightServer) -> None:
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


@pytest.mark.parametrize(
    "authorization",
    [
        pytest.param(basic("anybody", WRONG), id="wrong password"),
        pytest.param(basic(K1, ""), id="key as user"),
        pytest.param(f"Bearer {WRONG}", id="wrong token"),
        pytest.param("Basic !!!", id="no base64"),
        pytest.param("Basic", id="nothing after Basic"),
        pytest.param("Bearer ", id="empty token"),
        pytest.param(K1, id="no scheme"),
        pytest.param(None, id="no header"),
    ],
)
def test_the_handshake_is_refused(flight: FlightServer, authorization: str | None) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        handshake(flight, authorization)

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert re.search(r"API key|authorization|Basic", refused.value.details())
    assert WRONG not in refused.value.details()


def test_two_authorization_headers_are_refused(flight: FlightServer) -> None:
    for keys in ((K1, K2), (K1, WRONG), (WRONG, K1), (K1, K1)):
        with connect(flight, None) as wire:
            wire.metadata = [("authorization", f"Bearer {key}") for key in keys]
            with pytest.raises(grpc.RpcError) as refused:
                wire.run("SELECT 1")
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(
            lambda wire: wire.channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=HANG_S), id="health"
        ),
        pytest.param(lambda wire: wire.channel.unary_unary(SERVICE + "Nope")(b"", timeout=HANG_S), id="unknown method"),
        pytest.param(
            lambda wire: wire.channel.unary_unary("/nope.Nope/Nope")(b"", timeout=HANG_S), id="unknown service"
        ),
        pytest.param(lambda wire: wire.unary("GetFlightInfo", b"\xff"), id="GetFlightInfo"),
        pytest.param(lambda wire: wire.unary("GetSchema", b"\xff"), id="GetSchema"),
        pytest.param(lambda wire: wire.unary("PollFlightInfo", b"\xff"), id="PollFlightInfo"),
        pytest.param(lambda wire: wire.down("DoGet", b"\xff"), id="DoGet"),
        pytest.param(lambda wire: wire.down("DoAction", b"\xff"), id="DoAction"),
        pytest.param(lambda wire: wire.down("ListFlights", b""), id="ListFlights"),
        pytest.param(lambda wire: wire.down("ListActions", b""), id="ListActions"),
        pytest.param(lambda wire: list(wire.stream("DoPut", [b"\xff"])), id="DoPut"),
        pytest.param(lambda wire: list(wire.stream("DoExchange", [b"\xff"])), id="DoExchange"),
        pytest.param(lambda wire: list(wire.stream("Handshake", [b"\xff"])), id="Handshake"),
    ],
)
def test_no_call_is_answered_without_a_key(flight: FlightServer, call: Callable[[Wire], object]) -> None:
    with connect(flight, None) as wire, pytest.raises(grpc.RpcError) as refused:
        call(wire)

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
