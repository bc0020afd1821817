"""The TPC-H queries return the same types and values over HTTP, over Flight SQL, and directly on the files."""

import duckdb
import pytest

from tests.clients import tpch
from tests.clients.runtime import FlightServer, adbc_connection, adbc_table, assert_same, flight_table, plain_flight

# test_values.py compares the same paths on single statements.
pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("name", [f"Q{number}" for number in range(1, 23)])
def test_same_rows_everywhere(tpch_flight: FlightServer, name: str) -> None:
    sql = tpch.QUERIES[name]

    over_http = tpch_flight.http_table(sql)

    assert over_http.num_rows > 0
    with plain_flight(tpch_flight) as client:
        assert_same(over_http, flight_table(client, sql))
    with adbc_connection(tpch_flight) as connection:
        assert_same(over_http, adbc_table(connection, sql))
    with duckdb.connect() as engine:
        for table in tpch.TABLES:
            engine.execute(f"CREATE VIEW {table} AS FROM '{tpch_flight.directory / table}.parquet'")
        assert_same(over_http, engine.sql(sql).to_arrow_table())
