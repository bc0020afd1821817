from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest

from queryengine.cancellation import CancelSource
from queryengine.engine import Encoding, Parameters, Query
from queryengine.errors import (
    EngineBusyError,
    EngineUnavailableError,
    ParameterError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
    ResourceLimitError,
    SqlError,
    SqlSyntaxError,
    StatementError,
    StatementNotAllowedError,
)
from queryengine.inprocess import InProcessEngine
from runtimeconf.errors import ConfigError
from tests.queryengine.conftest import MakeEngine
from tests.queryengine.publishing import ENDLESS, ENDLESS_AFTER_ROWS, Publisher, open_files, wait_until

FLIGHTS = "SELECT i AS id, 'n' || i AS name, i % 3 AS carrier FROM range(1000) t(i)"


def ask(engine: InProcessEngine, sql: str, parameters: Parameters | None = None, encoding: Encoding = "json") -> bytes:
    result = engine.run(Query(sql=sql, parameters=parameters, encoding=encoding))
    try:
        return b"".join(result)
    finally:
        result.close()


def rows(engine: InProcessEngine, sql: str, parameters: Parameters | None = None) -> Any:
    return json.loads(ask(engine, sql, parameters))


def drop(engine: InProcessEngine, sql: str, errors: list[BaseException]) -> None:
    try:
        ask(engine, sql)
    except QueryError as exc:
        errors.append(exc)


@pytest.fixture
def engine(publisher: Publisher, make_engine: MakeEngine) -> InProcessEngine:
    publisher.publish(flights=FLIGHTS)
    return make_engine(views={"few": "SELECT * FROM flights WHERE id < 3"})


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        pytest.param("SELECT 1 AS a", [{"a": 1}], id="select"),
        pytest.param("SELECT 1 AS a;", [{"a": 1}], id="semicolon"),
        pytest.param("SELECT 1 AS a -- end", [{"a": 1}], id="comment"),
        pytest.param(
            "SELECT 1::UHUGEINT AS a, 'é;' AS b;; /* ; */ -- end", [{"a": 1, "b": "é;"}], id="projected with end"
        ),
        pytest.param("VALUES (1, 'x'), (2, 'y')", [{"col0": 1, "col1": "x"}, {"col0": 2, "col1": "y"}], id="values"),
        pytest.param("FROM few SELECT id ORDER BY ALL", [{"id": 0}, {"id": 1}, {"id": 2}], id="view"),
        pytest.param("SELECT count(*) AS n FROM runtime.main.flights", [{"n": 1000}], id="qualified"),
        pytest.param("SELECT count(*) AS n FROM FLIGHTS", [{"n": 1000}], id="any case"),
        pytest.param("WITH x AS (SELECT 2 AS a) SELECT * FROM x", [{"a": 2}], id="with"),
        pytest.param("SHOW TABLES", [{"name": "few"}, {"name": "flights"}], id="show"),
        pytest.param("SHOW DATABASES", [{"database_name": "runtime"}], id="show databases"),
        pytest.param("SELECT id, id FROM few ORDER BY id DESC LIMIT 1", [{"id": 2, "id_1": 2}], id="repeated name"),
        pytest.param(
            "SELECT 5::UHUGEINT AS x, INTERVAL 1 DAY AS x, 7 AS y ORDER BY 1",
            [{"x": 5, "x_1": "1 day", "y": 7}],
            id="projected with repeated name",
        ),
        pytest.param(
            "PIVOT (FROM few) ON name IN ('n0', 'n1') USING sum(id) GROUP BY carrier ORDER BY carrier",
            [
                {"carrier": 0, "n0": 0, "n1": None},
                {"carrier": 1, "n0": None, "n1": 1},
                {"carrier": 2, "n0": None, "n1": None},
            ],
            id="pivot in",
        ),
        pytest.param("PIVOT few ON name USING sum(id::UHUGEINT) GROUP BY carrier", None, id="pivot"),
        pytest.param("SELECT 1 AS a WHERE false", [], id="empty"),
    ],
)
def test_each_kind_of_statement_answers(engine: InProcessEngine, sql: str, expected: object) -> None:
    answered = rows(engine, sql)

    if expected is None:
        assert len(answered) == 3
    else:
        assert answered == expected


def test_a_pivot_without_in_finds_its_values(engine: InProcessEngine) -> None:
    assert rows(engine, "PIVOT few ON name USING count(*) GROUP BY carrier ORDER BY carrier") == [
        {"carrier": number, **{f"n{other}": int(other == number) for other in range(3)}} for number in range(3)
    ]


def test_describe_and_summarize_name_the_columns(engine: InProcessEngine) -> None:
    described = rows(engine, "DESCRIBE flights")
    summarized = rows(engine, "SUMMARIZE flights")

    assert [(row["column_name"], row["column_type"]) for row in described] == [
        ("id", "BIGINT"),
        ("name", "VARCHAR"),
        ("carrier", "BIGINT"),
    ]
    assert [(row["column_name"], row["max"], row["count"]) for row in summarized] == [
        ("id", "999", 1000),
        ("name", "n999", 1000),
        ("carrier", "2", 1000),
    ]


@pytest.mark.parametrize("sql", ["EXPLAIN SELECT * FROM flights", "EXPLAIN ANALYZE SELECT sum(id) FROM flights"])
def test_explain_shows_a_plan_without_a_path(engine: InProcessEngine, publisher: Publisher, sql: str) -> None:
    (plan,) = rows(engine, sql)

    assert "flights" in plan["explain_value"]
    assert str(publisher.state_dir) not in plan["explain_value"]


@pytest.mark.parametrize("encoding", ["json", "csv", "arrow", "vnd"])
def test_an_answer_comes_in_each_encoding(engine: InProcessEngine, encoding: Encoding) -> None:
    answer = ask(engine, "SELECT id, name FROM few ORDER BY id", encoding=encoding)

    assert b"n2" in answer


def test_timings_count_rows_bytes_and_where_the_time_went(engine: InProcessEngine) -> None:
    result = engine.run(Query(sql="SELECT * FROM range(100000)"))
    size = sum(map(len, result))

    assert result.timings.rows == 100_000
    assert result.timings.bytes == size
    assert min(result.timings.parse_ms, result.timings.run_ms, result.timings.encode_ms) > 0


def test_the_zone_is_utc_whatever_the_machines(
    publisher: Publisher, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        publisher.publish(flights="SELECT TIMESTAMPTZ '2024-01-02 03:04:05+09' AS seen")
        (row,) = rows(
            make_engine(),
            "SELECT seen, '2024-01-01 00:00:00'::TIMESTAMPTZ AS parsed, strftime(seen, '%H:%M') AS shown FROM flights",
        )
    finally:
        monkeypatch.undo()
        time.tzset()

    assert row == {"seen": "2024-01-01T18:04:05Z", "parsed": "2024-01-01T00:00:00Z", "shown": "18:04"}


# What may be seen, and what survives a statement.


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("FROM duckdb_secrets()", id="S10 duckdb_secrets"),
        pytest.param("CREATE SECRET s (TYPE http)", id="S10 create secret"),
        pytest.param("SELECT getenv('HOME')", id="S10 getenv"),
        pytest.param("SELECT current_setting('s3_secret_access_key')", id="S10 current_setting"),
        pytest.param("FROM which_secret('s3://x', 's3')", id="S10 which_secret"),
        pytest.param("SELECT * FROM secret_frame", id="S12 variable"),
        pytest.param("SELECT * FROM query_table('secret_frame')", id="S12 query_table"),
        pytest.param("SELECT * FROM engine", id="S12 object"),
        pytest.param("INSERT INTO flights VALUES (1, 'x', 1)", id="S14 insert"),
        pytest.param("UPDATE flights SET id = 1", id="S14 update"),
        pytest.param("DELETE FROM flights", id="S14 delete"),
        pytest.param("DROP VIEW flights", id="S14 drop"),
        pytest.param("CREATE TABLE t AS SELECT 1", id="S14 create"),
        pytest.param("CHECKPOINT", id="S14 checkpoint"),
        pytest.param("WITH x AS (DELETE FROM flights RETURNING *) SELECT * FROM x", id="S15 delete in WITH"),
        pytest.param("WITH x AS (INSERT INTO flights VALUES (1, 'x', 1)) SELECT 1", id="S15 insert in WITH"),
        pytest.param("EXPLAIN ANALYZE DELETE FROM flights", id="S17 delete"),
        pytest.param("EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1", id="S17 create"),
        pytest.param("PREPARE p AS DELETE FROM flights", id="S18 prepare"),
        pytest.param("EXECUTE p", id="S18 execute"),
        pytest.param("CREATE TEMP VIEW flights AS SELECT 666 AS id", id="S20 temp view"),
        pytest.param("CREATE MACRO abs(x) AS 42", id="S20 macro"),
        pytest.param("SET VARIABLE a = 1", id="S20 variable"),
        pytest.param("USE memory", id="S20 use"),
        pytest.param("FROM sqlite_master", id="S24 sqlite_master"),
        pytest.param("FROM pg_catalog.pg_class", id="S24 pg_class"),
        pytest.param("FROM _s0.main.flights", id="S24 attachment"),
        pytest.param("FROM _catalog.main.tables", id="S24 catalog view"),
        pytest.param("FROM duckdb_databases()", id="S24 duckdb_databases"),
        pytest.param("FROM duckdb_views()", id="S24 duckdb_views"),
        pytest.param("FROM system.information_schema.tables", id="S24 system"),
    ],
)
def test_s10_to_s24_refuses_and_changes_nothing(engine: InProcessEngine, publisher: Publisher, sql: str) -> None:
    secret_frame = duckdb.sql("SELECT 'hunter2' AS secret")
    before = rows(engine, "SELECT count(*) AS n, sum(id) AS s, abs(-1) AS a FROM flights")

    with pytest.raises(StatementError) as caught:
        ask(engine, sql)

    assert "hunter2" in str(secret_frame)
    assert "hunter2" not in str(caught.value)
    assert str(publisher.state_dir) not in str(caught.value)
    assert rows(engine, "SELECT count(*) AS n, sum(id) AS s, abs(-1) AS a FROM flights") == before
    assert rows(engine, "SHOW TABLES") == [{"name": "few"}, {"name": "flights"}]


def test_s24_information_schema_lists_what_is_declared(engine: InProcessEngine) -> None:
    assert rows(
        engine, "SELECT table_catalog, table_schema, table_name, table_type FROM information_schema.tables ORDER BY 3"
    ) == [
        {"table_catalog": "runtime", "table_schema": "main", "table_name": "few", "table_type": "VIEW"},
        {"table_catalog": "runtime", "table_schema": "main", "table_name": "flights", "table_type": "BASE TABLE"},
    ]
    assert rows(engine, "SELECT DISTINCT table_name FROM information_schema.columns ORDER BY 1") == [
        {"table_name": "few"},
        {"table_name": "flights"},
    ]
    assert rows(engine, "SELECT catalog_name, schema_name FROM information_schema.schemata") == [
        {"catalog_name": "runtime", "schema_name": "main"}
    ]


def test_the_lock_holds_behind_the_gate(engine: InProcessEngine, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a\n1\n")
    lease = engine._generations.lease()
    cursor = lease.session._connection.cursor()
    cursor.execute("USE runtime")

    for sql in (
        f"FROM read_csv('{tmp_path}/data.csv')",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        f"ATTACH '{tmp_path}/new.duckdb' AS x",
        "SET memory_limit = '100GB'",
        "SET lock_configuration = false",
        "SET enable_external_access = true",
        "RESET max_execution_time",
        "INSTALL httpfs",
        "LOAD httpfs",
        "INSERT INTO _s0.main.flights VALUES (1, 'x', 1)",
        "SELECT * FROM secret_frame",
    ):
        secret_frame = duckdb.sql("SELECT 1")  # a replacement scan would look for it here
        with pytest.raises(duckdb.Error):
            cursor.execute(sql)
        del secret_frame
    cursor.close()
    lease.release()

    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["data.csv"]


# Errors.

#: Statements that fail in the binder, in a function, on the data, in the middle of the rows.
FAILING = [
    "SELECT nope FROM flights",
    "SELECT flights.nope FROM flights",
    "SELECT x.id FROM flights",
    "SELECT nope(1)",
    "SELECT abs()",
    "SELECT abs(1, 2, 3)",
    "SELECT abs('x')",
    "SELECT id + name FROM flights",
    "SELECT CAST('x' AS INTEGER)",
    "SELECT CAST(name AS INTEGER) FROM flights",
    "SELECT CAST(name AS DATE) FROM flights",
    "SELECT CAST('2024-13-45' AS TIMESTAMP)",
    "SELECT CAST('x' AS UUID)",
    "SELECT CAST('[' AS JSON)",
    "SELECT CAST(300 AS TINYINT)",
    "SELECT CAST(-1 AS UINTEGER)",
    "SELECT 'x'::STRUCT(a INTEGER)",
    "SELECT 'x'::ENUM('a', 'b')",
    "SELECT 9223372036854775807 + 1::BIGINT",
    "SELECT sum(9223372036854775807::BIGINT * i) FROM range(10) t(i)",
    "SELECT 99999999999999999999999999999999999999 * 10::DECIMAL(38, 0)",
    "SELECT factorial(1000)",
    "SELECT chr(-1)",
    "SELECT * FROM missing",
    "SELECT * FROM main.missing",
    "SELECT * FROM other.main.flights",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM flights JOIN flights USING (nope)",
    "SELECT * FROM flights a, flights b WHERE id = 1",
    "SELECT id FROM flights GROUP BY name",
    "SELECT count(*) FROM flights HAVING id > 1",
    "SELECT id FROM flights ORDER BY nope",
    "SELECT id FROM flights LIMIT -1",
    "SELECT id FROM flights LIMIT 'x'",
    "SELECT id FROM flights UNION SELECT id, name FROM flights",
    "SELECT (SELECT id FROM flights)",
    "SELECT (SELECT id, name FROM flights)",
    "SELECT sum(sum(id)) FROM flights",
    "SELECT row_number() FROM flights",
    "SELECT sum(id) OVER w FROM flights",
    "SELECT unnest(1)",
    "SELECT unnest([1]) FROM flights WHERE unnest([1]) = 1",
    "SELECT [1, 'x'::DATE]",
    "SELECT {'a': 1}.b",
    "SELECT map {1: 2, 1: 3}",
    "SELECT strptime('x', '%Y')",
    "SELECT strptime('x', '%')",
    "SELECT regexp_extract('x', '(')",
    "SELECT json_extract('{', '$')",
    "SELECT date_trunc('nope', DATE '2024-01-01')",
    "SELECT date_part('nope', DATE '2024-01-01')",
    "SELECT INTERVAL 'x'",
    "SELECT DATE '2024-01-01' AT TIME ZONE 'Nowhere/None'",
    "SELECT error('boom')",
    "SELECT * FROM range(0, 10, 0)",
    "SELECT * FROM range('x')",
    "SELECT nope.* FROM flights",
    "SELECT * EXCLUDE (nope) FROM flights",
    "SELECT COLUMNS('nope.*') FROM flights",
    "SELECT COLUMNS('(') FROM flights",
    "WITH x AS (SELECT 1), x AS (SELECT 2) SELECT * FROM x",
    "WITH RECURSIVE x AS (SELECT 1 AS a UNION ALL SELECT 'x' FROM x) SELECT * FROM x",
    "PIVOT flights ON nope USING sum(id)",
    "UNPIVOT flights ON nope",
    "DESCRIBE missing",
    "SUMMARIZE missing",
    "SHOW missing",
    "EXPLAIN SELECT nope",
    "SELEC 1",
    "SELECT",
    "SELECT 1 +",
    "SELECT 'open",
    "SELECT CAST(CASE WHEN range > 100000 THEN 'x' ELSE '1' END AS INTEGER) FROM range(300000)",
]


@pytest.mark.parametrize("sql", FAILING)
def test_s27_an_error_is_about_the_callers_own_sql(engine: InProcessEngine, publisher: Publisher, sql: str) -> None:
    with pytest.raises(StatementError) as caught:
        ask(engine, sql)

    message = str(caught.value)
    assert message
    for inner in (
        str(publisher.state_dir),
        "_s0",
        "_catalog",
        "pg_enum",
        "Traceback",
        "/work",
        " Error: ",
        duckdb.__version__,
    ):
        assert inner not in message


def test_a_syntax_error_points_into_the_statement(engine: InProcessEngine) -> None:
    with pytest.raises(SqlSyntaxError, match=r'Syntax error at or near "flights" \(line 1, column 14\)'):
        ask(engine, "SELECT 1 FRM flights x y")


def test_a_failure_under_way_raises_from_the_iterator(engine: InProcessEngine) -> None:
    result = engine.run(
        Query(sql="SELECT CAST(CASE WHEN range > 9000000 THEN 'no' ELSE '1' END AS INTEGER) FROM range(9999999)")
    )

    with pytest.raises(SqlError, match="Could not convert string 'no'"):
        b"".join(result)

    with pytest.raises(QueryError):
        next(iter(result))
    wait_until(lambda: engine._admission.running == 0)


# Parameters.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, None, id="S29 null"),
        pytest.param(True, True, id="S29 boolean"),
        pytest.param(7, 7, id="S29 small"),
        pytest.param(2**63, 2**63, id="S29 over 63 bits"),
        pytest.param(2**64 + 1, 2**64 + 1, id="S29 over 64 bits"),
        pytest.param(-(2**127), -(2**127), id="S29 128 bits"),
        pytest.param(2**128 - 1, 2**128 - 1, id="S29 unsigned 128 bits"),
        pytest.param(0.1, 0.1, id="S29 float"),
        pytest.param(float("nan"), None, id="S29 NaN"),
        pytest.param(float("inf"), None, id="S29 infinity"),
        pytest.param("'; DROP TABLE flights; --", "'; DROP TABLE flights; --", id="S29 injection"),
        pytest.param("a\x00b", "a\x00b", id="S29 NUL"),
        pytest.param("é😀", "é😀", id="S29 not ASCII"),
        pytest.param([1, 2], [1, 2], id="S29 list"),
        pytest.param([], [], id="S29 empty list"),
        pytest.param([[1], [2, None]], [[1], [2, None]], id="S29 nested list"),
        pytest.param({"a": 1, "b": ["x"]}, {"a": 1, "b": ["x"]}, id="S29 mapping"),
        pytest.param([{"a": 1}, {"b": 2}], [{"a": 1, "b": None}, {"a": None, "b": 2}], id="S29 list of mappings"),
    ],
)
def test_s29_a_value_is_data(engine: InProcessEngine, value: object, expected: object) -> None:
    assert rows(engine, "SELECT ? AS v", [value]) == [{"v": expected}]
    assert rows(engine, "SELECT $1 AS v", [value]) == [{"v": expected}]
    assert rows(engine, "SELECT $name AS v", {"name": value}) == [{"v": expected}]


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        pytest.param("SELECT ?", None, id="S29 none"),
        pytest.param("SELECT ? + ?", [1], id="S29 too few"),
        pytest.param("SELECT ?", [1, 2], id="S29 too many"),
        pytest.param("SELECT 1", [1], id="S29 unasked"),
        pytest.param("SELECT $a", [1], id="S29 list for a name"),
        pytest.param("SELECT $a", {"b": 1}, id="S29 wrong name"),
        pytest.param("SELECT $a", {"a": 1, "b": 1}, id="S29 extra name"),
        pytest.param("SELECT $a", {"a": 1, "A": 2}, id="S29 name twice"),
        pytest.param("SELECT $a", {}, id="S29 empty mapping"),
        pytest.param("SELECT ?", [2**128], id="S29 over 128 bits"),
        pytest.param("SELECT ?", [10**5000], id="S29 5,001 digits"),
        pytest.param("SELECT ?", ["\ud800"], id="S29 lone surrogate"),
        pytest.param("SELECT ?", [[1, {"b": None}]], id="S29 no common type"),
        pytest.param("SELECT ?", [object()], id="S29 no type at all"),
    ],
)
def test_s29_parameters_that_do_not_fit(engine: InProcessEngine, sql: str, parameters: Parameters | None) -> None:
    with pytest.raises(ParameterError):
        ask(engine, sql, parameters)


def test_s29_ten_thousand_parameters(engine: InProcessEngine) -> None:
    sql = f"SELECT list_sum([{', '.join('?' * 10_000)}])::BIGINT AS total"

    assert rows(engine, sql, list(range(10_000))) == [{"total": 49_995_000}]


# Data that is not there.


def test_statements_without_data_run_before_anything_is_loaded(make_engine: MakeEngine) -> None:
    engine = make_engine(views={"ids": "SELECT id FROM flights", "twice": "SELECT * FROM ids", "free": "SELECT 1 AS a"})

    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]
    assert rows(engine, "FROM free") == [{"a": 1}]
    assert engine.is_alive()
    with pytest.raises(EngineUnavailableError, match=r"Dataset 'flights' is not loaded yet\."):
        ask(engine, "SELECT * FROM flights")
    for view in ("ids", "twice"):
        with pytest.raises(EngineUnavailableError, match=rf"View '{view}' .*Dataset 'flights' is not loaded yet\."):
            ask(engine, f"SELECT * FROM {view}")


def test_a_dataset_is_there_as_soon_as_it_is_published(publisher: Publisher, make_engine: MakeEngine) -> None:
    engine = make_engine(("flights", "planes"))
    publisher.publish(planes="SELECT 7 AS seats")

    assert rows(engine, "FROM planes") == [{"seats": 7}]
    with pytest.raises(EngineUnavailableError, match="'flights'"):
        ask(engine, "FROM flights")


def test_a_view_that_does_not_fit_the_data_fails_alone(publisher: Publisher, make_engine: MakeEngine) -> None:
    publisher.publish(flights="SELECT 1 AS other")
    engine = make_engine(views={"ids": "SELECT id FROM flights"})

    with pytest.raises(SqlError, match=r"View 'ids' does not fit the data: .*id") as caught:
        ask(engine, "FROM ids")

    assert "CREATE VIEW" not in str(caught.value)
    assert rows(engine, "FROM flights") == [{"other": 1}]
    publisher.publish(flights="SELECT 2 AS id")
    assert rows(engine, "FROM ids") == [{"id": 2}]


def test_a_view_that_cannot_be_made_stops_the_start(publisher: Publisher, make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match=r"views\[0\]\.sql"):
        make_engine(views={"bad": "DELETE FROM flights"})

    assert not (publisher.state_dir / "tmp").exists()


# Streaming, time and cancellation.


def test_first_bytes_come_before_the_last_row(engine: InProcessEngine) -> None:
    started = time.monotonic()
    result = engine.run(Query(sql="SELECT * FROM range(200000000)"))
    first = next(iter(result))

    assert time.monotonic() - started < 30
    assert first.startswith(b'[{"range":0}')
    result.close()
    wait_until(lambda: engine._admission.running == 0, within_s=2)


L10 = """
import sys
from pathlib import Path
from queryengine.engine import Query
from queryengine.inprocess import InProcessEngine
from runtimeconf.model import RuntimeConfig

def resident_mib():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 2**20

engine = InProcessEngine(RuntimeConfig(file=Path("x.yaml"), state_dir=Path(sys.argv[1])))
for chunk in engine.run(Query(sql="SELECT 1")): pass
start = peak = resident_mib()
size = count = 0
result = engine.run(Query(sql=sys.argv[2], encoding=sys.argv[3]))
for chunk in result:
    size += len(chunk)
    count += 1
    if count % 50 == 0:
        peak = max(peak, resident_mib())
print(result.timings.rows, size, round(max(peak, resident_mib()) - start))
engine.close()
"""


@pytest.mark.parametrize(
    ("sql", "encoding", "rows_expected"),
    [
        pytest.param("SELECT * FROM range(20000000)", "json", 20_000_000, id="L10 many rows, JSON"),
        pytest.param("SELECT * FROM range(20000000)", "csv", 20_000_000, id="L10 many rows, CSV"),
        pytest.param("SELECT repeat('x', 20000) || range AS v FROM range(50000)", "json", 50_000, id="L10 wide rows"),
    ],
)
def test_l10_a_large_answer_streams_in_little_memory(
    tmp_path: Path, sql: str, encoding: str, rows_expected: int
) -> None:
    output = subprocess.run(
        [sys.executable, "-c", L10, str(tmp_path / "state"), sql, encoding],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    ).stdout

    count, size, grown_mib = map(int, output.split())
    assert count == rows_expected
    assert size > rows_expected * 8
    assert grown_mib < 300


def test_a_statement_ends_at_its_time_limit(publisher: Publisher, make_engine: MakeEngine) -> None:
    engine = make_engine(timeout_s=0.5)
    started = time.monotonic()

    with pytest.raises(QueryTimeoutError, match=r"0\.5 s"):
        ask(engine, ENDLESS)

    assert 0.5 <= time.monotonic() - started < 30
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


def test_the_time_limit_holds_under_way(make_engine: MakeEngine) -> None:
    engine = make_engine(timeout_s=2)
    result = engine.run(Query(sql=ENDLESS_AFTER_ROWS))
    read = [next(iter(result))]

    with pytest.raises(QueryTimeoutError):
        read.extend(result)

    assert not b"".join(read).endswith(b"]")
    with pytest.raises(QueryError):
        next(iter(result))


def test_a_slow_reader_keeps_no_place_beyond_the_time_limit(make_engine: MakeEngine) -> None:
    engine = make_engine(timeout_s=2)
    result = engine.run(Query(sql="SELECT * FROM range(200000000)"))
    next(iter(result))

    took_s = wait_until(lambda: engine._admission.running == 0)

    assert took_s < 4
    with pytest.raises(QueryTimeoutError):
        list(result)


def test_duckdbs_own_clock_is_a_time_limit_too(make_engine: MakeEngine) -> None:
    engine = make_engine(timeout_s=0.5)
    engine._watchdog.close()

    with pytest.raises(QueryTimeoutError):
        ask(engine, ENDLESS)

    engine._watchdog = type(engine._watchdog)()


def test_cancel_stops_a_statement_that_has_not_answered(engine: InProcessEngine) -> None:
    cancel = CancelSource()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            engine.run(Query(sql=ENDLESS), cancel)
        except QueryError as exc:
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: engine._admission.running == 1)
    cancel.cancel()
    thread.join(2)

    assert not thread.is_alive()
    assert [type(error) for error in errors] == [QueryCancelledError]
    assert engine._admission.running == 0


def test_a_cancelled_source_stops_a_statement_before_it_begins(engine: InProcessEngine) -> None:
    cancel = CancelSource()
    cancel.cancel()

    with pytest.raises(QueryCancelledError):
        engine.run(Query(sql="SELECT 1"), cancel)


@pytest.mark.parametrize("stop", ["cancel", "close"])
def test_a_stream_is_stopped_from_another_thread(engine: InProcessEngine, stop: str) -> None:
    result = engine.run(Query(sql=ENDLESS_AFTER_ROWS))
    errors: list[BaseException] = []

    def read() -> None:
        try:
            list(result)
        except QueryError as exc:
            errors.append(exc)

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: result.timings.rows > 40_000)
    getattr(result, stop)()
    thread.join(2)

    assert not thread.is_alive()
    assert [type(error) for error in errors] == [QueryCancelledError]
    wait_until(lambda: engine._admission.running == 0, within_s=2)
    getattr(result, stop)()


def test_close_between_two_chunks_frees_the_engine_at_once(engine: InProcessEngine) -> None:
    result = engine.run(Query(sql="SELECT * FROM range(200000000)"))
    next(iter(result))

    result.close()
    result.close()

    assert engine._admission.running == 0
    with pytest.raises(QueryCancelledError):
        next(iter(result))


def test_cancel_between_two_chunks_frees_the_engine(engine: InProcessEngine) -> None:
    result = engine.run(Query(sql="SELECT * FROM range(200000000)"))

    result.cancel()

    wait_until(lambda: engine._admission.running == 0, within_s=2)
    with pytest.raises(QueryCancelledError):
        list(result)


def test_a_short_answer_holds_no_place_while_it_is_read(engine: InProcessEngine) -> None:
    result = engine.run(Query(sql="SELECT * FROM flights"))

    assert engine._admission.running == 0
    assert len(json.loads(b"".join(result))) == 1000
    result.close()


def test_an_interrupt_reaches_one_statement_only(engine: InProcessEngine) -> None:
    one = engine.run(Query(sql="SELECT * FROM range(10000000)"))
    other = engine.run(Query(sql="SELECT * FROM range(3000000)"))
    next(iter(one))

    one.cancel()

    assert b"".join(other).endswith(b'{"range":2999999}]')


def test_a_full_engine_says_so(make_engine: MakeEngine) -> None:
    engine = make_engine(workers=1, max_queued=0)
    result = engine.run(Query(sql="SELECT * FROM range(200000000)"))

    with pytest.raises(EngineBusyError):
        ask(engine, "SELECT 1")

    assert engine.is_alive()
    result.close()
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


# Limits.


def test_memory_used_up_is_a_typed_error(make_engine: MakeEngine) -> None:
    engine = make_engine(memory_limit_bytes=64 * 2**20, temp_directory_limit_bytes=2**20)

    with pytest.raises(ResourceLimitError, match="64 MiB"):
        ask(engine, "SELECT len(list(range)) AS n FROM range(100000000)")

    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


def test_temporary_space_used_up_is_a_typed_error(make_engine: MakeEngine, publisher: Publisher) -> None:
    engine = make_engine(memory_limit_bytes=100 * 2**20, temp_directory_limit_bytes=8 * 2**20)

    sql = "SELECT v, count(*) FROM (SELECT md5(range::VARCHAR) AS v FROM range(4000000)) GROUP BY v"

    with pytest.raises(ResourceLimitError, match="temporary space") as caught:
        ask(engine, sql)

    assert str(publisher.state_dir) not in str(caught.value)
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


# Generations.


def test_a_statement_sees_what_was_published_before_it(engine: InProcessEngine, publisher: Publisher) -> None:
    for number in range(5):
        publisher.publish(flights=f"SELECT {number} AS id")

        assert rows(engine, "FROM flights") == [{"id": number}]


def test_a_superseded_file_is_freed_while_nobody_asks(engine: InProcessEngine, publisher: Publisher) -> None:
    rows(engine, "FROM few")
    before = open_files(publisher.state_dir)
    publisher.publish(flights="SELECT 1 AS id")

    wait_until(lambda: not before & open_files(publisher.state_dir / "snapshots"), within_s=2)


def test_a_running_statement_keeps_its_generation(publisher: Publisher, make_engine: MakeEngine) -> None:
    publisher.publish(flights="SELECT 1 AS g, i AS id FROM range(2000000) t(i)")
    engine = make_engine()
    (old,) = (name for name in open_files(publisher.state_dir) if name.endswith(".duckdb"))
    result = engine.run(Query(sql="SELECT g FROM flights", encoding="csv"))
    publisher.publish(flights="SELECT 2 AS g")

    assert rows(engine, "FROM flights") == [{"g": 2}]
    assert old in {name.removesuffix(" (deleted)") for name in open_files(publisher.state_dir)}
    lines = b"".join(result).split()

    assert set(lines[1:]) == {b"1"}
    assert len(lines) == 2_000_001
    wait_until(lambda: not any(old in name for name in open_files(publisher.state_dir)), within_s=2)


def test_r01_readers_see_old_or_new_while_data_is_replaced(publisher: Publisher, make_engine: MakeEngine) -> None:
    publish = "SELECT {0} AS g, i AS id FROM range(50000) t(i)"
    publisher.publish(flights=publish.format(0), planes=publish.format(0))
    engine = make_engine(("flights", "planes"), views={"all_of_it": "FROM flights UNION ALL FROM planes"})
    seen: list[int] = []
    errors: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                (row,) = rows(engine, "SELECT min(g) AS low, max(g) AS high, count(*) AS n FROM all_of_it")
                assert row["low"] == row["high"]
                assert row["n"] == 100_000
                seen.append(row["low"])
        except BaseException as exc:
            errors.append(exc)
            raise

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for generation in range(1, 15):
        publisher.publish(flights=publish.format(generation), planes=publish.format(generation))
        wait_until(lambda generation=generation: bool(errors) or generation in seen)  # type: ignore[misc]
    stop.set()
    for reader in readers:
        reader.join()

    assert errors == []
    assert seen[-1] == 14


def test_a_broken_instance_is_replaced_for_the_next_statement(engine: InProcessEngine) -> None:
    lease = engine._generations.lease()
    error = lease.session.failure(duckdb.FatalException("FATAL Error: database has been invalidated"))
    lease.release()

    assert isinstance(error, EngineUnavailableError)
    assert rows(engine, "SELECT count(*) AS n FROM flights") == [{"n": 1000}]
    successor = engine._generations.lease()
    assert successor.session is not lease.session
    successor.release()


def test_r18_a_damaged_snapshot_gives_no_wrong_rows(publisher: Publisher, make_engine: MakeEngine) -> None:
    manifest = publisher.publish(flights="SELECT hash(i) AS id FROM range(300000) t(i)")
    path = publisher.state_dir / "snapshots" / manifest.snapshots[0].file
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xaa" * 65536)
    engine = make_engine()

    for _ in range(2):
        with pytest.raises(EngineUnavailableError):
            ask(engine, "SELECT sum(id % 7) FROM flights")

    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


# The whole engine.


def test_check_gates_without_running(engine: InProcessEngine) -> None:
    engine.admit("SELECT * FROM source", frozenset({"source"}))

    with pytest.raises(StatementError):
        engine.admit("SELECT * FROM flights", frozenset({"source"}))
    with pytest.raises(StatementNotAllowedError):
        engine.admit("DROP TABLE source", frozenset({"source"}))


def test_close_ends_what_runs_and_leaves_nothing(engine: InProcessEngine, publisher: Publisher) -> None:
    streaming = engine.run(Query(sql="SELECT * FROM range(200000000)"))
    errors: list[BaseException] = []
    thread = threading.Thread(target=partial(drop, engine, ENDLESS, errors))
    thread.start()
    wait_until(lambda: engine._admission.running == 2)

    engine.close()
    engine.close()
    thread.join(2)

    assert not thread.is_alive()
    assert [type(error) for error in errors] == [EngineUnavailableError]
    with pytest.raises(EngineUnavailableError):
        list(streaming)
    assert list((publisher.state_dir / "tmp").iterdir()) == []
    wait_until(lambda: not open_files(publisher.state_dir))
    assert not engine.is_alive()
    with pytest.raises(EngineUnavailableError):
        ask(engine, "SELECT 1")


def test_what_is_spilled_lies_in_the_state_directory_and_goes(publisher: Publisher, make_engine: MakeEngine) -> None:
    engine = make_engine(memory_limit_bytes=100 * 2**20)
    scratch = publisher.state_dir / "tmp"
    sql = "SELECT v FROM (SELECT repeat(range::VARCHAR, 8) AS v FROM range(3000000) ORDER BY hash(range))"

    result = engine.run(Query(sql=sql))
    spilled = [path for path in scratch.rglob("*") if path.is_file()]
    result.close()
    engine.close()

    assert spilled
    assert all(path.stat().st_mode & 0o077 == 0 for path in [scratch])
    assert list(scratch.iterdir()) == []


def test_gevent_is_refused(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    gevent = ModuleType("gevent.monkey")
    patched = {"threading"}
    monkeypatch.setattr(gevent, "is_module_patched", patched.__contains__, raising=False)
    monkeypatch.setitem(sys.modules, "gevent.monkey", gevent)
    with pytest.raises(RuntimeError, match="gthread"):
        make_engine()

    patched.clear()

    assert make_engine().is_alive()


def test_threads_and_files_do_not_grow_with_statements(engine: InProcessEngine) -> None:
    def use() -> None:
        for sql in ("SELECT 1", "FROM flights", "SELECT nope", "SELECT CAST(name AS INTEGER) FROM flights"):
            drop(engine, sql, [])
        result = engine.run(Query(sql="SELECT * FROM range(100000)"))
        next(iter(result))
        result.close()

    def held() -> tuple[int, ...]:
        return tuple(len(list(Path("/proc/self", kind).iterdir())) for kind in ("task", "fd"))

    use()
    before = held()
    for _ in range(50):
        use()

    # Threads of engines that other tests closed may still be ending.
    assert all(now <= then for now, then in zip(held(), before, strict=True))


def test_a_callers_flood_leaves_a_place_to_another_key(make_engine: MakeEngine) -> None:
    engine = make_engine(workers=2, max_queued=4, queue_timeout_s=30)
    errors: list[BaseException] = []
    results = []

    def flood() -> None:
        try:
            result = engine.run(Query(sql=ENDLESS, fingerprint="flood"))
            results.append(result)
        except QueryError as exc:
            errors.append(exc)

    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: engine._admission.running + engine._admission.waiting == 3)

    answer = b"".join(engine.run(Query(sql="SELECT 1 AS a", fingerprint="other")))

    assert answer == b'[{"a":1}]'
    engine.close()
    for thread in threads:
        thread.join(5)
    assert len(errors) == 3


def test_an_encoder_that_fails_is_an_error_of_this_room(
    engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        yield b"["
        raise ZeroDivisionError

    monkeypatch.setattr("queryengine.inprocess.encode", broken)

    with pytest.raises(QueryError, match="could not be encoded"):
        ask(engine, "SELECT 1")

    assert engine._admission.running == 0
