"""Checks S01 to S33 over HTTP: refused with a reason, without effect, and without a word about this machine."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import K1, K2, Server, raw_request, status_of

# Engine workers in processes of their own, and the engine in the process that answers.
pytestmark = pytest.mark.parametrize("server", ["serve", "gunicorn"], indirect=True)

CHECKSUM = "SELECT count(*) AS n, sum(id)::BIGINT AS s FROM orders"
UNCHANGED = [{"n": 1000, "s": 499500}]

#: The others of each check are in tests/queryengine/data/refused.txt; here is what is not there, or one of them.
REFUSED = {
    "S01": [
        "SELECT * FROM read_blob('/etc/passwd')",
        "SELECT * FROM read_json('/etc/passwd')",
        "SELECT * FROM read_parquet(['/tmp/a.parquet'])",
        "SELECT * FROM parquet_metadata('/tmp/x')",
        "SELECT (SELECT content FROM read_text('/etc/passwd'))",
        "WITH x AS MATERIALIZED (FROM read_text('/etc/passwd')) FROM x",
    ],
    "S03": [
        "SELECT * FROM 'https://example.org/x.csv'",
        "SELECT * FROM 'orders*.parquet'",
        "SELECT * FROM '/proc/self/maps'",
        "DESCRIBE 'orders.parquet'",
        "SUMMARIZE '/etc/passwd'",
    ],
    "S04": [
        "COPY (SELECT 1) TO '{tmp}/x'",
        "COPY orders FROM '{tmp}/x'",
        "EXPORT DATABASE '{tmp}/x'",
        "IMPORT DATABASE '{tmp}/x'",
        "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '{tmp}/x'",
        "COPY (SELECT 1) TO '{tmp}/x' (FORMAT parquet)",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{tmp}/x'",
        "WITH x AS (COPY (SELECT 1) TO '{tmp}/x') SELECT 1",
    ],
    "S05": [
        "ATTACH '{tmp}/x.db'",
        "USE runtime.main",
        "ATTACH '{tmp}/x.db' (READ_ONLY)",
        "ATTACH OR REPLACE ':memory:' AS runtime",
    ],
    "S06": [
        "LOAD '{tmp}/x.duckdb_extension'",
    ],
    "S07": [
        "SELECT * FROM read_csv('http://{trap}/x.csv')",
        "SELECT * FROM 'http://{trap}/x.parquet'",
        "ATTACH 'postgres:host={trap}'",
        "SELECT * FROM read_parquet('s3://{trap}/x')",
        "SELECT * FROM read_text('hf://{trap}/x')",
        "COPY (SELECT 1) TO 'http://{trap}/x'",
    ],
    "S08": [
        "SET memory_limit='100GB'",
        "SET threads=64",
        "SET enable_external_access=true",
        "PRAGMA memory_limit='1GB'",
        "SET lock_configuration=false",
        "SET max_expression_depth=1000000",
        "SET GLOBAL threads=1",
        "SET TimeZone='Asia/Tokyo'",
        "SET schema='main'",
    ],
    "S10": [
        "SELECT * FROM which_secret('s3://x', 's3')",
        "SELECT current_setting('temp_directory')",
        "SELECT * FROM duckdb_variables()",
    ],
    "S12": [
        "SELECT * FROM con",
        "SELECT * FROM query_table('df')",
        "SELECT * FROM config",
        "SELECT * FROM os",
    ],
    "S13": [
        "SELECT 1;;SELECT 2;",
        "SELECT 1/* ; */;--\nDELETE FROM orders",
    ],
    "S14": [
        "UPDATE orders SET id = 0",
        "MERGE INTO orders USING orders o ON true WHEN MATCHED THEN DELETE",
        "CREATE TABLE x AS SELECT 1",
        "ALTER TABLE orders ADD COLUMN x INT",
        "DROP TABLE orders",
        "COMMENT ON TABLE orders IS 'x'",
        "CREATE INDEX i ON orders(id)",
        "CREATE SCHEMA s",
    ],
    "S15": [
        "WITH x AS (INSERT INTO orders SELECT * FROM orders RETURNING *) SELECT * FROM x",
        "WITH x AS (UPDATE orders SET id = 0 RETURNING *) SELECT 1",
        "WITH x AS (DELETE FROM orders) SELECT 1",
        "SELECT * FROM (WITH x AS (DELETE FROM orders RETURNING *) SELECT * FROM x)",
        "WITH y AS (WITH x AS (DELETE FROM orders RETURNING *) FROM x) FROM y",
    ],
    "S17": [
        "EXPLAIN ANALYZE INSERT INTO orders SELECT * FROM orders",
        "EXPLAIN (ANALYZE) DELETE FROM orders",
        "EXPLAIN DROP TABLE orders",
        "EXPLAIN ANALYZE SELECT * FROM read_csv('/etc/passwd')",
    ],
    "S18": [
        "EXECUTE p(1)",
    ],
    "S20": [
        "CREATE TEMP VIEW orders AS SELECT 666 AS id",
        "CREATE TEMP TABLE orders AS SELECT 1 AS id",
        "CREATE OR REPLACE VIEW orders AS SELECT 1 AS id",
        "CREATE FUNCTION sum(x) AS 1",
    ],
    "S21 text as SQL": [
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM query_table(['orders'])",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
        "SELECT * FROM orders WHERE id IN (SELECT * FROM query('SELECT 1'))",
        "PRAGMA json_execute_serialized_sql('x')",
        "SELECT list_transform([1], lambda x: write_log('x'))",
    ],
    "S24": [
        "SELECT * FROM sqlite_master",
        "SELECT * FROM pg_class",
        "SELECT * FROM pg_catalog.pg_class",
        "SELECT * FROM duckdb_tables()",
        "SELECT * FROM duckdb_views",
        "SELECT * FROM duckdb_databases()",
        "SELECT * FROM _s0.main.orders",
        "SELECT * FROM _s1.orders",
        "SELECT * FROM _catalog.main.tables",
        "SELECT * FROM memory.main.orders",
        "SELECT * FROM system.main.duckdb_tables",
        "SELECT * FROM temp.main.x",
        "SELECT * FROM runtime.information_schema.views",
        "SHOW TABLES FROM _s0",
        "WITH a AS (SELECT * FROM duckdb_settings), duckdb_settings AS (SELECT 1) SELECT * FROM a",
    ],
}
REFUSALS = [
    pytest.param(sql, id=f"{check} {number}") for check, sqls in REFUSED.items() for number, sql in enumerate(sqls, 1)
]


@pytest.fixture(scope="module")
def trap() -> Iterator[socket.socket]:
    """A listener that nobody may connect to."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        yield listener
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("sql", REFUSALS)
def test_refused_without_effect(server: Server, trap: socket.socket, tmp_path: Path, sql: str) -> None:
    filled = sql.replace("{tmp}", str(tmp_path)).replace("{trap}", f"127.0.0.1:{trap.getsockname()[1]}")

    answer = server.sql(filled, K1)

    assert answer.status_code in {400, 403}, answer.text
    body = answer.json()
    assert body["detail"]
    assert set(body) == {"type", "title", "status", "detail", "code", "request_id"}
    for leak in (str(server.directory), "site-packages", "Traceback", ".duckdb'", K1):
        assert leak not in answer.text
    assert list(tmp_path.iterdir()) == []
    assert server.rows(CHECKSUM, K2) == UNCHANGED
    assert server.rows("SELECT abs(-1) AS a", K2) == [{"a": 1}]


@pytest.mark.parametrize("body", ["", "   ", ";;;", "-- only comment", "/* only */", "/* a /* b */ c */ ;", "\ufeff"])
def test_s23_nothing_to_run_is_400(server: Server, body: str) -> None:
    answer = server.sql(body)

    assert answer.status_code == 400
    assert answer.json()["code"] in {"empty_statement", "sql_syntax_error"}


@pytest.mark.parametrize(
    "sql",
    ["SELECT ';' AS a", "SELECT 1 AS a;", "/* ; */ SELECT 1 AS a -- ;", "SELECT $$;$$ AS a", "\nSELECT 1 AS a ; ;\n"],
)
def test_s13_semicolons_that_separate_nothing_are_fine(server: Server, sql: str) -> None:
    assert len(server.rows(sql)) == 1


def parameters(server: Server, body: bytes) -> bytes:
    lines: list[tuple[str, str | bytes]] = [("X-API-Key", K1), ("Content-Type", "application/json")]
    return server.raw(raw_request("POST", "/v1/sql", lines, body))


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b'{"sql":"SELECT ? AS a","parameters":["\'; DROP TABLE orders"]}', b'[{"a":"\'; DROP TABLE orders"}]'),
        (b'{"sql":"SELECT $1 AS a, $2 AS b","parameters":[1,null]}', b'[{"a":1,"b":null}]'),
        (b'{"sql":"SELECT $x AS a","parameters":{"x":true}}', b'[{"a":true}]'),
        (b'{"sql":"SELECT ? AS a","parameters":[170141183460469231731687303715884105727]}', b"170141183460469231731"),
        (b'{"sql":"SELECT ? AS a","parameters":[1.5]}', b'[{"a":1.5}]'),
        (b'{"sql":"SELECT 1 AS a","parameters":null}', b'[{"a":1}]'),
        (b'{"sql":"SELECT 1 AS a","parameters":[]}', b'[{"a":1}]'),
    ],
)
def test_s29_parameters_are_data(server: Server, body: bytes, answer: bytes) -> None:
    assert answer in parameters(server, body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"sql":"SELECT ?","parameters":[]}',
        b'{"sql":"SELECT ?","parameters":[1,2]}',
        b'{"sql":"SELECT $a","parameters":{"b":1}}',
        b'{"sql":"SELECT $a","parameters":[1]}',
        b'{"sql":"SELECT ?","parameters":"x"}',
        b'{"sql":"SELECT 1","parameters":[1]}',
    ],
)
def test_s29_parameters_that_do_not_fit_are_400(server: Server, body: bytes) -> None:
    assert status_of(parameters(server, body)) == 400


@pytest.mark.parametrize("sql", [b"SELECT 'a\x00b' AS a", "SELECT 1".encode("utf-16-le"), b"\xff\xfeSELECT 1"])
def test_s32_odd_bytes_never_fail_the_server(server: Server, sql: bytes) -> None:
    assert server.sql(sql).status_code in {200, 400}


def test_s24_only_declared_names_are_listed(server: Server) -> None:
    declared = {"orders", "big_orders"}

    assert {row["name"] for row in server.rows("SHOW TABLES")} == declared
    assert {row["table_name"] for row in server.rows("SELECT * FROM information_schema.tables")} == declared
    assert {row["table_name"] for row in server.rows("SELECT * FROM information_schema.columns")} == declared
    assert {row["schema_name"] for row in server.rows("SELECT * FROM information_schema.schemata")} <= {
        "main",
        "information_schema",
    }
    assert str(server.directory) not in server.sql("SHOW ALL TABLES").text + server.sql("EXPLAIN FROM orders").text
