"""
The Flight SQL driver for JDBC, replayed call by call: connecting, querying and closing.

The driver authenticates once, with an authorization header on Handshake and one empty HandshakeRequest, and uses the
bearer token in the answer's header. It prepares every statement.

tests/flightapi/test_handshake.py and test_authentication.py show which credentials are accepted and refused.
"""

import base64

from tests.clients.runtime import FlightServer, endpoint_of
from tests.flightapi.endpoint import action, executing, schema_of
from tests.system.harness import K1


def test_connect_query_and_close(flight: FlightServer) -> None:
    credentials = base64.b64encode(f"anybody:{K1}".encode()).decode()
    with endpoint_of(flight) as endpoint:
        greeted = endpoint.works("Handshake", b"", metadata=(("authorization", f"Basic {credentials}"),))
        created = endpoint.prepare("SELECT id, name FROM orders WHERE id < 2 ORDER BY id")
        handle = created.prepared_statement_handle
        table = endpoint.table(endpoint.info(executing(handle)))
        closed = endpoint.close(handle)
        endpoint.works("DoAction", action("CloseSession"))

    assert greeted.messages in ([], [b""])
    assert greeted.initial["authorization"] == f"Bearer {K1}"  # which the other calls present
    assert not created.is_update  # the driver would run it as an update
    assert schema_of(created.dataset_schema).names == ["id", "name"]
    assert table.to_pylist() == [{"id": 0, "name": "name 0"}, {"id": 1, "name": "name 1"}]
    assert closed in ([], [b""])
