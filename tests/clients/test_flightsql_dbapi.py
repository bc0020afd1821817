"""flightsql-dbapi: its DB-API, its metadata calls, and its SQLAlchemy dialect."""

from collections.abc import Iterator
from typing import Any

import flightsql
import flightsql.sqlalchemy
import pyarrow as pa
import pyarrow.flight
import pytest
import sqlalchemy

from tests.clients.runtime import FlightServer
from tests.system.harness import K1


@pytest.fixture(params=["plaintext", pytest.param("tls", marks=pytest.mark.exhaustive)])
def client(request: pytest.FixtureRequest) -> Iterator[flightsql.FlightSQLClient]:
    if request.param == "plaintext":
        server: FlightServer = request.getfixturevalue("flight")
        opened = flightsql.FlightSQLClient(host="127.0.0.1", port=server.flight_port, token=K1, insecure=True)
    else:
        server = request.getfixturevalue("flight_tls")
        assert server.trust is not None
        roots = server.trust.read_bytes()
        opened = flightsql.FlightSQLClient(
            host="localhost", port=server.flight_port, user="anybody", password=K1, tls_root_certs=roots
        )
    yield opened
    opened.close()


@pytest.fixture
def connection(client: flightsql.FlightSQLClient) -> Iterator[Any]:
    with flightsql.connect(client) as opened:
        yield opened


def read(client: flightsql.FlightSQLClient, info: pa.flight.FlightInfo) -> pa.Table:
    (endpoint,) = info.endpoints
    return client.do_get(endpoint.ticket).read_all()


def test_parameters_arrive_as_unions(connection: Any) -> None:
    cursor = connection.execute("SELECT ? AS i, ? AS f, ? AS s, ? AS b", (7, 1.5, "it's; DROP TABLE orders", True))

    assert cursor.fetchall() == [[7, 1.5, "it's; DROP TABLE orders", True]]


def test_a_prepared_statement_runs_again_with_other_parameters(client: flightsql.FlightSQLClient) -> None:
    with client.prepare("SELECT name FROM orders WHERE id = ?") as statement:
        for number in (3, 5):
            info = statement.execute(pa.record_batch({"0": [number]}))
            assert read(client, info).to_pylist() == [{"name": f"name {number}"}]


def test_metadata(client: flightsql.FlightSQLClient) -> None:
    assert read(client, client.get_catalogs()).to_pylist() == [{"catalog_name": "runtime"}]
    assert read(client, client.get_db_schemas()).to_pylist() == [{"catalog_name": "runtime", "db_schema_name": "main"}]
    assert {row["table_type"] for row in read(client, client.get_table_types()).to_pylist()} == {"TABLE", "VIEW"}
    tables = read(client, client.get_tables(table_types=["VIEW"]))
    assert tables["table_name"].to_pylist() == ["big_orders"]
    types = {row["type_name"] for row in read(client, client.get_xdbc_type_info(None)).to_pylist()}
    assert {"VARCHAR", "BIGINT", "TIMESTAMP"} <= types
    table = flightsql.TableRef(table="orders")
    for keys in (client.get_primary_keys, client.get_exported_keys, client.get_imported_keys):
        assert read(client, keys(table)).num_rows == 0
    assert read(client, client.get_cross_reference(table, table)).num_rows == 0


def test_schemas_of_tables_are_those_of_their_rows(client: flightsql.FlightSQLClient) -> None:
    tables = read(client, client.get_tables(include_schema=True)).to_pylist()

    assert [table["table_name"] for table in tables] == ["big_orders", "orders"]
    for table in tables:
        with pa.ipc.open_stream(table["table_schema"]) as reader:
            schema = reader.schema
        assert schema.equals(read(client, client.execute(f"SELECT * FROM {table['table_name']} LIMIT 0")).schema)


@pytest.fixture
def url(flight: FlightServer) -> str:
    return f"datafusion+flightsql://127.0.0.1:{flight.flight_port}?insecure=True&token={K1}"


@pytest.fixture
def engine(url: str) -> Iterator[sqlalchemy.engine.Engine]:
    opened = sqlalchemy.create_engine(url)
    yield opened
    opened.dispose()


def test_sqlalchemy_reflects_a_table_and_selects_from_it(engine: sqlalchemy.engine.Engine) -> None:
    orders = sqlalchemy.Table("orders", sqlalchemy.MetaData(), schema="main", autoload_with=engine)
    assert [(column.name, type(column.type).__name__) for column in orders.columns] == [
        ("id", "BIGINT"),
        ("name", "TEXT"),
        ("amount", "DECIMAL"),
        ("placed_at", "TIMESTAMP"),
    ]

    statement = sqlalchemy.select(orders.c.name).where(orders.c.id.between(3, 4)).order_by(orders.c.id.desc())
    with engine.connect() as connection:
        rows = connection.execute(statement).fetchall()

    assert [tuple(row) for row in rows] == [("name 4",), ("name 3",)]


def test_sqlalchemy_inspects(engine: sqlalchemy.engine.Engine) -> None:
    inspector = sqlalchemy.inspect(engine)

    assert inspector.get_schema_names() == ["main"]
    assert set(inspector.get_table_names(schema="main")) == {"orders", "big_orders"}
    assert inspector.has_table("orders")
    assert [column["name"] for column in inspector.get_columns("big_orders")] == ["id", "name", "amount", "placed_at"]


def test_sqlalchemy_prepares_on_request(url: str) -> None:
    engine = sqlalchemy.create_engine(f"{url}&feature-sqlalchemy-prepared-statements=on")
    statement = sqlalchemy.text("SELECT name FROM orders WHERE id = :id")
    try:
        with engine.connect() as connection:
            assert connection.execute(statement, {"id": 7}).scalar() == "name 7"
    finally:
        engine.dispose()


def test_sqlalchemy_binds_null_unless_it_prepares_and_shows_messages(engine: sqlalchemy.engine.Engine) -> None:
    # docs/flight-sql.md warns of this. If this test fails, the dialect has been fixed: remove the warning.
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT :x AS x"), {"x": 7}).scalar() is None
        with pytest.raises(Exception, match=r"(?s)nope"):
            connection.execute(sqlalchemy.text("SELECT nope FROM orders"))
