"""Plain pyarrow.flight without Flight SQL: paths, invalid tickets, rows left unread."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight
import pytest

from tests.clients.runtime import FlightServer, bearer, flight_table, plain_flight
from tests.system.harness import K1

Descriptor = pa.flight.FlightDescriptor


@pytest.fixture(params=["plaintext", pytest.param("tls", marks=pytest.mark.exhaustive)])
def server(request: pytest.FixtureRequest) -> FlightServer:
    found: FlightServer = request.getfixturevalue("flight" if request.param == "plaintext" else "flight_tls")
    return found


@pytest.fixture
def client(server: FlightServer) -> Iterator[pa.flight.FlightClient]:
    with plain_flight(server) as opened:
        yield opened


@pytest.mark.parametrize("path", [("orders",), ("main", "orders"), ("runtime", "main", "orders")])
def test_a_path_is_a_dataset(client: pa.flight.FlightClient, path: tuple[str, ...]) -> None:
    info = client.get_flight_info(Descriptor.for_path(*path), bearer(K1))

    assert client.do_get(info.endpoints[0].ticket, bearer(K1)).read_all().num_rows == 1000


@pytest.mark.parametrize("ticket", [b"\xff\xfe", b"\n\x05type.", b"", bytes(100)])
def test_an_invalid_ticket_is_refused(client: pa.flight.FlightClient, ticket: bytes) -> None:
    with pytest.raises((pa.ArrowInvalid, KeyError, pa.flight.FlightError, OSError)) as refused:
        client.do_get(pa.flight.Ticket(ticket), bearer(K1)).read_all()

    assert "Traceback" not in str(refused.value)


def test_a_reader_that_stops_early_frees_its_slot(client: pa.flight.FlightClient) -> None:
    sql = b"SELECT i, repeat('x', 1000) AS s FROM range(10000000) t(i)"
    for _ in range(8):  # more than the execution slots
        reader = client.do_get(pa.flight.Ticket(sql), bearer(K1))
        assert reader.read_chunk().data.num_rows > 0
        reader.cancel()

    assert flight_table(client, "SELECT 1 AS n").num_rows == 1


def test_mixing_tls_and_plaintext_fails_without_hanging(flight: FlightServer, flight_tls: FlightServer) -> None:
    for uri in (f"grpc+tls://127.0.0.1:{flight.flight_port}", f"grpc://127.0.0.1:{flight_tls.flight_port}"):
        with (
            pa.flight.connect(uri, disable_server_verification=True) as client,
            pytest.raises((pa.flight.FlightUnavailableError, pa.flight.FlightInternalError)),
        ):
            flight_table(client, "SELECT 1")
