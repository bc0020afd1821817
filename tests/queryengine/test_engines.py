"""Statements, their rows and their errors on each kind of engine: in this process, and in worker processes."""

import re
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from queryengine.engine import Encoding, Query, QueryEngine
from queryengine.errors import ParameterError, QueryError, SqlError, StatementError
from tests.corpus import each
from tests.queryengine.asking import ask, rows
from tests.queryengine.conftest import StartEngine
from tests.queryengine.publishing import Publisher, wait_until
from tests.queryengine.statements import DECLARED, FAILING, LASTING, READS, REFUSED


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
        pytest.param(
            "PIVOT few ON name USING max(5::UHUGEINT) GROUP BY carrier ORDER BY carrier",
            [{"carrier": row, **{f"n{other}": 5 if other == row else None for other in range(3)}} for row in range(3)],
            id="pivot that finds its values",
        ),
        pytest.param(
            "FROM (DESCRIBE flights) SELECT column_name AS c, column_type AS t",
            [{"c": "id", "t": "BIGINT"}, {"c": "name", "t": "VARCHAR"}, {"c": "carrier", "t": "BIGINT"}],
            id="describe",
        ),
        pytest.param(
            "FROM (SUMMARIZE flights) SELECT column_name AS c, max AS m, count AS n WHERE c = 'name'",
            [{"c": "name", "m": "n999", "n": 1000}],
            id="summarize",
        ),
        pytest.param("SELECT 1 AS a WHERE false", [], id="empty"),
    ],
)
def test_each_kind_of_statement_answers(engine: QueryEngine, sql: str, expected: object) -> None:
    assert rows(engine, sql) == expected


@pytest.mark.parametrize("sql", ["EXPLAIN SELECT * FROM flights", "EXPLAIN ANALYZE SELECT sum(id) FROM flights"])
def test_explain_shows_a_plan_without_a_path(engine: QueryEngine, state_dir: Path, sql: str) -> None:
    (plan,) = rows(engine, sql)

    assert "flights" in plan["explain_value"]
    assert str(state_dir) not in plan["explain_value"]


@pytest.mark.parametrize("form", ["text", "html", "json", "yaml"])
def test_explain_does_not_tell_how_much_was_read(publisher: Publisher, start_engine: StartEngine, form: str) -> None:
    publisher.publish(flights="SELECT hash(i) AS id FROM range(100000) t(i)")

    (plan,) = rows(start_engine(), f"EXPLAIN (ANALYZE, FORMAT {form}) SELECT sum(id) FROM flights")

    text = plan["explain_value"]
    assert "100,000" in text or "100000" in text
    assert re.findall(r'Data (?:Read|Written): +\S+|bytes_(?:read|written)"?: *[1-9]', text) == []
    if form == "text":
        top, time_, bottom = text.splitlines()[:3]
        assert len(top) == len(time_) == len(bottom)


def test_timings_count_rows_bytes_and_where_the_time_went(engine: QueryEngine) -> None:
    result = engine.run(Query(sql="SELECT * FROM range(100000)"))
    size = sum(map(len, result))

    assert result.timings.rows == 100_000
    assert result.timings.bytes == size
    assert min(result.timings.parse_ms, result.timings.run_ms, result.timings.encode_ms) > 0


@pytest.mark.exhaustive
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


# What a statement may see.


def test_s24_information_schema_lists_what_is_declared(engine: QueryEngine) -> None:
    tables = "SELECT table_catalog, table_schema, table_name, table_type FROM information_schema.tables ORDER BY 3"
    columns = "SELECT DISTINCT table_name FROM information_schema.columns ORDER BY 1"
    schemata = "SELECT catalog_name, schema_name FROM information_schema.schemata"

    found = [ask(engine, sql, encoding="csv").decode().splitlines()[1:] for sql in (tables, columns, schemata)]

    listed = ["runtime,main,few,VIEW", "runtime,main,flights,BASE TABLE"]
    assert found == [listed, ["few", "flights"], ["runtime,main"]]


# Errors.


@each("sql", FAILING)
def test_s27_an_error_is_about_the_callers_own_sql(engine: QueryEngine, state_dir: Path, sql: str) -> None:
    with pytest.raises(StatementError) as caught:
        ask(engine, sql)

    message = str(caught.value)
    assert message
    inner = (str(state_dir), "_s0", "_catalog", "pg_enum", "Traceback", "/work", " Error: ", duckdb.__version__)
    assert not [text for text in inner if text in message]


def test_a_late_failure_raises_from_the_iterator(engine: QueryEngine) -> None:
    # With fewer rows, another thread of the engine may reach the last one before the first batch is read.
    sql = "SELECT CAST(CASE WHEN range > 3000000 THEN 'no' ELSE '1' END AS INTEGER) AS a FROM range(3100000)"
    result = engine.run(Query(sql=sql))

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


@pytest.mark.parametrize("clause", ["ORDER BY $1", "GROUP BY $1"])
def test_a_parameter_in_place_of_a_column_is_the_callers_error(engine: QueryEngine, clause: str) -> None:
    with pytest.raises(SqlError, match="Parameter not supported in"):
        ask(engine, f"SELECT id FROM flights {clause}", [1])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        pytest.param(2**128, "The value of $1 contains an integer larger than 128 bits.", id="S29 over 128 bits"),
        pytest.param(-(10**4200), "The value of $1 contains an integer larger than 128 bits.", id="S29 4,200 digits"),
        pytest.param([10**5000], "The value of $1 contains an integer larger than 128 bits.", id="S29 5,000 digits"),
        pytest.param("\ud800", "The value of $1 contains invalid Unicode: a lone surrogate.", id="S29 surrogate"),
        pytest.param(
            object(), "A parameter value has a type that the engine does not support.", id="S29 no type of SQL"
        ),
        pytest.param([1, {"b": None}], "", id="S29 no common type"),
    ],
)
def test_s29_values_that_no_type_holds(engine: QueryEngine, value: Any, sentence: str) -> None:
    with pytest.raises(ParameterError) as caught:
        ask(engine, "SELECT ?", [value])

    assert str(caught.value) == sentence or not sentence
    with pytest.raises(ParameterError):
        ask(engine, "SELECT ?")


@pytest.mark.exhaustive
def test_s29_ten_thousand_parameters(engine: QueryEngine) -> None:
    sql = f"SELECT list_sum([{', '.join('?' * 10_000)}])::BIGINT AS total"

    assert rows(engine, sql, list(range(10_000))) == [{"total": 49_995_000}]


# Both engines give the same.


def test_both_engines_give_the_same_rows(both: list[QueryEngine]) -> None:
    differ, empty = [], []
    for sql in READS:
        one, other = (sorted(map(repr, rows(engine, sql))) for engine in both)
        if one != other and sql in LASTING:
            differ.append(sql)
        if not one and not ("WHERE false" in sql or "EXCEPT" in sql):
            empty.append(sql)

    assert differ == empty == []


@pytest.mark.parametrize("encoding", ["json", "csv", "arrow", "vnd"])
def test_both_engines_give_the_same_bytes(both: list[QueryEngine], encoding: Encoding) -> None:
    for sql in (
        "FROM flights ORDER BY id",
        "SELECT range, 'text ' || range AS v, [range] AS l FROM range(100000)",
        "SELECT 1 AS a, NULL AS b, 'é' AS c, 1.50::DECIMAL(5,2) AS d, DATE '2020-01-01' AS e",
        "SELECT repeat('x', 3000000) AS wide FROM range(3)",
        "SELECT 1 WHERE false",
    ):
        one, other = (ask(engine, sql, encoding=encoding) for engine in both)

        assert one == other


@each(("check", "sql"), dict(REFUSED).items())  # One of each check: the gate judges them all.
def test_both_engines_refuse_alike_to_run_and_to_describe(
    both: list[QueryEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str, sql: str
) -> None:
    monkeypatch.chdir(tmp_path)
    secret_frame = duckdb.sql("SELECT 'hunter2' AS secret")  # A replacement scan would look for it here.
    refusals = set()
    for engine in both:
        for call in (engine.run, engine.describe):
            with pytest.raises(StatementError) as caught:
                call(Query(sql=sql))
            refusals.add((type(caught.value), str(caught.value)))
        assert rows(engine, "SELECT count(*) AS n, sum(id) AS s, abs(-1) AS a FROM flights") == [
            {"n": 240, "s": 28680, "a": 1}
        ]
        assert [row["name"] for row in rows(engine, "SHOW TABLES")] == sorted(DECLARED)

    assert len(refusals) == 1, check
    ((_, message),) = refusals
    assert "hunter2" in str(secret_frame)
    assert "hunter2" not in message
    assert str(tmp_path.parent) not in message
    assert not list(tmp_path.iterdir())
