"""The TPC-H queries return the same types and values over HTTP, over Flight SQL, and directly on the files."""

import duckdb
import pytest

from tests.clients import tpch
from tests.clients.runtime import FlightServer, adbc_connection, adbc_table, assert_same, flight_table, plain_flight
from tests.system.harness import K1

# test_values.py compares the same paths on single statements.
pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("name", tpch.QUERIES)
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


def test_sizes_are_those_of_the_specification(tpch_flight: FlightServer) -> None:
    assert list(tpch.QUERIES) == [f"Q{number}" for number in range(1, 23)]
    counts = {name: tpch_flight.rows(f"SELECT count(*) AS n FROM {name}", K1)[0]["n"] for name in tpch.TABLES}

    assert counts == {
        "customer": 15_000,
        "lineitem": 600_572,
        "nation": 25,
        "orders": 150_000,
        "part": 20_000,
        "partsupp": 80_000,
        "region": 5,
        "supplier": 1000,
    }
