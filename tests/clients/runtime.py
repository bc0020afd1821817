"""A whole runtime with Flight SQL, and the clients whose results tests compare: HTTP, plain Arrow Flight and ADBC."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import grpc
import pyarrow as pa
import pyarrow.flight
from adbc_driver_flightsql import DatabaseOptions

from tests.flightapi.endpoint import Endpoint
from tests.system.harness import K1, Server, free_port

ARROW_STREAM = "application/vnd.apache.arrow.stream"


@dataclass
class FlightServer(Server):
    """A runtime of `serve`. `changes` replaces sections of the configuration, `certificate` turns TLS on."""

    flight_port: int = field(default_factory=free_port)
    changes: dict[str, Any] = field(default_factory=dict)
    key_file: Path | None = None  # of the certificate `trust`

    def __post_init__(self) -> None:
        super().__post_init__()
        runtime: dict[str, Any] = {"flight": {"enabled": True, "bind": f"127.0.0.1:{self.flight_port}"}}
        if self.trust:
            tls = {"enabled": True, "certificate_file": str(self.trust), "key_file": str(self.key_file)}
            runtime["tls"] = tls
        runtime |= self.changes.get("runtime", {})
        self.changes = {**self.changes, "runtime": runtime}

    @property
    def uri(self) -> str:
        """The address for Flight clients."""
        return f"grpc+tls://localhost:{self.flight_port}" if self.trust else f"grpc://127.0.0.1:{self.flight_port}"

    def refused_calls(self) -> int:
        """Return the number of unauthenticated calls so far, counted in the audit log."""
        return len(re.findall(r"authentication failed", self.output()))

    def failed_statements(self) -> int:
        """Return the number of failed statements over Flight so far. They are logged before the client sees them."""
        return len(re.findall(r"protocol=flight-sql .*outcome=(?!ok |client_closed_request )", self.output()))

    def http_table(self, sql: str) -> pa.Table:
        """Return the result over HTTP, as Arrow."""
        answer = self.sql(sql, K1, Accept=ARROW_STREAM)
        assert answer.status_code == 200, answer.text
        with pa.ipc.open_stream(answer.content) as reader:
            return reader.read_all()


@contextmanager
def endpoint_of(server: FlightServer) -> Iterator[Endpoint]:
    """The Flight SQL endpoint of *server*, message by message, without TLS."""
    elsewhere: Any = None  # The server runs in other processes.
    with grpc.insecure_channel(f"127.0.0.1:{server.flight_port}") as channel:
        yield Endpoint(server.flight_port, elsewhere, channel)


def bearer(key: str) -> pa.flight.FlightCallOptions:
    """Return the call options that present *key*."""
    return pa.flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {key}".encode())])


@contextmanager
def plain_flight(server: FlightServer) -> Iterator[pa.flight.FlightClient]:
    """A client of Arrow Flight without Flight SQL."""
    options = {"tls_root_certs": server.trust.read_bytes()} if server.trust else {}
    with pa.flight.connect(server.uri, **options) as client:
        yield client


def flight_table(
    client: pa.flight.FlightClient, sql: str, options: pa.flight.FlightCallOptions | None = None
) -> pa.Table:
    """Return the result of *sql*, sent as the text of a descriptor's command, by default with the first key."""
    options = options or bearer(K1)
    info = client.get_flight_info(pa.flight.FlightDescriptor.for_command(sql.encode()), options)
    (endpoint,) = info.endpoints
    return client.do_get(endpoint.ticket, options).read_all()


@contextmanager
def adbc_connection(server: FlightServer, key: str | None = K1, **options: str) -> Iterator[adbc.Connection]:
    """An ADBC connection that sends *key* in the authorization header."""
    settings = dict(options)
    if key is not None:
        settings[DatabaseOptions.AUTHORIZATION_HEADER.value] = f"Bearer {key}"
    if server.trust:
        settings[DatabaseOptions.TLS_ROOT_CERTS.value] = server.trust.read_text()
    with adbc.connect(server.uri, db_kwargs=settings, autocommit=True) as connection:
        yield connection


def adbc_table(connection: adbc.Connection, sql: str, parameters: Any = None) -> pa.Table:
    """Return the result of *sql*."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetch_arrow_table()


def assert_same(left: pa.Table, right: pa.Table) -> None:
    """Compare names, types, nullability and values. NaN equals NaN, and batch boundaries do not matter."""
    assert left.schema.equals(right.schema), f"{left.schema}\n\n{right.schema}"
    left.validate(full=True)
    right.validate(full=True)
    if left.equals(right):
        return
    assert repr(left.to_pylist()) == repr(right.to_pylist())
