"""
The Flight SQL driver for JDBC, replayed byte by byte: connecting, querying and closing.

The driver authenticates once, with an authorization header on Handshake and one empty HandshakeRequest, and uses the
bearer token in the answer's header. It prepares every statement.

tests/flightapi/test_handshake.py and test_authentication.py show which credentials are refused.
"""

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
