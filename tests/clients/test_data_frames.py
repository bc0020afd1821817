"""pandas and polars over ADBC: other calls than reading a statement, and refused writes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pandas as pd
import polars as pl
import pytest

from tests.clients.runtime import FlightServer, adbc_connection, adbc_table

COUNT = "SELECT count(*) AS n FROM orders"


@pytest.fixture(params=["plaintext", pytest.param("tls", marks=pytest.mark.exhaustive)])
def connection(request: pytest.FixtureRequest) -> Iterator[adbc.Connection]:
    server: FlightServer = request.getfixturevalue("flight" if request.param == "plaintext" else "flight_tls")
    with adbc_connection(server) as opened:
        yield opened


def test_pandas_reads_a_statement_and_a_table(connection: adbc.Connection) -> None:
    assert pd.read_sql(COUNT, connection)["n"].tolist() == [1000]
    assert pd.read_sql_query("SELECT name FROM orders WHERE id = 7", connection)["name"].tolist() == ["name 7"]
    assert pd.read_sql_table("orders", connection).shape == (1000, 4)
    assert pd.read_sql("big_orders", connection).shape[1] == 4


def test_pandas_keeps_arrow_types_on_request(connection: adbc.Connection) -> None:
    frame = pd.read_sql("SELECT * FROM orders", connection, dtype_backend="pyarrow")

    assert [str(kind) for kind in frame.dtypes] == [
        "int64[pyarrow]",
        "string[pyarrow]",
        "decimal128(12, 3)[pyarrow]",
        "timestamp[us][pyarrow]",
    ]


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:A adbc_driver_manager.dbapi.Cursor was not:ResourceWarning")
@pytest.mark.parametrize(
    ("name", "how"),
    [("orders", "fail"), ("orders", "append"), ("orders", "replace"), ("a_new_table", "append")],
)
def test_pandas_writes_nothing(connection: adbc.Connection, name: str, how: str) -> None:
    with pytest.raises(Exception, match=r"already exists|Failed|read-only|not allowed"):
        pd.DataFrame({"id": [1]}).to_sql(name, connection, index=False, if_exists=how)
    gc.collect()  # here, not in a test that treats the warning as an error

    assert adbc_table(connection, COUNT).to_pylist() == [{"n": 1000}]


@pytest.mark.exhaustive
def test_polars_reads_with_parameters_and_in_batches(connection: adbc.Connection) -> None:
    sql = "SELECT name FROM orders WHERE id BETWEEN ? AND ? ORDER BY id"
    frame = pl.read_database(sql, connection, execute_options={"parameters": [3, 5]})
    frames = pl.read_database("SELECT i FROM range(500000) t(i)", connection, iter_batches=True, batch_size=1000)

    assert frame["name"].to_list() == ["name 3", "name 4", "name 5"]
    assert sum(batch["i"].sum() for batch in frames) == sum(range(500_000))


def test_polars_keeps_dictionaries_and_nested_types(connection: adbc.Connection) -> None:
    sql = "SELECT 'b'::ENUM('a', 'b') AS e, [1, 2] AS l, {'k': 1.5::DECIMAL(9,2)} AS s, TIMESTAMPTZ '2024-01-01' AS t"

    frame = pl.read_database(sql, connection)

    assert isinstance(frame.schema["e"], pl.Categorical)
    assert frame.schema["l"] == pl.List(pl.Int32)
    assert frame.schema["s"] == pl.Struct({"k": pl.Decimal(9, 2)})
    assert frame.schema["t"] == pl.Datetime("us", "UTC")


@pytest.mark.parametrize("how", ["fail", "append", "replace"])
def test_polars_writes_nothing(connection: adbc.Connection, how: Any) -> None:
    with pytest.raises(adbc.Error, match="read-only"):
        pl.DataFrame({"id": [1]}).write_database("orders", connection, if_table_exists=how)

    assert adbc_table(connection, COUNT).to_pylist() == [{"n": 1000}]
