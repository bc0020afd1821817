"""adbc-driver-flightsql through its DB-API: statements, parameters, metadata, and refused writes."""

import datetime as dt
import decimal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pytest
from adbc_driver_flightsql import DatabaseOptions

from tests.clients.runtime import FlightServer, adbc_connection, adbc_table
from tests.system.harness import K1, PATIENCE_S, wait_for

#: Runs until it is cancelled.
ENDLESS = "SELECT count(*) AS n FROM range(1000000000000) t(i) WHERE i % 7 = 8"


def test_execute_and_fetch(connection: adbc.Connection) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, name FROM orders ORDER BY id LIMIT 3")

        assert [column[0] for column in cursor.description or ()] == ["id", "name"]
        assert cursor.fetchone() == (0, "name 0")
        assert cursor.fetchall() == [(1, "name 1"), (2, "name 2")]


def test_a_failed_statement_leaves_the_connection_usable(connection: adbc.Connection) -> None:
    with pytest.raises(adbc.ProgrammingError, match="INVALID_ARGUMENT"):
        adbc_table(connection, "SELECT nope FROM orders")
    with (
        connection.cursor() as cursor,
        pytest.raises(adbc.ProgrammingError, match=r"INVALID_ARGUMENT.*nope.*(?s:.)*Prepare"),
    ):
        cursor.adbc_prepare("SELECT nope FROM orders")

    assert adbc_table(connection, "SELECT 1 AS n").to_pylist() == [{"n": 1}]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="null"),
        pytest.param(True, id="boolean"),
        pytest.param(-(2**63), id="integer"),
        pytest.param(1.5, id="double"),
        pytest.param("it's; DROP TABLE orders --", id="text"),
        pytest.param("", id="empty text"),
        pytest.param("\U0001f980 \u00e9", id="text beyond ASCII"),
        pytest.param(b"\x00\xff", id="bytes"),
        pytest.param(dt.date(2024, 2, 29), id="date"),
        pytest.param(dt.datetime.fromisoformat("2024-02-29T12:34:56.789"), id="timestamp"),
        pytest.param(dt.datetime(2024, 2, 29, 12, 34, 56, tzinfo=dt.UTC), id="instant"),
        pytest.param(dt.time(12, 34, 56, 789000), id="time"),
        pytest.param(decimal.Decimal("12345.678"), id="decimal"),
        pytest.param([1, None, 3], id="list"),
        pytest.param({"a": 1, "b": "x"}, id="struct"),
    ],
)
def test_parameters_round_trip(connection: adbc.Connection, value: Any) -> None:
    assert adbc_table(connection, "SELECT ? AS a", (value,))["a"].to_pylist() == [value]


def test_parameters_by_position_and_number_and_as_an_arrow_batch(connection: adbc.Connection) -> None:
    batch = pa.record_batch({"0": pa.array([7], pa.int16()), "1": pa.array(["x"], pa.large_string())})

    assert adbc_table(connection, "SELECT $2 || $1 AS a", ("x", "y")).to_pylist() == [{"a": "yx"}]
    assert adbc_table(
        connection, "SELECT count(*) AS n FROM orders WHERE id BETWEEN ? AND ?", (10, 19)
    ).to_pylist() == [{"n": 10}]
    assert adbc_table(connection, "SELECT ? AS a, ? AS b", batch).to_pylist() == [{"a": 7, "b": "x"}]


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        pytest.param("SELECT ? AS a", (1, 2), id="too many"),
        pytest.param("SELECT ? + ? AS a", (1,), id="too few"),
        pytest.param("SELECT ? AS a", None, id="none given"),
        pytest.param("SELECT 1 AS a", (1,), id="none wanted"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(connection: adbc.Connection, sql: str, parameters: Any) -> None:
    with pytest.raises(adbc.Error, match="INVALID_ARGUMENT"):
        adbc_table(connection, sql, parameters)


ROWS = pa.table({"id": [1, 2, 3]})
REFUSED = r"UNAUTHORIZED|NOT_IMPLEMENTED|PERMISSION"


@pytest.mark.parametrize(
    ("write", "match"),
    [
        pytest.param(lambda c: c.executemany("INSERT INTO orders VALUES (?)", [(1,), (2,)]), REFUSED, id="executemany"),
        pytest.param(lambda c: c.executemany("SELECT ? AS a", [(1,), (2,)]), ".", id="executemany of a SELECT"),
        *[
            pytest.param(partial(adbc.Cursor.adbc_ingest, table_name="orders", data=ROWS, mode=mode), REFUSED, id=mode)
            for mode in ("create", "append", "replace", "create_append")
        ],
        *[
            pytest.param(partial(adbc.Cursor.execute, operation=sql), r"(?i)only.*read|not allowed|SELECT", id=sql)
            for sql in ("INSERT INTO orders VALUES (1)", "DELETE FROM orders", "CREATE TABLE x AS SELECT 1")
        ],
    ],
)
def test_writes_are_refused(connection: adbc.Connection, write: Callable[[adbc.Cursor], object], match: str) -> None:
    with connection.cursor() as cursor, pytest.raises(adbc.Error, match=match):
        write(cursor)

    assert adbc_table(connection, "SELECT count(*) AS n FROM orders").to_pylist() == [{"n": 1000}]


def test_transactions_are_refused(flight: FlightServer) -> None:
    with (
        pytest.warns(Warning, match="Cannot disable autocommit"),
        adbc.connect(flight.uri, db_kwargs={DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {K1}"}) as connection,
    ):
        assert adbc_table(connection, "SELECT 1 AS n").to_pylist() == [{"n": 1}]


def running(server: FlightServer) -> bool:
    return any(row["sql"] == ENDLESS for row in server.get("/v1/sql/active", headers={"X-API-Key": K1}).json())


def objects(connection: adbc.Connection, **options: Any) -> Any:
    return connection.adbc_get_objects(**options).read_all().to_pylist()


def test_metadata_lists_catalog_schema_tables_and_columns(connection: adbc.Connection) -> None:
    (catalog,) = objects(connection, depth="all")

    assert catalog["catalog_name"] == "runtime"
    assert [catalog["catalog_name"] for catalog in objects(connection, depth="catalogs")] == ["runtime"]
    (shallow,) = objects(connection, depth="db_schemas")
    assert "main" in {schema["db_schema_name"] for schema in shallow["catalog_db_schemas"]}
    assert sorted(connection.adbc_get_table_types()) == ["TABLE", "VIEW"]
    info = connection.adbc_get_info()
    assert info["vendor_name"]
    assert info["driver_name"] == "ADBC Flight SQL Driver - Go"
    schemas = {schema["db_schema_name"]: schema["db_schema_tables"] for schema in catalog["catalog_db_schemas"]}
    tables = {table["table_name"]: table for table in schemas["main"]}
    assert set(tables) == {"orders", "big_orders"}
    columns = [column["column_name"] for column in tables["orders"]["table_columns"]]
    assert columns == ["id", "name", "amount", "placed_at"]
    assert [column["ordinal_position"] for column in tables["orders"]["table_columns"]] == [1, 2, 3, 4]
    types = [column["xdbc_type_name"] for column in tables["orders"]["table_columns"]]
    assert types == ["BIGINT", "VARCHAR", "DECIMAL(12,3)", "TIMESTAMP"]
    assert {name: table["table_type"] for name, table in tables.items()} == {"orders": "TABLE", "big_orders": "VIEW"}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        pytest.param({"table_name_filter": "%orders"}, {"orders", "big_orders"}, id="any characters"),
        pytest.param({"table_name_filter": "order_"}, {"orders"}, id="any character"),
        pytest.param({"catalog_filter": "other"}, set(), id="other catalog"),
        pytest.param({"db_schema_filter": "other"}, set(), id="other schema"),
    ],
)
def test_objects_filters(connection: adbc.Connection, options: dict[str, Any], found: set[str]) -> None:
    names = {
        table["table_name"]
        for catalog in objects(connection, depth="tables", **options)
        for schema in catalog["catalog_db_schemas"] or ()
        for table in schema["db_schema_tables"] or ()
    }

    assert names == found


@pytest.mark.parametrize(
    ("name", "where"),
    [("orders", {}), ("big_orders", {"db_schema_filter": "main"}), ("orders", {"catalog_filter": "runtime"})],
)
def test_table_schema_equals_that_of_a_select(connection: adbc.Connection, name: str, where: dict[str, str]) -> None:
    schema = connection.adbc_get_table_schema(name, **where)

    assert schema.equals(adbc_table(connection, f"SELECT * FROM {name} LIMIT 0").schema)
    with pytest.raises(adbc.Error, match="NOT_FOUND"):
        connection.adbc_get_table_schema("nope")


def test_schema_of_a_statement_without_running_it(connection: adbc.Connection) -> None:
    with connection.cursor() as cursor:
        schema = cursor.adbc_execute_schema(ENDLESS)

    assert schema.names == ["n"]
    assert schema.types == [pa.int64()]


def test_prepare_describes_the_parameters(connection: adbc.Connection) -> None:
    with connection.cursor() as cursor:
        schema = cursor.adbc_prepare("SELECT id FROM orders WHERE id = ? AND name = ?")
        assert schema is None or len(schema) == 2
        cursor.execute("SELECT id FROM orders WHERE id = ? AND name = ?", (3, "name 3"))
        assert cursor.fetchall() == [(3,)]


def test_partitions(connection: adbc.Connection) -> None:
    with connection.cursor() as cursor:
        partitions, schema = cursor.adbc_execute_partitions("SELECT id FROM orders")
        ids = []
        for partition in partitions:
            cursor.adbc_read_partition(partition)
            ids += cursor.fetch_arrow_table()["id"].to_pylist()

    assert schema.names == ["id"]
    assert sorted(ids) == list(range(1000))


def test_cancel_ends_the_statement_on_both_sides(flight: FlightServer, connection: adbc.Connection) -> None:
    def fetch() -> None:
        cursor.execute(ENDLESS)
        cursor.fetchall()

    with connection.cursor() as cursor, ThreadPoolExecutor() as pool:
        fetched = pool.submit(fetch)
        wait_for(lambda: running(flight), "the statement to run")

        cursor.adbc_cancel()

        with pytest.raises(adbc.Error, match="ancel"):
            fetched.result(PATIENCE_S)
    wait_for(lambda: not running(flight), "the slot to be free")


def test_thirty_connections_at_once(flight: FlightServer) -> None:
    def run(number: int) -> int:
        with adbc_connection(flight) as connection:
            return int(adbc_table(connection, f"SELECT sum(id) + {number} AS n FROM orders")["n"][0].as_py())

    with ThreadPoolExecutor(30) as pool:
        assert list(pool.map(run, range(30), timeout=PATIENCE_S)) == [499500 + number for number in range(30)]
