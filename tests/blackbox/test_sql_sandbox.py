"""Checks S01 to S33 over HTTP: refused with a reason, without effect, and without a word about this machine."""

from pathlib import Path

import pytest

from tests.corpus import each
from tests.queryengine.statements import REFUSED as REFUSED_BY_THE_GATE
from tests.system.harness import K1, K2, Server, raw_request

# Engine workers in processes of their own, and the engine in the process that answers.
pytestmark = pytest.mark.parametrize("server", ["serve", "gunicorn"], indirect=True)

CHECKSUM = "SELECT count(*) AS n, sum(id)::BIGINT AS s FROM orders"
UNCHANGED = [{"n": 1000, "s": 499500}]

#: Samples: the gate judges all of each check, which are in tests/queryengine/data/refused.txt.
REFUSED = {
    "S01": ["SELECT (SELECT content FROM read_text('/etc/passwd'))"],
    "S03": ["SELECT * FROM '/proc/self/maps'"],
    "S04": [
        "COPY (SELECT 1) TO '{tmp}/x' (FORMAT parquet)",
        "EXPORT DATABASE '{tmp}/x'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{tmp}/x'",
        "WITH x AS (COPY (SELECT 1) TO '{tmp}/x') SELECT 1",
    ],
    "S05": ["ATTACH '{tmp}/x.db'"],
    "S06": ["LOAD '{tmp}/x.duckdb_extension'"],
    "S07": [
        "SELECT * FROM 'http://{trap}/x.parquet'",
        "ATTACH 'postgres:host={trap}'",
        "SELECT * FROM read_parquet('s3://{trap}/x')",
    ],
    "S08": ["SET lock_configuration=false"],
    "S10": ["SELECT current_setting('temp_directory')"],
    "S12": ["SELECT * FROM query_table('df')"],
    "S13": ["SELECT 1/* ; */;--\nDELETE FROM orders"],
    "S14": [
        "UPDATE orders SET id = 0",
        "DROP TABLE orders",
    ],
    "S15": ["WITH x AS (DELETE FROM orders) SELECT 1"],
    "S17": ["EXPLAIN ANALYZE INSERT INTO orders SELECT * FROM orders"],
    "S18": ["EXECUTE p(1)"],
    "S20": ["CREATE TEMP VIEW orders AS SELECT 666 AS id"],
    "S21 text as SQL": ["SELECT list_transform([1], lambda x: write_log('x'))"],
    "S24": ["SELECT * FROM _s0.main.orders"],
}


@each("sql", [sql for sqls in REFUSED.values() for sql in sqls])
def test_refused_without_effect(server: Server, trap: str, tmp_path: Path, sql: str) -> None:
    filled = sql.replace("{tmp}", str(tmp_path)).replace("{trap}", trap)

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


def test_nothing_that_the_gate_refuses_has_an_effect(server: Server) -> None:
    before = server.rows("SHOW ALL TABLES")

    for sql in dict(REFUSED_BY_THE_GATE).values():  # one of each check
        assert server.sql(sql).status_code in {400, 403}, sql

    assert server.rows("SHOW ALL TABLES") == before
    assert server.rows(CHECKSUM, K2) == UNCHANGED
    assert server.rows("SELECT abs(-1) AS a", K2) == [{"a": 1}]


def test_s29_parameters_are_data(server: Server) -> None:
    body = b'{"sql":"SELECT ? AS a","parameters":["\'; DROP TABLE orders"]}'
    headers: list[tuple[str, str | bytes]] = [("X-API-Key", K1), ("Content-Type", "application/json")]

    assert b'[{"a":"\'; DROP TABLE orders"}]' in server.raw(raw_request("POST", "/v1/sql", headers, body))
    assert server.rows(CHECKSUM) == UNCHANGED


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
