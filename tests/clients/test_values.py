"""Values of every type, over HTTP and through each client over Flight SQL: the same schema and the same values."""

from collections.abc import Iterator
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import flightsql
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.flight
import pytest

from tests.clients import spice
from tests.clients.runtime import (
    FlightServer,
    adbc_table,
    assert_same,
    bearer,
    endpoint_of,
    flight_table,
    plain_flight,
)
from tests.flightapi.endpoint import ticket
from tests.system.harness import K1

#: A statement for each kind of value. The names are those of the tests.
VALUES = {
    "booleans": "SELECT * FROM (VALUES (true), (false), (NULL)) t(a)",
    "tinyint": "SELECT (-128)::TINYINT AS a, 255::UTINYINT AS b",
    "smallint": "SELECT (-32768)::SMALLINT AS a, 65535::USMALLINT AS b",
    "integer": "SELECT (-2147483648)::INTEGER AS a, 4294967295::UINTEGER AS b",
    "bigint": "SELECT (-9223372036854775808)::BIGINT AS a, 18446744073709551615::UBIGINT AS b",
    "hugeint": "SELECT 99999999999999999999999999999999999999::HUGEINT AS a, (-1)::HUGEINT AS b",
    "uhugeint": "SELECT 340282366920938463463374607431768211455::UHUGEINT AS a",
    "bignum": "SELECT '123456789012345678901234567890123456789012345678901234567890'::BIGNUM AS a",
    "sum of integers": "SELECT sum(i) AS a FROM range(1000) t(i)",
    "decimal(4,1)": "SELECT 123.4::DECIMAL(4,1) AS a, (-0.1)::DECIMAL(4,1) AS b, NULL::DECIMAL(4,1) AS c",
    "decimal(9,3)": "SELECT 123456.789::DECIMAL(9,3) AS a",
    "decimal(18,6)": "SELECT 123456789012.345678::DECIMAL(18,6) AS a",
    "decimal(38,10)": "SELECT 1234567890123456789012345678.0123456789::DECIMAL(38,10) AS a",
    "float": "SELECT 0.1::FLOAT AS a, '-0.0'::FLOAT AS b, 'nan'::FLOAT AS c, '-inf'::FLOAT AS d",
    "double": "SELECT 0.1::DOUBLE AS a, '-0.0'::DOUBLE AS b, 'nan'::DOUBLE AS c, 'inf'::DOUBLE AS d, 1e308 AS e",
    "varchar": "SELECT 'it''s' AS a, '' AS b, NULL::VARCHAR AS c, chr(0) || 'x' AS d, '\U0001f980\u00e9\u2028' AS e",
    "long varchar": "SELECT repeat('x', 100000) || i AS a FROM range(5) t(i)",
    "blob": "SELECT '\\x00\\xFF'::BLOB AS a, ''::BLOB AS b, NULL::BLOB AS c",
    "bit": "SELECT '0101'::BIT AS a",
    "uuid": "SELECT '8d3f2b1a-4c5d-4e6f-8a9b-0c1d2e3f4a5b'::UUID AS a, NULL::UUID AS b",
    "json": """SELECT '{"a": [1, null]}'::JSON AS a""",
    "enum": "SELECT x::ENUM('low', 'high') AS a FROM (VALUES ('high'), (NULL), ('low'), ('high')) t(x)",
    "enum in a list": "SELECT [x::ENUM('low', 'high')] AS a FROM (VALUES ('high'), ('low')) t(x)",
    "two enums": "SELECT 'a'::ENUM('a', 'b') AS a, 'y'::ENUM('x', 'y') AS b",
    "date": "SELECT DATE '1969-12-31' AS a, DATE '9999-12-31' AS b, DATE '0001-01-01' AS c, NULL::DATE AS d",
    "infinite date": "SELECT 'infinity'::DATE::VARCHAR AS a",
    "time": "SELECT TIME '12:34:56.789012' AS a, TIME '00:00:00' AS b, NULL::TIME AS c",
    "time with zone": "SELECT '12:34:56+02'::TIMETZ AS a",
    "timestamp": "SELECT TIMESTAMP '2024-02-29 12:34:56.789012' AS a, '1900-01-01'::TIMESTAMP AS b, NULL::TIMESTAMP",
    "timestamp_s": "SELECT TIMESTAMP_S '2024-02-29 12:34:56' AS a",
    "timestamp_ms": "SELECT TIMESTAMP_MS '2024-02-29 12:34:56.789' AS a",
    "timestamp_ns": "SELECT TIMESTAMP_NS '2024-02-29 12:34:56.789012345' AS a",
    "timestamp with zone": "SELECT TIMESTAMPTZ '2024-02-29 12:34:56.789+05:30' AS a, NULL::TIMESTAMPTZ AS b",
    "summer time": "SELECT TIMESTAMPTZ '2024-03-31 01:30:00+00' + i * INTERVAL 30 MINUTE AS a FROM range(4) t(i)",
    "zone of a timestamp": "SELECT TIMESTAMP '2024-07-01 12:00' AT TIME ZONE 'Europe/Berlin' AS a",
    "interval": "SELECT INTERVAL '1 year 2 months 3 days 04:05:06.789' AS a, -INTERVAL 1 DAY AS b, NULL::INTERVAL AS c",
    "list": "SELECT [1, NULL, 3] AS a, []::INTEGER[] AS b, NULL::INTEGER[] AS c",
    "list of lists": "SELECT [[1], [], NULL, [2, 3]] AS a",
    "list of text": "SELECT ['x', NULL, ''] AS a FROM range(3)",
    "array": "SELECT [1.5, NULL, 3]::DOUBLE[3] AS a, NULL::DOUBLE[3] AS b",
    "struct": "SELECT {'a': 1, 'b': 'x', 'c': NULL} AS a, NULL::STRUCT(x INTEGER) AS b",
    "struct of lists": "SELECT {'a': [1, 2], 'b': {'c': [{'d': DATE '2024-01-01'}]}} AS a",
    "list of structs": "SELECT [{'a': i, 'b': i / 3}, NULL] AS a FROM range(3) t(i)",
    "map": "SELECT MAP {'k': 1, 'l': NULL} AS a, MAP {}::MAP(VARCHAR, INTEGER) AS b",
    "map of structs": "SELECT MAP {1: {'a': [1.5]}} AS a",
    "null": "SELECT NULL AS a FROM range(3)",
    "all null columns": "SELECT NULL::INTEGER AS a, NULL::VARCHAR AS b, NULL::DECIMAL(9,2) AS c FROM range(3)",
    "empty": "SELECT * FROM orders WHERE false",
    "empty of everything": """SELECT 1::DECIMAL(9,2) AS a, 'x'::ENUM('x') AS b, [1] AS c, {'d': now()} AS d,
        MAP {'e': 1} AS e, TIMESTAMPTZ '2024-01-01' AS f, ''::BLOB AS g WHERE false""",
    "repeated names": "SELECT 1 AS a, 2 AS a, 3 AS a_1",
    "odd names": """SELECT 1 AS " ", 2 AS "a b", 3 AS "\u00e9\U0001f980", 4 AS "__proto__" """,
    "many columns": "SELECT " + ", ".join(f"{i} AS c{i}" for i in range(500)),
    "many batches": "SELECT i AS id, 'row ' || i AS name, i / 7.0 AS ratio FROM range(200000) t(i)",
    "strings and nulls": "SELECT CASE WHEN i % 3 = 0 THEN NULL ELSE 'v' || i END AS a FROM range(10000) t(i)",
    "describe": "DESCRIBE orders",
    "summarize": "SUMMARIZE orders",
    "show": "SHOW TABLES",
    "values": "VALUES (1, 'a'), (2, NULL)",
    "explain": "EXPLAIN SELECT 1",
    "pivot": "PIVOT (SELECT i % 2 AS k, i AS v FROM range(10) t(i)) ON k USING sum(v)",
}

#: Statements whose results every client must read correctly.
WHOLE = {
    "dictionaries": "SELECT (['low', 'high'][1 + i % 2])::ENUM('high', 'mid', 'low') AS a FROM range(50000) t(i)",
    "nested": "SELECT {'k': i, 'l': [i, NULL], 'm': {'n': 'x' || i}} AS a, [[i]] AS b FROM range(5000) t(i)",
    "decimals": "SELECT (i * 1000003 / 1000)::DECIMAL(18,3) AS a FROM range(5000) t(i)",
    "timestamps": "SELECT TIMESTAMPTZ '2024-01-01 00:00:00+00' + i * INTERVAL 1 HOUR AS a FROM range(5000) t(i)",
    "empty": "SELECT id, name, amount, placed_at FROM orders WHERE id < 0",
    "long strings": "SELECT i AS id, repeat(chr(97 + i::INTEGER), 1000000) AS s FROM range(20) t(i)",
}
THREE_MILLION = "SELECT i AS id, (i * 7 % 1000)::INTEGER AS k, i / 8 AS x FROM range(3000000) t(i)"
CHECKSUM = (3_000_000, 4_499_998_500_000, 1_498_500_000)


@pytest.fixture
def client(flight: FlightServer) -> Iterator[pa.flight.FlightClient]:
    with plain_flight(flight) as opened:
        yield opened


@pytest.fixture
def dbapi(flight: FlightServer) -> Iterator[flightsql.FlightSQLClient]:
    client = flightsql.FlightSQLClient(host="127.0.0.1", port=flight.flight_port, token=K1, insecure=True)
    yield client
    client.close()


@pytest.mark.parametrize("sql", [pytest.param(sql, id=name) for name, sql in [*VALUES.items(), *WHOLE.items()]])
def test_same_over_http_and_flight(
    flight: FlightServer, connection: adbc.Connection, client: pa.flight.FlightClient, sql: str
) -> None:
    over_http = flight.http_table(sql)

    info = client.get_flight_info(pa.flight.FlightDescriptor.for_command(sql.encode()), bearer(K1))
    table = client.do_get(info.endpoints[0].ticket, bearer(K1)).read_all()
    assert info.schema.equals(table.schema), f"{info.schema}\n\n{table.schema}"
    assert_same(over_http, table)
    assert_same(over_http, adbc_table(connection, sql))


@pytest.mark.parametrize("name", WHOLE)
def test_polars_pandas_and_flightsql_dbapi(
    flight: FlightServer, connection: adbc.Connection, dbapi: flightsql.FlightSQLClient, name: str
) -> None:
    expected = flight.http_table(WHOLE[name])

    assert pl.read_database(WHOLE[name], connection).equals(pl.DataFrame(expected))
    frame = pd.read_sql(WHOLE[name], connection, dtype_backend="pyarrow")
    pd.testing.assert_frame_equal(frame, expected.to_pandas(types_mapper=pd.ArrowDtype))
    info = dbapi.execute(WHOLE[name])
    assert_same(expected, dbapi.do_get(info.endpoints[0].ticket).read_all())


@pytest.mark.exhaustive
def test_spice(flight_tls: FlightServer, tmp_path: Path) -> None:
    statements = [{"sql": sql, "rows": False} for sql in WHOLE.values()]

    answers = spice.ask(tmp_path, spice.options_of(flight_tls, K1), statements)

    for sql, answer in zip(WHOLE.values(), answers, strict=True):
        assert_same(flight_tls.http_table(sql), spice.read(answer))


def test_pandas_reads_a_statement_and_a_table(connection: adbc.Connection) -> None:
    assert pd.read_sql("SELECT count(*) AS n FROM orders", connection)["n"].tolist() == [1000]
    assert pd.read_sql_query("SELECT name FROM orders WHERE id = 7", connection)["name"].tolist() == ["name 7"]
    assert pd.read_sql_table("orders", connection).shape == (1000, 4)
    assert pd.read_sql("big_orders", connection).shape[1] == 4


@pytest.mark.exhaustive
def test_polars_reads_with_parameters_and_in_batches(connection: adbc.Connection) -> None:
    sql = "SELECT name FROM orders WHERE id BETWEEN ? AND ? ORDER BY id"
    frame = pl.read_database(sql, connection, execute_options={"parameters": [3, 5]})
    frames = pl.read_database("SELECT i FROM range(500000) t(i)", connection, iter_batches=True, batch_size=1000)

    assert frame["name"].to_list() == ["name 3", "name 4", "name 5"]
    assert sum(batch["i"].sum() for batch in frames) == sum(range(500_000))


@pytest.mark.exhaustive
def test_three_million_rows(
    flight_tls: FlightServer,
    connection: adbc.Connection,
    client: pa.flight.FlightClient,
    dbapi: flightsql.FlightSQLClient,
    tmp_path: Path,
) -> None:
    (answer,) = spice.ask(tmp_path, spice.options_of(flight_tls, K1), [{"sql": THREE_MILLION, "rows": False}])
    info = dbapi.execute(THREE_MILLION)
    for table in (
        adbc_table(connection, THREE_MILLION),
        flight_table(client, THREE_MILLION),
        dbapi.do_get(info.endpoints[0].ticket).read_all(),
        spice.read(answer),
    ):
        assert (table.num_rows, pa.compute.sum(table["id"]).as_py(), pa.compute.sum(table["k"]).as_py()) == CHECKSUM
    for frame in (pl.read_database(THREE_MILLION, connection), pd.read_sql(THREE_MILLION, connection)):
        assert (len(frame), frame["id"].sum(), frame["k"].sum()) == CHECKSUM


#: Results of more than 10 MB.
LARGE = {
    "text": "SELECT i, repeat('x', 2000) AS s FROM range(20000) t(i)",
    "uneven": "SELECT repeat('x', CASE WHEN i % 5000 = 7 THEN 3000000 ELSE 1 END) AS s FROM range(20000) t(i)",
    "lists": "SELECT [repeat('x', 500), repeat('y', 500)] AS l FROM range(30000)",
    "structs": "SELECT {'a': {'b': repeat('x', 1000)}, 'c': range(50)} AS s FROM range(20000)",
    "maps": "SELECT MAP {'k': repeat('x', 1000)} AS m FROM range(30000)",
    "bytes": "SELECT repeat('x', 1000)::BLOB AS b FROM range(30000)",
    "arrays": "SELECT array_value(" + ", ".join(["i"] * 100) + ") AS a FROM range(50000) t(i)",
    "columns": "SELECT " + ", ".join(f"i AS c{n}" for n in range(2000)) + " FROM range(5000) t(i)",
    "rows": "SELECT i FROM range(3000000) t(i)",
}


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(sql, id=name, marks=[] if name == "uneven" else pytest.mark.exhaustive)
        for name, sql in LARGE.items()
    ],
)
def test_no_message_is_over_four_mebibytes(flight: FlightServer, sql: str) -> None:
    with endpoint_of(flight) as endpoint:
        sizes = [len(message) for message in endpoint.works("DoGet", ticket(sql.encode())).messages]

    assert sum(sizes) > 10_000_000
    assert max(sizes) < 4 * 1024 * 1024
