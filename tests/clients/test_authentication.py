"""Every unmodified client with a valid key, a wrong key and none: rows, or one clear refusal without a retry storm."""

from collections.abc import Callable
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import flightsql
import flightsql.sqlalchemy
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.flight
import pytest
import sqlalchemy

from tests.clients.runtime import FlightServer, adbc_connection, adbc_table, bearer, flight_table, plain_flight
from tests.system.harness import K1, K2, WRONG

SQL = "SELECT count(*) AS n FROM orders"

#: Calls that a client may make before it gives up: server information, the statement, closing.
MAX_REFUSALS = 4

Ask = Callable[[FlightServer, str | None], Any]


def adbc_header(server: FlightServer, key: str | None) -> Any:
    with adbc_connection(server, key) as connection:
        return adbc_table(connection, SQL)["n"][0].as_py()


def adbc_password(server: FlightServer, key: str | None) -> Any:
    settings = {"username": "anybody", "password": key or ""}
    with adbc.connect(server.uri, db_kwargs=settings, autocommit=True) as connection:
        return adbc_table(connection, SQL)["n"][0].as_py()


def dbapi(server: FlightServer, **credentials: str) -> Any:
    client = flightsql.FlightSQLClient(host="127.0.0.1", port=server.flight_port, insecure=True, **credentials)
    try:
        with flightsql.connect(client) as connection, connection.cursor() as cursor:
            cursor.execute(SQL)
            return cursor.fetchone()[0]
    finally:
        client.close()


def dbapi_token(server: FlightServer, key: str | None) -> Any:
    return dbapi(server, **({} if key is None else {"token": key}))


def dbapi_password(server: FlightServer, key: str | None) -> Any:
    return dbapi(server, user="anybody", password=key or "")


def through_sqlalchemy(server: FlightServer, url: str) -> Any:
    engine = sqlalchemy.create_engine(url.format(address=f"127.0.0.1:{server.flight_port}"))
    try:
        with engine.connect() as connection:
            return connection.execute(sqlalchemy.text(SQL)).scalar()
    finally:
        engine.dispose()


def sqlalchemy_token(server: FlightServer, key: str | None) -> Any:
    credential = "" if key is None else f"&token={key}"
    return through_sqlalchemy(server, f"datafusion+flightsql://{{address}}?insecure=True{credential}")


def sqlalchemy_password(server: FlightServer, key: str | None) -> Any:
    return through_sqlalchemy(server, f"datafusion+flightsql://anybody:{key}@{{address}}?insecure=True")


def arrow_header(server: FlightServer, key: str | None) -> Any:
    with plain_flight(server) as client:
        options = pa.flight.FlightCallOptions() if key is None else bearer(key)
        return flight_table(client, SQL, options)["n"][0].as_py()


def arrow_basic(server: FlightServer, key: str | None) -> Any:
    with plain_flight(server) as client:
        name, value = client.authenticate_basic_token(b"anybody", (key or "").encode())
        return flight_table(client, SQL, pa.flight.FlightCallOptions(headers=[(name, value)]))["n"][0].as_py()


class Classic(pa.flight.ClientAuthHandler):  # type: ignore[misc]
    """The handshake of old Flight clients: user and password in a message, and a token in a header of its own."""

    def __init__(self, password: str) -> None:
        super().__init__()
        self._basic = pa.flight.BasicAuth("anybody", password)
        self._token = b""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(self._basic.serialize())
        self._token = incoming.read()

    def get_token(self) -> bytes:
        return self._token


def arrow_classic(server: FlightServer, key: str | None) -> Any:
    with plain_flight(server) as client:
        client.authenticate(Classic(key or ""))
        return flight_table(client, SQL, pa.flight.FlightCallOptions())["n"][0].as_py()


def polars_connection(server: FlightServer, key: str | None) -> Any:
    with adbc_connection(server, key) as connection:
        return pl.read_database(SQL, connection)["n"][0]


def polars_uri(server: FlightServer, key: str | None) -> Any:
    credentials = "" if key is None else f"anybody:{key}@"
    uri = f"flightsql://{credentials}127.0.0.1:{server.flight_port}?transport=tcp"
    return pl.read_database_uri(SQL, uri, engine="adbc")["n"][0]


def pandas_sql(server: FlightServer, key: str | None) -> Any:
    with adbc_connection(server, key) as connection:
        return pd.read_sql(SQL, connection)["n"][0]


# polars.read_database_uri cannot enable autocommit, so the driver warns.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot disable autocommit")

CLIENTS: list[Ask] = [
    adbc_header,
    adbc_password,
    dbapi_token,
    dbapi_password,
    sqlalchemy_token,
    sqlalchemy_password,
    arrow_header,
    arrow_basic,
    arrow_classic,
    polars_connection,
    polars_uri,
    pandas_sql,
]


@pytest.mark.parametrize("ask", [ask for ask in CLIENTS if ask is not polars_uri])
def test_a_valid_key_gives_rows(flight: FlightServer, ask: Ask) -> None:
    assert ask(flight, K2) == 1000


@pytest.mark.parametrize(
    ("ask", "key"),
    # SQLAlchemy treats an empty password as none, and its client then fails before the first call.
    [(ask, key) for ask in CLIENTS for key in (WRONG, None) if (ask, key) != (sqlalchemy_password, None)],
)
def test_without_a_valid_key_a_client_reports_it_and_gives_up(flight: FlightServer, ask: Ask, key: str | None) -> None:
    before = flight.refused_calls()

    with pytest.raises(Exception, match=r"(?i)unauthenticated") as refused:  # each client has a class of its own
        ask(flight, key)

    assert "API key" in str(refused.value)
    assert WRONG not in str(refused.value)
    assert 1 <= flight.refused_calls() - before <= MAX_REFUSALS


def test_adbc_does_not_send_a_key_in_the_address(flight: FlightServer) -> None:
    # So polars.read_database_uri, which takes only an address, cannot present a key.
    with pytest.raises(adbc.ProgrammingError, match="API key is required"):
        polars_uri(flight, K1)
