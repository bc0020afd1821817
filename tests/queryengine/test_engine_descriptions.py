"""Active statements and descriptions on each kind of engine: in this process, and in worker processes."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from queryengine.cancellation import CancelSource
from queryengine.engine import ACTIVE_SQL_CHARACTERS, ArrowParameters, Description, Parameters, Query, QueryEngine
from queryengine.errors import ParameterError, QueryCancelledError, QueryTimeoutError, SqlError, StatementError
from tests.corpus import each
from tests.queryengine.asking import ask, begin, error_of, rows
from tests.queryengine.conftest import StartEngine
from tests.queryengine.publishing import ENDLESS, ENDLESS_ROWS, PATIENCE_S, SLOW_TO_DESCRIBE, wait_until
from tests.queryengine.statements import READS

# Active statements.


def listed(engine: QueryEngine, fingerprint: str) -> list[tuple[str, str, str]]:
    return [(one.query_id, one.state, one.sql) for one in engine.active(fingerprint)]


def test_a_statement_is_active_until_it_ends(engine: QueryEngine) -> None:
    sql = f"/* {'é😀' * 1000} */ {ENDLESS_ROWS}"
    before = datetime.now(UTC)
    result = engine.run(Query(sql=sql, query_id="the-id", fingerprint="mine"))

    (active,) = engine.active("mine")
    assert (active.query_id, active.state, active.sql) == ("the-id", "running", sql[:ACTIVE_SQL_CHARACTERS])
    assert active.started.endswith("Z")
    assert before - timedelta(milliseconds=1) <= datetime.fromisoformat(active.started) <= datetime.now(UTC)
    result.close()
    wait_until(lambda: not engine.active("mine"))


def test_a_key_sees_and_cancels_only_its_own_statements(engine: QueryEngine) -> None:
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
    assert sum(len(chunk) for chunk, _ in zip(other, range(9), strict=False)), "it still runs"
    other.close()
    wait_until(lambda: not engine.active("mine") and not engine.active("yours"))
    assert not engine.cancel("a", "mine")


def test_a_queued_statement_is_active_and_can_be_cancelled(start_engine: StartEngine) -> None:
    engine = start_engine(workers=1, queue_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S)
    holding = engine.run(Query(sql=ENDLESS_ROWS, query_id="first", fingerprint="mine"))
    queued = begin(lambda: engine.run(Query(sql="SELECT 1", query_id="second", fingerprint="mine")))
    expected = [("first", "running", ENDLESS_ROWS), ("second", "queued", "SELECT 1")]
    wait_until(lambda: listed(engine, "mine") == expected)
    assert engine.cancel("second", "mine")

    assert error_of(queued) is QueryCancelledError
    assert listed(engine, "mine") == expected[:1]
    holding.close()


#: Calls that do not end by themselves.
NEVER_ENDING: dict[str, Callable[[QueryEngine, Query, CancelSource], object]] = {
    "run": lambda engine, query, cancel: engine.run(replace(query, sql=ENDLESS), cancel),
    "describe": lambda engine, query, cancel: engine.describe(replace(query, sql=SLOW_TO_DESCRIBE), cancel),
    "speculate": lambda engine, query, cancel: engine.describe(
        replace(query, sql=ENDLESS), cancel, speculate_s=PATIENCE_S
    ),
}


@pytest.mark.parametrize("by", ["token", "id"])
@each("call", NEVER_ENDING.values())
def test_a_statement_without_a_row_yet_is_cancelled(engine: QueryEngine, call: Callable[..., object], by: str) -> None:
    cancel = CancelSource()
    running = begin(lambda: call(engine, Query(sql="", query_id="slow", fingerprint="mine"), cancel))
    wait_until(lambda: [one.state for one in engine.active("mine")] == ["running"])
    if by == "token":
        cancel.cancel()
    else:
        assert engine.cancel("slow", "mine")

    assert error_of(running) is QueryCancelledError
    wait_until(lambda: not engine.active("mine"))


def test_a_cancelled_token_stops_a_statement_before_it_begins(engine: QueryEngine) -> None:
    cancel = CancelSource()
    cancel.cancel()

    for call in NEVER_ENDING.values():
        with pytest.raises(QueryCancelledError):
            call(engine, Query(sql=""), cancel)


def test_a_statement_ends_at_its_time_limit(start_engine: StartEngine) -> None:
    engine = start_engine(timeout_s=0.5)

    for call in NEVER_ENDING.values():
        started = time.monotonic()
        with pytest.raises(QueryTimeoutError, match=r"0\.5 s"):
            call(engine, Query(sql=""), CancelSource())
        assert 0.5 <= time.monotonic() - started < PATIENCE_S
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


# Descriptions.


def arrow_schema(engine: QueryEngine, sql: str, parameters: Parameters | None = None) -> pa.Schema:
    """Return the schema that an answer begins with."""
    with pa.ipc.open_stream(ask(engine, sql, parameters, "arrow")) as reader:
        return reader.schema


def described(engine: QueryEngine, sql: str, parameters: Parameters | None = None) -> pa.Schema:
    """Return the schema that describing it gives."""
    schema = engine.describe(Query(sql=sql, parameters=parameters)).schema
    assert schema is not None
    return pa.ipc.read_schema(pa.BufferReader(schema))


@each(
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


@pytest.mark.parametrize("prefix", ["", "EXPLAIN ANALYZE ", "EXPLAIN (ANALYZE, FORMAT json) ", "SUMMARIZE "])
def test_a_description_runs_nothing(engine: QueryEngine, prefix: str) -> None:
    assert described(engine, prefix + ENDLESS).names


def test_a_description_names_the_parameters(engine: QueryEngine) -> None:
    numbers = " + ".join(f"${number}" for number in range(1, 12))

    many = engine.describe(Query(sql=f"SELECT {numbers} AS a FROM flights"))
    named = engine.describe(Query(sql="SELECT id FROM flights WHERE name = $n AND id = $i"))

    assert many.parameters == tuple(map(str, range(1, 12)))
    assert named.parameters == ("i", "n")
    assert named.schema is not None
    assert engine.describe(Query(sql="SELECT 1")).parameters == ()


def test_a_schema_may_depend_on_values(engine: QueryEngine) -> None:
    for sql in ("SELECT * FROM unnest($1)", "SELECT quantile_cont(id, $x) FROM flights"):
        assert engine.describe(Query(sql=sql)).schema is None
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
    with pytest.raises(ParameterError, match="readable"):
        described(engine, "SELECT $1 AS a", ArrowParameters(b"nonsense"))


def test_json_parameters_cannot_claim_to_be_arrow(engine: QueryEngine) -> None:
    with pytest.raises(ParameterError):
        ask(engine, "SELECT $1", {"arrow_parameters": "eA=="})


@pytest.mark.exhaustive
def test_every_statement_that_runs_is_described(both: list[QueryEngine]) -> None:
    for engine in both:
        for sql in READS:
            try:
                answer = arrow_schema(engine, sql)
            except StatementError:
                continue
            assert described(engine, sql) == answer, sql


@pytest.mark.parametrize("sql", ["SELECT nope FROM flights", "SELECT nope + $1 FROM flights", "EXPLAIN SELECT nope"])
def test_a_binder_error_is_about_the_callers_own_sql(engine: QueryEngine, sql: str) -> None:
    with pytest.raises(SqlError, match="nope") as wrong:
        engine.describe(Query(sql=sql))

    assert "PREPARE" not in str(wrong.value)
    assert "LINE 1" in str(wrong.value) or "LINE" not in str(wrong.value)
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


NONE_GIVEN: Parameters = []


def speculate(engine: QueryEngine, sql: str, parameters: Parameters | None = NONE_GIVEN, **query: Any) -> Description:
    """Describe a statement and run it speculatively, to its end if it has one."""
    return engine.describe(Query(sql=sql, parameters=parameters, encoding="flight", **query), speculate_s=PATIENCE_S)


@pytest.mark.parametrize(
    "sql", ["SELECT id, name FROM few", "SELECT 1 AS a WHERE false", "EXPLAIN ANALYZE SELECT 1", "SHOW TABLES"]
)
def test_a_small_result_comes_with_its_description(engine: QueryEngine, sql: str) -> None:
    found = speculate(engine, sql)

    assert found.answer is not None
    assert found.schema == engine.describe(Query(sql=sql)).schema
    if not sql.startswith("EXPLAIN"):  # which has its times in it
        assert b"".join(found.answer.chunks) == ask(engine, sql, encoding="flight")


def test_speculation_takes_parameters(engine: QueryEngine) -> None:
    one, two = (speculate(engine, "SELECT id FROM flights WHERE id < $1", [limit]) for limit in (1, 2))

    assert one.answer is not None
    assert two.answer is not None
    assert (one.answer.timings.rows, two.answer.timings.rows) == (1, 2)
    assert speculate(engine, "SELECT id FROM flights WHERE id < $1", None).answer is None


@pytest.mark.parametrize(
    ("sql", "speculate_s"),
    [
        pytest.param(ENDLESS_ROWS, PATIENCE_S, id="many rows"),
        pytest.param("SELECT repeat('x', 100000) AS a", PATIENCE_S, id="many bytes"),
        pytest.param(ENDLESS, 0.02, id="slow"),
        pytest.param(f"EXPLAIN ANALYZE {ENDLESS}", 0.02, id="slow to explain"),
    ],
)
def test_a_large_or_slow_result_does_not_come_with_its_description(
    engine: QueryEngine, sql: str, speculate_s: float
) -> None:
    found = engine.describe(Query(sql=sql, encoding="flight"), speculate_s=speculate_s)

    assert found.answer is None
    assert found.schema == engine.describe(Query(sql=sql)).schema


def test_a_description_says_whether_the_result_is_cacheable(engine: QueryEngine) -> None:
    assert engine.describe(Query(sql="SELECT id FROM few")).is_cacheable
    for sql in ("SELECT now()", "SELECT random()", "SHOW TABLES", "EXPLAIN SELECT 1"):
        assert not engine.describe(Query(sql=sql)).is_cacheable


def test_speculation_reports_a_failure(engine: QueryEngine) -> None:
    with pytest.raises(SqlError, match="Could not convert"):
        speculate(engine, "SELECT name::INTEGER FROM few")
    assert rows(engine, "SELECT 1 AS a") == [{"a": 1}]


def test_a_view_over_the_clock_is_not_cacheable(start_engine: StartEngine) -> None:
    engine = start_engine(views={"clock": "SELECT now() AS t", "over": "SELECT * FROM clock"})

    assert not engine.describe(Query(sql="FROM over")).is_cacheable
