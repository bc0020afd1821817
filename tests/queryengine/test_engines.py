"""What every engine does, in this process or in workers of its own: the same tests on both."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from queryengine.cancellation import CancelSource
from queryengine.engine import (
    ACTIVE_SQL_CHARACTERS,
    ArrowParameters,
    Description,
    Encoding,
    Parameters,
    Query,
    QueryEngine,
)
from queryengine.errors import (
    DatasetNotLoadedError,
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
from queryengine.manifest import SNAPSHOT_DIRECTORY
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import RuntimeConfig
from tests.queryengine import engine_tier
from tests.queryengine.asking import ask, fail, rows
from tests.queryengine.conftest import MakeConfig, config_of
from tests.queryengine.publishing import ENDLESS, ENDLESS_AFTER_ROWS, Publisher, open_files, wait_until
from tests.queryengine.statements import READS, REFUSED, TABLES, VIEWS

StartEngine = Callable[..., QueryEngine]

KINDS: dict[str, Callable[[RuntimeConfig], AbstractContextManager[QueryEngine]]] = {
    "in process": lambda config: closing(InProcessEngine(config)),
    "workers": engine_tier.running,
}

FLIGHTS = "SELECT i AS id, 'n' || i AS name, i % 3 AS carrier FROM range(1000) t(i)"
FEW = "SELECT * FROM flights WHERE id < 3"

#: Is read for hours by who describes it.
SLOW_TO_DESCRIBE = "PIVOT (FROM (SELECT range AS a FROM range(1000000000000)) WHERE a < 1) ON a USING count(*)"

#: Rows without end, and the first of them at once.
ENDLESS_ROWS = "SELECT * FROM range(1000000000000)"

#: Seconds that tell a hang from work on a slow machine.
PATIENCE_S = 60.0


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start_engine(kind: str, make_config: MakeConfig) -> Iterator[StartEngine]:
    """Start an engine of a test's own."""
    with ExitStack() as engines:
        yield lambda *args, **kwargs: engines.enter_context(KINDS[kind](make_config(*args, **kwargs)))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[QueryEngine, Path]]]:
    """One engine of each kind, with its state directory, for all tests that change nothing; started when needed."""
    started: dict[str, tuple[QueryEngine, Path]] = {}
    with ExitStack() as engines:

        def get(kind: str) -> tuple[QueryEngine, Path]:
            if kind not in started:
                publisher = Publisher(tmp_path_factory.mktemp("shared") / "state")
                publisher.publish(flights=FLIGHTS)
                config = config_of(publisher.state_dir, views={"few": FEW})
                started[kind] = engines.enter_context(KINDS[kind](config)), publisher.state_dir
            return started[kind]

        yield get


@pytest.fixture
def engine(shared: Callable[[str], tuple[QueryEngine, Path]], kind: str) -> Iterator[QueryEngine]:
    """An engine with the dataset `flights` and the view `few`. It is idle before and after a test."""
    running, _ = shared(kind)
    yield running
    wait_until(lambda: not running.active(""))


@pytest.fixture
def state_dir(shared: Callable[[str], tuple[QueryEngine, Path]], kind: str) -> Path:
    """The state directory of `engine`."""
    return shared(kind)[1]


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
def test_each_kind_of_statement_answers(engine: QueryEngine, sql: str, expected: object) -> None:
    answered = rows(engine, sql)

    if expected is None:
        assert len(answered) == 3
    else:
        assert answered == expected


def test_a_pivot_without_in_finds_its_values(engine: QueryEngine) -> None:
    assert rows(engine, "PIVOT few ON name USING count(*) GROUP BY carrier ORDER BY carrier") == [
        {"carrier": number, **{f"n{other}": int(other == number) for other in range(3)}} for number in range(3)
    ]


def test_describe_and_summarize_name_the_columns(engine: QueryEngine) -> None:
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
def test_explain_shows_a_plan_without_a_path(engine: QueryEngine, state_dir: Path, sql: str) -> None:
    (plan,) = rows(engine, sql)

    assert "flights" in plan["explain_value"]
    assert str(state_dir) not in plan["explain_value"]


@pytest.mark.parametrize("encoding", ["json", "csv", "arrow", "vnd"])
def test_an_answer_comes_in_each_encoding(engine: QueryEngine, encoding: Encoding) -> None:
    answer = ask(engine, "SELECT id, name FROM few ORDER BY id", encoding=encoding)

    assert b"n2" in answer


def test_timings_count_rows_bytes_and_where_the_time_went(engine: QueryEngine) -> None:
    result = engine.run(Query(sql="SELECT * FROM range(100000)"))
    size = sum(map(len, result))

    assert result.timings.rows == 100_000
    assert result.timings.bytes == size
    assert min(result.timings.parse_ms, result.timings.run_ms, result.timings.encode_ms) > 0


def test_the_zone_is_utc_whatever_the_machines(
    publisher: Publisher, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        publisher.publish(flights="SELECT TIMESTAMPTZ '2024-01-02 03:04:05+09' AS seen")
        (row,) = rows(
            start_engine(),
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
def test_s10_to_s24_refuses_and_changes_nothing(engine: QueryEngine, state_dir: Path, sql: str) -> None:
    secret_frame = duckdb.sql("SELECT 'hunter2' AS secret")
    before = rows(engine, "SELECT count(*) AS n, sum(id) AS s, abs(-1) AS a FROM flights")

    with pytest.raises(StatementError) as caught:
        ask(engine, sql)

    assert "hunter2" in str(secret_frame)
    assert "hunter2" not in str(caught.value)
    assert str(state_dir) not in str(caught.value)
    assert rows(engine, "SELECT count(*) AS n, sum(id) AS s, abs(-1) AS a FROM flights") == before
    assert rows(engine, "SHOW TABLES") == [{"name": "few"}, {"name": "flights"}]


def test_s24_information_schema_lists_what_is_declared(engine: QueryEngine) -> None:
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
def test_s27_an_error_is_about_the_callers_own_sql(engine: QueryEngine, state_dir: Path, sql: str) -> None:
    with pytest.raises(StatementError) as caught:
        ask(engine, sql)

    message = str(caught.value)
    assert message
    for inner in (
        str(state_dir),
        "_s0",
        "_catalog",
        "pg_enum",
        "Traceback",
        "/work",
        " Error: ",
        duckdb.__version__,
    ):
        assert inner not in message


def test_a_syntax_error_points_into_the_statement(engine: QueryEngine) -> None:
    with pytest.raises(SqlSyntaxError, match=r'Syntax error at or near "flights" \(line 1, column 14\)'):
        ask(engine, "SELECT 1 FRM flights x y")


def test_a_failure_under_way_raises_from_the_iterator(engine: QueryEngine) -> None:
    result = engine.run(
        Query(sql="SELECT CAST(CASE WHEN range > 9000000 THEN 'no' ELSE '1' END AS INTEGER) FROM range(9999999)")
    )

    with pytest.raises(SqlError, match="Could not convert string 'no'"):
        b"".join(result)

    with pytest.raises(QueryError):
        next(iter(result))
    wait_until(lambda: not engine.active(""))


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
def test_s29_a_value_is_data(engine: QueryEngine, value: object, expected: object) -> None:
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
        pytest.param("SELECT ?", ["\ud800"], id="S29 lone surrogate"),
        pytest.param("SELECT ?", [[1, {"b": None}]], id="S29 no common type"),
    ],
)
def test_s29_parameters_that_do_not_fit(engine: QueryEngine, sql: str, parameters: Parameters | None) -> None:
    with pytest.raises(ParameterError):
        ask(engine, sql, parameters)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        pytest.param(2**128, "The value of $1 holds an integer of more than 128 bits.", id="S29 over 128 bits"),
        pytest.param(-(10**4200), "The value of $1 holds an integer of more than 128 bits.", id="S29 4,200 digits"),
        pytest.param([10**5000], "The value of $1 holds an integer of more than 128 bits.", id="S29 5,000 digits"),
        pytest.param("\ud800", "The value of $1 holds text that is not Unicode: a lone surrogate.", id="S29 surrogate"),
        pytest.param(
            object(), "The value of a parameter is of a type that the engine does not take.", id="S29 no type of SQL"
        ),
    ],
)
def test_s29_values_that_no_type_holds(engine: QueryEngine, value: Any, sentence: str) -> None:
    with pytest.raises(ParameterError) as caught:
        ask(engine, "SELECT ?", [value])

    assert str(caught.value) == sentence


def test_s29_ten_thousand_parameters(engine: QueryEngine) -> None:
    sql = f"SELECT list_sum([{', '.join('?' * 10_000)}])::BIGINT AS total"

    assert rows(engine, sql, list(range(10_000))) == [{"total": 49_995_000}]


# Data that is not there.


def test_statements_without_data_run_before_anything_is_loaded(start_engine: StartEngine) -> None:
    engine = start_engine(
        views={"ids": "SELECT id FROM flights", "twice": "SELECT * FROM ids", "free": "SELECT 1 AS a"}
    )

    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]
    assert rows(engine, "FROM free") == [{"a": 1}]
    assert engine.is_alive()
    with pytest.raises(DatasetNotLoadedError, match=r"Dataset 'flights' is not loaded yet\."):
        ask(engine, "SELECT * FROM flights")
    for view in ("ids", "twice"):
        with pytest.raises(DatasetNotLoadedError, match=rf"View '{view}' .*Dataset 'flights' is not loaded yet\."):
            ask(engine, f"SELECT * FROM {view}")


def test_a_dataset_is_there_as_soon_as_it_is_published(publisher: Publisher, start_engine: StartEngine) -> None:
    engine = start_engine(("flights", "planes"))
    publisher.publish(planes="SELECT 7 AS seats")

    assert rows(engine, "FROM planes") == [{"seats": 7}]
    with pytest.raises(DatasetNotLoadedError, match="'flights'"):
        ask(engine, "FROM flights")


def test_a_view_that_does_not_fit_the_data_fails_alone(publisher: Publisher, start_engine: StartEngine) -> None:
    publisher.publish(flights="SELECT 1 AS other")
    others = "SELECT COLUMNS(*) FROM flights"
    engine = start_engine(views={"ids": "SELECT id FROM flights", "twice": "FROM ids", "others": others})

    with pytest.raises(SqlError, match=r"View 'ids' does not fit the data: .*id") as caught:
        ask(engine, "FROM ids")

    assert "CREATE VIEW" not in str(caught.value)
    assert rows(engine, "FROM flights") == [{"other": 1}]
    with pytest.raises(SqlError, match=r"View 'twice' cannot be read: View 'ids' does not fit the data: .*id"):
        ask(engine, "FROM twice")
    assert rows(engine, "FROM others") == [{"other": 1}]
    assert rows(engine, "SELECT table_name AS t FROM information_schema.tables ORDER BY 1") == [
        {"t": "flights"},
        {"t": "others"},
    ]
    publisher.publish(flights="SELECT 2 AS id")
    assert rows(engine, "FROM ids") == rows(engine, "FROM twice") == [{"id": 2}]


# Streaming, time and cancellation.


def test_first_bytes_come_before_the_last_row(engine: QueryEngine) -> None:
    started = time.monotonic()
    result = engine.run(Query(sql="SELECT * FROM range(200000000)"))
    first = next(iter(result))

    assert time.monotonic() - started < PATIENCE_S
    assert first.startswith(b'[{"range":0}')
    result.close()
    wait_until(lambda: not engine.active(""))


def test_a_statement_ends_at_its_time_limit(publisher: Publisher, start_engine: StartEngine) -> None:
    engine = start_engine(timeout_s=0.5)
    started = time.monotonic()

    with pytest.raises(QueryTimeoutError, match=r"0\.5 s"):
        ask(engine, ENDLESS)

    assert 0.5 <= time.monotonic() - started < PATIENCE_S
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


def test_the_time_limit_holds_under_way(start_engine: StartEngine) -> None:
    engine = start_engine(timeout_s=2)
    result = engine.run(Query(sql=ENDLESS_AFTER_ROWS))
    read = [next(iter(result))]

    with pytest.raises(QueryTimeoutError):
        read.extend(result)

    assert not b"".join(read).endswith(b"]")
    with pytest.raises(QueryError):
        next(iter(result))


def test_a_slow_reader_keeps_no_place_beyond_the_time_limit(start_engine: StartEngine) -> None:
    engine = start_engine(timeout_s=5)
    result = engine.run(Query(sql="SELECT * FROM range(2000000000)"))
    next(iter(result))

    wait_until(lambda: not engine.active(""))

    with pytest.raises(QueryTimeoutError):
        list(result)


def test_cancel_stops_a_statement_that_has_not_answered(engine: QueryEngine) -> None:
    cancel = CancelSource()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            engine.run(Query(sql=ENDLESS), cancel)
        except QueryError as exc:
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: [active.state for active in engine.active("")] == ["running"])
    cancel.cancel()
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    assert [type(error) for error in errors] == [QueryCancelledError]
    wait_until(lambda: not engine.active(""))


def test_a_cancelled_source_stops_a_statement_before_it_begins(engine: QueryEngine) -> None:
    cancel = CancelSource()
    cancel.cancel()

    with pytest.raises(QueryCancelledError):
        engine.run(Query(sql="SELECT 1"), cancel)


@pytest.mark.parametrize("stop", ["cancel", "close"])
def test_a_stream_is_stopped_from_another_thread(engine: QueryEngine, stop: str) -> None:
    result = engine.run(Query(sql=ENDLESS_AFTER_ROWS))
    sizes: list[int] = []
    errors: list[BaseException] = []

    def read() -> None:
        try:
            sizes.extend(map(len, result))
        except QueryError as exc:
            errors.append(exc)

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: sum(sizes) > 500_000)
    getattr(result, stop)()
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    assert [type(error) for error in errors] == [QueryCancelledError]
    wait_until(lambda: not engine.active(""))
    getattr(result, stop)()


def test_close_between_two_chunks_frees_the_engine(engine: QueryEngine) -> None:
    result = engine.run(Query(sql="SELECT * FROM range(200000000)"))
    next(iter(result))

    result.close()
    result.close()

    wait_until(lambda: not engine.active(""))
    with pytest.raises(QueryCancelledError):
        next(iter(result))


def test_close_does_not_wait_for_rows_that_never_come(start_engine: StartEngine) -> None:
    engine = start_engine(timeout_s=600)
    sql = "SELECT range FROM range(1000000000000) WHERE range < 500000 OR range * 2 = 1"

    for _ in range(10):
        result = engine.run(Query(sql=sql))
        size = 0
        while size < 3_000_000:  # The engine is past the last row by then.
            size += len(next(iter(result)))
        thread = threading.Thread(target=result.close, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    wait_until(lambda: not engine.active(""))


def test_cancel_between_two_chunks_frees_the_engine(engine: QueryEngine) -> None:
    result = engine.run(Query(sql="SELECT * FROM range(200000000)"))

    result.cancel()

    wait_until(lambda: not engine.active(""))
    with pytest.raises(QueryCancelledError):
        list(result)


def test_a_short_answer_holds_no_place_while_it_is_read(engine: QueryEngine) -> None:
    result = engine.run(Query(sql="SELECT * FROM flights"))

    wait_until(lambda: not engine.active(""))
    assert len(json.loads(b"".join(result))) == 1000
    result.close()


def test_an_interrupt_reaches_one_statement_only(engine: QueryEngine) -> None:
    one = engine.run(Query(sql="SELECT * FROM range(10000000)"))
    other = engine.run(Query(sql="SELECT * FROM range(3000000)"))
    next(iter(one))

    one.cancel()

    assert b"".join(other).endswith(b'{"range":2999999}]')


def test_a_full_engine_says_so(start_engine: StartEngine) -> None:
    engine = start_engine(workers=1, max_queued=0)
    result = engine.run(Query(sql="SELECT * FROM range(200000000)"))

    with pytest.raises(EngineBusyError):
        ask(engine, "SELECT 1")

    assert engine.is_alive()
    result.close()
    wait_until(lambda: not engine.active(""))
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


# Limits.


def test_memory_used_up_is_a_typed_error(start_engine: StartEngine) -> None:
    engine = start_engine(memory_limit_bytes=64 * 2**20, temp_directory_limit_bytes=2**20)

    with pytest.raises(ResourceLimitError, match="64 MiB"):
        ask(engine, "SELECT len(list(range)) AS n FROM range(100000000)")

    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


def test_temporary_space_used_up_is_a_typed_error(start_engine: StartEngine, publisher: Publisher) -> None:
    engine = start_engine(memory_limit_bytes=100 * 2**20, temp_directory_limit_bytes=8 * 2**20)

    sql = "SELECT v, count(*) FROM (SELECT md5(range::VARCHAR) AS v FROM range(4000000)) GROUP BY v"

    with pytest.raises(ResourceLimitError, match="temporary space") as caught:
        ask(engine, sql)

    assert str(publisher.state_dir) not in str(caught.value)
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


# Generations.


def test_a_statement_sees_what_was_published_before_it(publisher: Publisher, start_engine: StartEngine) -> None:
    engine = start_engine()
    for number in range(5):
        publisher.publish(flights=f"SELECT {number} AS id")

        assert rows(engine, "FROM flights") == [{"id": number}]


def test_a_superseded_file_is_freed_while_nobody_asks(publisher: Publisher, start_engine: StartEngine) -> None:
    publisher.publish(flights=FLIGHTS)
    engine = start_engine()
    rows(engine, "FROM flights")
    (before,) = snapshots_open_below(publisher)
    publisher.publish(flights="SELECT 1 AS id")

    wait_until(lambda: f"{before} (deleted)" not in snapshots_open_below(publisher))

    assert before not in snapshots_open_below(publisher)


def snapshots_open_below(publisher: Publisher) -> set[str]:
    """Names of the snapshots that this process or one below it has open."""
    return {name for name in open_files(publisher.state_dir / SNAPSHOT_DIRECTORY) if ".duckdb" in name}


def test_a_running_statement_keeps_its_generation(publisher: Publisher, start_engine: StartEngine) -> None:
    publisher.publish(flights="SELECT 1 AS g, i AS id FROM range(2000000) t(i)")
    engine = start_engine()
    result = engine.run(Query(sql="SELECT g FROM flights", encoding="csv"))
    (old,) = snapshots_open_below(publisher)
    publisher.publish(flights="SELECT 2 AS g")

    assert rows(engine, "FROM flights") == [{"g": 2}]
    assert f"{old} (deleted)" in snapshots_open_below(publisher)
    lines = b"".join(result).split()

    assert set(lines[1:]) == {b"1"}
    assert len(lines) == 2_000_001
    wait_until(lambda: not any(old in name for name in snapshots_open_below(publisher)))


def test_r01_readers_see_old_or_new_while_data_is_replaced(publisher: Publisher, start_engine: StartEngine) -> None:
    publish = "SELECT {0} AS g, i AS id FROM range(50000) t(i)"
    publisher.publish(flights=publish.format(0), planes=publish.format(0))
    engine = start_engine(("flights", "planes"), views={"all_of_it": "FROM flights UNION ALL FROM planes"})
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
    (row,) = rows(engine, "SELECT min(g) AS low, max(g) AS high FROM all_of_it")
    assert row == {"low": 14, "high": 14}


def test_r18_a_damaged_snapshot_gives_no_wrong_rows(publisher: Publisher, start_engine: StartEngine) -> None:
    manifest = publisher.publish(flights="SELECT hash(i) AS id FROM range(300000) t(i)")
    path = publisher.state_dir / "snapshots" / manifest.snapshots[0].file
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xaa" * 65536)
    engine = start_engine()

    for _ in range(2):
        with pytest.raises(EngineUnavailableError):
            ask(engine, "SELECT sum(id % 7) FROM flights")

    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


# The whole engine.


def test_admit_gates_without_running(engine: QueryEngine) -> None:
    engine.admit("SELECT * FROM source", frozenset({"source"}))

    with pytest.raises(StatementError):
        engine.admit("SELECT * FROM flights", frozenset({"source"}))
    with pytest.raises(StatementNotAllowedError):
        engine.admit("DROP TABLE source", frozenset({"source"}))


def test_threads_and_files_do_not_grow_with_statements(engine: QueryEngine) -> None:
    def use() -> None:
        for sql in ("SELECT 1", "FROM flights", "SELECT nope", "SELECT CAST(name AS INTEGER) FROM flights"):
            fail(engine, sql, [])
        result = engine.run(Query(sql="SELECT * FROM range(100000)"))
        next(iter(result))
        result.close()

    def held() -> tuple[int, ...]:
        return tuple(len(list(Path("/proc/self", kind).iterdir())) for kind in ("task", "fd"))

    use()
    wait_until(lambda: not engine.active(""))
    before = held()
    for _ in range(50):
        use()

    # Threads of engines that other tests closed, and of the last statements, may still be ending.
    wait_until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def test_a_callers_flood_leaves_a_place_to_another_key(start_engine: StartEngine) -> None:
    engine = start_engine(workers=2, max_queued=4, queue_timeout_s=30)
    errors: list[BaseException] = []

    def flood() -> None:
        try:
            engine.run(Query(sql=ENDLESS, fingerprint="flood"))
        except QueryError as exc:
            errors.append(exc)

    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sorted(one.state for one in engine.active("flood")) == ["queued", "queued", "running"])

    answer = b"".join(engine.run(Query(sql="SELECT 1 AS a", fingerprint="other")))

    assert answer == b'[{"a":1}]'
    engine.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(errors) == 3


# What is in hand.


def listed(engine: QueryEngine, fingerprint: str) -> list[tuple[str, str, str]]:
    return [(one.query_id, one.state, one.sql) for one in engine.active(fingerprint)]


def test_a_statement_is_active_until_it_ends(engine: QueryEngine) -> None:
    sql = ENDLESS_ROWS
    before = datetime.now(UTC)
    result = engine.run(Query(sql=sql, query_id="the-id", fingerprint="mine"))

    (active,) = engine.active("mine")
    assert (active.query_id, active.state, active.sql) == ("the-id", "running", sql)
    assert active.started.endswith("Z")
    assert before - timedelta(milliseconds=1) <= datetime.fromisoformat(active.started) <= datetime.now(UTC)
    result.close()
    wait_until(lambda: not engine.active("mine"))


def test_an_active_statement_is_cut(engine: QueryEngine) -> None:
    sql = f"/* {'é😀' * 1000} */ SELECT * FROM range(200000000)"

    result = engine.run(Query(sql=sql, fingerprint="mine"))

    assert [one.sql for one in engine.active("mine")] == [sql[:ACTIVE_SQL_CHARACTERS]]
    result.close()


def test_a_key_has_its_own_statements_only(engine: QueryEngine) -> None:
    one = engine.run(Query(sql=ENDLESS_ROWS, query_id="a", fingerprint="mine"))
    other = engine.run(Query(sql=ENDLESS_ROWS, query_id="b", fingerprint="yours"))

    assert [row[0] for row in listed(engine, "mine")] == ["a"]
    assert [row[0] for row in listed(engine, "yours")] == ["b"]
    assert listed(engine, "") == listed(engine, "nobodys") == []
    for query_id, fingerprint in (("a", "yours"), ("b", "mine"), ("a", ""), ("c", "mine"), ("", "mine")):
        assert not engine.cancel(query_id, fingerprint)
    assert engine.cancel("a", "mine")
    with pytest.raises(QueryCancelledError):
        list(one)
    assert [row[0] for row in listed(engine, "yours")] == ["b"]
    other.close()
    wait_until(lambda: not engine.active("mine") and not engine.active("yours"))
    assert not engine.cancel("a", "mine")


def test_what_waits_is_active_and_cancelled_too(start_engine: StartEngine) -> None:
    engine = start_engine(workers=1, queue_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S)
    errors: list[BaseException] = []
    holding = engine.run(Query(sql=ENDLESS_ROWS, query_id="first", fingerprint="mine"))

    def run() -> None:
        try:
            engine.run(Query(sql="SELECT 1", query_id="second", fingerprint="mine"))
        except QueryError as exc:
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    expected = [("first", "running", ENDLESS_ROWS), ("second", "queued", "SELECT 1")]
    wait_until(lambda: listed(engine, "mine") == expected)
    assert engine.cancel("second", "mine")
    thread.join(PATIENCE_S)

    assert [type(error) for error in errors] == [QueryCancelledError]
    assert listed(engine, "mine") == expected[:1]
    holding.close()


def test_a_statement_without_a_row_yet_is_cancelled(engine: QueryEngine) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            engine.run(Query(sql=ENDLESS, query_id="slow", fingerprint="mine"))
        except QueryError as exc:
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: [row[1] for row in listed(engine, "mine")] == ["running"])
    assert engine.cancel("slow", "mine")
    thread.join(PATIENCE_S)

    assert [type(error) for error in errors] == [QueryCancelledError]
    wait_until(lambda: not engine.active("mine"))


# Both engines say the same.


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[QueryEngine]]:
    """An engine of each kind over the data for which the corpora of statements are written."""
    publisher = Publisher(tmp_path_factory.mktemp("both") / "state")
    publisher.publish(**TABLES)
    config = config_of(publisher.state_dir, tuple(TABLES), VIEWS)
    with ExitStack() as engines:
        yield [engines.enter_context(start(config)) for start in KINDS.values()]


#: What is in a statement whose rows differ from run to run; of two equally frequent values `mode` gives either,
#: and distinct values have no order.
CHANGING = ("current_timestamp", "USING SAMPLE", "ANALYZE", "mode(", "list(DISTINCT")


def test_both_engines_give_the_same_rows(both: list[QueryEngine]) -> None:
    differ = []
    for sql in READS:
        one, other = (sorted(map(repr, rows(engine, sql))) for engine in both)
        if one != other and not any(word in sql for word in CHANGING):
            differ.append(sql)

    assert differ == []


@pytest.mark.parametrize("encoding", ["json", "csv", "arrow", "vnd"])
def test_both_engines_give_the_same_bytes(both: list[QueryEngine], encoding: Encoding) -> None:
    for sql in (
        "FROM flights ORDER BY id",
        "SELECT range, range::VARCHAR AS v FROM range(100000)",
        "SELECT 1 WHERE false",
    ):
        one, other = (ask(engine, sql, encoding=encoding) for engine in both)

        assert one == other


@pytest.mark.parametrize(("check", "sql"), REFUSED, ids=[f"{check}: {sql[:60]}" for check, sql in REFUSED])
def test_both_engines_refuse_alike(both: list[QueryEngine], check: str, sql: str) -> None:
    refusals = []
    for engine in both:
        with pytest.raises(StatementError) as caught:
            ask(engine, sql)
        refusals.append((type(caught.value), str(caught.value)))

    assert refusals[0] == refusals[1], check


# Describing.


def arrow_schema(engine: QueryEngine, sql: str, parameters: Parameters | None = None) -> pa.Schema:
    """Return the schema that an answer begins with."""
    with pa.ipc.open_stream(ask(engine, sql, parameters, "arrow")) as reader:
        return reader.schema


def described(engine: QueryEngine, sql: str, parameters: Parameters | None = None) -> pa.Schema:
    """Return the schema that describing it gives."""
    schema = engine.describe(Query(sql=sql, parameters=parameters)).schema
    assert schema is not None
    return pa.ipc.read_schema(pa.BufferReader(schema))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, id FROM few",
        "SELECT 5::UHUGEINT AS x, INTERVAL 1 DAY AS x, 'a'::ENUM('a', 'b') AS e, {'a': [1]} AS s, MAP {1: 'x'} AS m",
        "SELECT TIMESTAMPTZ '2024-01-01 00:00:00+01' AS t, 1::DECIMAL(38, 3) AS d, NULL AS n, uuid() AS u",
        "SELECT * FROM few WHERE false",
        "PIVOT flights ON carrier USING count(*)",
        "EXPLAIN ANALYZE SELECT 1",
    ],
)
def test_a_description_is_what_the_answer_begins_with(engine: QueryEngine, sql: str) -> None:
    assert described(engine, sql).equals(arrow_schema(engine, sql), check_metadata=True)


@pytest.mark.parametrize(
    "sql", [ENDLESS, f"EXPLAIN ANALYZE {ENDLESS}", f"EXPLAIN (ANALYZE, FORMAT json) {ENDLESS}", f"SUMMARIZE {ENDLESS}"]
)
def test_a_description_runs_nothing(engine: QueryEngine, sql: str) -> None:
    assert described(engine, sql).names


def test_a_description_names_the_parameters(engine: QueryEngine) -> None:
    numbers = " + ".join(f"${number}" for number in range(1, 12))

    many = engine.describe(Query(sql=f"SELECT {numbers} AS a FROM flights"))
    named = engine.describe(Query(sql="SELECT id FROM flights WHERE name = $n AND id = $i"))

    assert many.parameters == tuple(map(str, range(1, 12)))
    assert named.parameters == ("i", "n")
    assert named.schema is not None
    assert engine.describe(Query(sql="SELECT 1")).parameters == ()


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM unnest($1)", "SELECT quantile_cont(id, $x) FROM flights"], ids=["a list", "no null"]
)
def test_a_schema_may_depend_on_values(engine: QueryEngine, sql: str) -> None:
    assert engine.describe(Query(sql=sql)).schema is None


def test_values_decide_about_the_schema(engine: QueryEngine) -> None:
    for values in ([1], ["x"], [[1, 2]]):
        assert described(engine, "SELECT $1 AS a", values) == arrow_schema(engine, "SELECT $1 AS a", values)


def test_values_may_come_in_arrow(engine: QueryEngine) -> None:
    table = pa.table({"a": pa.array([1], pa.timestamp("ns")), "b": [[1, 2]]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    values = ArrowParameters(bytes(sink.getvalue()))

    assert rows(engine, "SELECT $1 AS a, $2 AS b", values) == [{"a": "1970-01-01T00:00:00.000000001", "b": [1, 2]}]
    with pytest.raises(ParameterError, match="takes 1 parameter, and 2 are given"):
        described(engine, "SELECT $1 AS a", values)
    with pytest.raises(ParameterError, match="that can be read"):
        described(engine, "SELECT $1 AS a", ArrowParameters(b"nonsense"))


def test_nobody_says_in_json_that_values_are_in_arrow(engine: QueryEngine) -> None:
    with pytest.raises(ParameterError):
        ask(engine, "SELECT $1", {"arrow_parameters": "eA=="})


def test_every_statement_that_runs_is_described(both: list[QueryEngine]) -> None:
    for engine in both:
        for sql in READS:
            try:
                answer = arrow_schema(engine, sql)
            except StatementError:
                continue
            assert described(engine, sql) == answer, sql


@pytest.mark.parametrize(("check", "sql"), REFUSED, ids=[f"{check}: {sql[:60]}" for check, sql in REFUSED])
def test_what_is_refused_is_not_described(both: list[QueryEngine], check: str, sql: str) -> None:
    with pytest.raises(StatementError) as run:
        ask(both[0], sql)
    for engine in both:
        with pytest.raises(type(run.value)) as describing:
            engine.describe(Query(sql=sql))
        assert str(describing.value) == str(run.value)


@pytest.mark.parametrize("sql", ["SELECT nope FROM flights", "SELECT nope + $1 FROM flights", "EXPLAIN SELECT nope"])
def test_a_binder_error_is_about_the_callers_own_sql(engine: QueryEngine, sql: str) -> None:
    with pytest.raises(SqlError, match="nope") as wrong:
        engine.describe(Query(sql=sql))

    assert "PREPARE" not in str(wrong.value)
    assert "LINE 1" in str(wrong.value) or "LINE" not in str(wrong.value)
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


def test_a_description_ends_at_its_time_limit(start_engine: StartEngine) -> None:
    engine = start_engine(timeout_s=0.5)

    with pytest.raises(QueryTimeoutError):
        engine.describe(Query(sql=SLOW_TO_DESCRIBE))


def test_a_description_is_active_and_cancelled(engine: QueryEngine) -> None:
    errors: list[QueryError] = []

    def describe() -> None:
        try:
            engine.describe(Query(sql=SLOW_TO_DESCRIBE, query_id="described", fingerprint="f1"))
        except QueryError as exc:
            errors.append(exc)

    thread = threading.Thread(target=describe)
    thread.start()
    wait_until(lambda: [one.state for one in engine.active("f1")] == ["running"])

    assert engine.cancel("described", "f1")

    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [QueryCancelledError]


def test_a_token_cancels_a_description(engine: QueryEngine) -> None:
    cancel = CancelSource()
    cancel.cancel()

    with pytest.raises(QueryCancelledError):
        engine.describe(Query(sql=SLOW_TO_DESCRIBE), cancel)


def ahead(engine: QueryEngine, sql: str, parameters: Parameters | None = (), **query: Any) -> Description:
    """Describe a statement and run it to its end, if it has one."""
    return engine.describe(Query(sql=sql, parameters=parameters, encoding="flight", **query), ahead_s=PATIENCE_S)


@pytest.mark.parametrize(
    "sql", ["SELECT id, name FROM few", "SELECT 1 AS a WHERE false", "EXPLAIN ANALYZE SELECT 1", "SHOW TABLES"]
)
def test_a_short_answer_comes_with_its_description(engine: QueryEngine, sql: str) -> None:
    found = ahead(engine, sql)

    assert found.answer is not None
    assert found.schema == engine.describe(Query(sql=sql)).schema
    if not sql.startswith("EXPLAIN"):  # which has its times in it
        assert b"".join(found.answer.chunks) == ask(engine, sql, encoding="flight")


def test_an_answer_with_parameters(engine: QueryEngine) -> None:
    one, two = (ahead(engine, "SELECT id FROM flights WHERE id < $1", [limit]) for limit in (1, 2))

    assert one.answer is not None
    assert two.answer is not None
    assert (one.answer.timings.rows, two.answer.timings.rows) == (1, 2)
    assert ahead(engine, "SELECT id FROM flights WHERE id < $1", None).answer is None


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(ENDLESS_ROWS, id="many rows"),
        pytest.param("SELECT repeat('x', 100000) AS a", id="many bytes"),
    ],
)
def test_a_long_answer_does_not_come_with_its_description(engine: QueryEngine, sql: str) -> None:
    found = ahead(engine, sql)

    assert found.answer is None
    assert found.schema == engine.describe(Query(sql=sql)).schema


@pytest.mark.parametrize("sql", [ENDLESS, f"EXPLAIN ANALYZE {ENDLESS}"])
def test_a_statement_that_takes_long_is_described(engine: QueryEngine, sql: str) -> None:
    found = engine.describe(Query(sql=sql, encoding="flight"), ahead_s=0.02)

    assert found.answer is None
    assert found.schema == engine.describe(Query(sql=sql)).schema


@pytest.mark.parametrize(
    ("sql", "is_steady"),
    [
        ("SELECT id FROM few", True),
        ("SELECT now()", False),
        ("SELECT random()", False),
        ("SHOW TABLES", False),
        ("EXPLAIN SELECT 1", False),
    ],
)
def test_a_description_says_whether_the_data_alone_decides(engine: QueryEngine, sql: str, is_steady: bool) -> None:
    assert engine.describe(Query(sql=sql)).is_steady is is_steady


def test_a_view_over_the_clock_is_not_steady(start_engine: StartEngine) -> None:
    engine = start_engine(views={"clock": "SELECT now() AS t", "over": "SELECT * FROM clock"})

    assert not engine.describe(Query(sql="FROM over")).is_steady


def test_what_fails_ahead_fails(engine: QueryEngine) -> None:
    with pytest.raises(SqlError, match="Could not convert"):
        ahead(engine, "SELECT name::INTEGER FROM few")
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


def test_a_statement_ahead_ends_at_its_time_limit(start_engine: StartEngine) -> None:
    engine = start_engine(timeout_s=0.5)

    with pytest.raises(QueryTimeoutError):
        ahead(engine, ENDLESS)


def test_a_statement_ahead_is_active_and_cancelled(engine: QueryEngine) -> None:
    errors: list[QueryError] = []

    def describe() -> None:
        try:
            ahead(engine, ENDLESS, query_id="ahead", fingerprint="f1")
        except QueryError as exc:
            errors.append(exc)

    thread = threading.Thread(target=describe)
    thread.start()
    wait_until(lambda: [one.state for one in engine.active("f1")] == ["running"])

    assert engine.cancel("ahead", "f1")

    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [QueryCancelledError]
