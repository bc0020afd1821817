"""Remembered answers: the same tests on an engine in this process and on workers. None is ever out of date."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from queryengine.cache.cached_engine import READ_AHEAD_BYTES, CachedEngine, remembering
from queryengine.engine import ArrowParameters, Query, QueryEngine, timings_of
from queryengine.errors import QueryCancelledError, QueryError, QueryTimeoutError, SqlError, StatementNotAllowedError
from queryengine.manifest import manifest_path
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import MIB
from tests.corpus import each
from tests.queryengine.asking import ask_cached as ask
from tests.queryengine.cache.conftest import StartCached, cached_config
from tests.queryengine.publishing import Publisher
from tests.queryengine.statements import READS


def states(engine: QueryEngine, *statements: str) -> list[str]:
    return [ask(engine, sql)[1] for sql in statements]


# What is given again.


def test_a_result_is_served_from_the_cache(engine: CachedEngine) -> None:
    first = ask(engine, "SELECT id, 'a  b' AS text FROM few -- once")
    again = engine.run(Query(sql="SELECT id, 'a  b' AS text\nFROM few;", cache="use"))

    assert first == (b'[{"id":1,"text":"a  b"}]', "miss")
    assert b"".join(again) == first[0]
    assert (again.timings.cache, again.timings.rows, again.timings.bytes) == ("hit", 1, len(first[0]))
    again.cancel()
    again.close()


V = "SELECT $1 AS a, typeof($1) AS b"
PARAMETERS = [1, 2, 1.0, "1", True, None, -0.0, 0.0, 0, False, "", "a", "A", [1], ["1"], {"a": 1}, {"A": 1}]
LITERALS = ["'a'", "'A'", "'a '", "1", "1.0", "1e0", "2", 'id AS "X"', 'id AS "x"', "id AS X", "id", "$$a$$"]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(
            [("SELECT 1 AS a", None, encoding) for encoding in ("json", "csv", "arrow", "vnd")], id="encodings"
        ),
        pytest.param([(V, [value]) for value in PARAMETERS], id="parameters that differ as JSON"),
        pytest.param([("SELECT $a AS a", {"a": value}) for value in (1, "1")], id="parameters by name"),
        pytest.param([(f"SELECT {one} FROM flights",) for one in LITERALS], id="literals and names"),
    ],
)
def test_what_differs_is_cached_by_itself(engine: CachedEngine, asked: list[tuple[Any, ...]]) -> None:
    answers = [ask(engine, *one) for one in asked]

    assert [state for _, state in answers] == ["miss"] * len(answers)
    assert [ask(engine, *one) for one in asked] == [(answer, "hit") for answer, _ in answers]


@pytest.mark.parametrize("sql", ["SELECT 1 AS a", "SELECT * FROM range(20000)"], ids=["small", "large"])
def test_a_cached_result_keeps_the_digest_of_its_statement(engine: CachedEngine, sql: str) -> None:
    seen = []
    for _ in range(2):
        with closing(engine.run(Query(sql=sql, cache="use"))) as result:
            b"".join(result)
            seen.append((result.timings.cache, result.timings.statement))

    assert [state for state, _ in seen] == ["miss", "hit"]
    assert seen[0][1] == seen[1][1] != ""


def test_a_result_that_fails_while_it_is_read_ahead_has_the_timings_until_then(engine: CachedEngine) -> None:
    sql = "SELECT CASE WHEN range > 4000 THEN error('late') ELSE range END AS n FROM range(5000)"
    assert len('{"n":4000},') * 4000 < READ_AHEAD_BYTES, "the failure must come before the end of what is read ahead"
    with pytest.raises(QueryError) as caught:
        engine.run(Query(sql=sql, cache="use"))

    timings = timings_of(caught.value)
    assert timings is not None
    assert timings.statement


def test_results_for_parameters_that_are_not_json_are_not_cached(engine: CachedEngine) -> None:
    with pytest.raises(QueryError):
        engine.run(Query(sql="SELECT $1", parameters=[object()], cache="use"))
    with pytest.raises(QueryError):
        engine.run(Query(sql="SELECT $1", parameters=ArrowParameters(b"no stream"), cache="use"))


@each("sql", [sql for sql in READS if "flights" not in sql][:150])
def test_a_cached_result_is_the_first_result(engine: CachedEngine, sql: str) -> None:
    try:
        first = ask(engine, sql)
    except QueryError as failed:
        with pytest.raises(type(failed)):
            ask(engine, sql)
        return

    again = ask(engine, sql)

    assert again[1] in {"hit", "miss"}
    if again[1] == "hit":
        assert again[0] == first[0]


# What is not.


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT random()",
        "SELECT 1 FROM flights, over_noise",
        "FROM numbers USING SAMPLE 3",
        "EXPLAIN SELECT 1",
        "SHOW TABLES",
        "FROM information_schema.tables",
        "PIVOT flights ON id",
    ],
)
def test_statements_that_read_more_than_data_run_each_time(engine: CachedEngine, sql: str) -> None:
    assert states(engine, sql, sql, sql) == ["miss"] * 3


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT", QueryError),
        ("SELECT absent", SqlError),
        ("FROM absent", QueryError),
        ("DROP TABLE flights", StatementNotAllowedError),
        ("SELECT CASE WHEN n > 200000 THEN error('late') ELSE n END FROM numbers", SqlError),
    ],
)
def test_no_error_is_cached(engine: CachedEngine, sql: str, error: type[QueryError]) -> None:
    for _ in range(2):
        with pytest.raises(error):
            ask(engine, sql)
    assert not engine._cache.used_bytes
    assert not (engine._data_version and engine._data_version.groups)


def test_a_caller_can_bypass_or_renew_what_is_cached(engine: CachedEngine) -> None:
    assert ask(engine, "SELECT 7", cache="none") == (b'[{"7":7}]', "bypass")
    assert ask(engine, "SELECT 7") == (b'[{"7":7}]', "miss")
    assert ask(engine, "SELECT 7", cache="none") == (b'[{"7":7}]', "bypass")

    assert ask(engine, "SELECT 8", cache="renew")[1] == "bypass"
    assert ask(engine, "SELECT 8")[1] == "hit"
    assert ask(engine, "SELECT 8", cache="renew")[1] == "bypass"


# Size.


def test_a_large_result_is_collected_while_it_is_streamed(engine: CachedEngine) -> None:
    sql = "SELECT n FROM numbers WHERE n < 40000"
    first = ask(engine, sql)

    again = ask(engine, sql)

    assert len(first[0]) > 4 * READ_AHEAD_BYTES
    assert (first[1], again[1]) == ("miss", "hit")
    assert again[0] == first[0]
    assert len(first[0]) < engine._cache.used_bytes < 1.1 * len(first[0]) + 10_000


def test_a_result_that_is_too_large_is_not_cached(start: StartCached) -> None:
    engine = start(max_bytes=MIB)
    assert states(engine, "SELECT 1", "SELECT 1") == ["miss", "hit"]

    sql = "SELECT n FROM numbers"
    answers = [ask(engine, sql) for _ in range(2)]

    assert [state for _, state in answers] == ["miss", "miss"]
    assert answers[0][0].count(b"n") == 300000
    assert engine._cache.used_bytes < MIB // 8
    assert states(engine, "SELECT 1") == ["hit"]  # and has driven nobody out


def test_an_incomplete_result_is_not_cached(engine: CachedEngine) -> None:
    sql = "SELECT n FROM numbers WHERE n < 200000"
    result = engine.run(Query(sql=sql, cache="use"))
    next(iter(result))
    result.close()
    result.close()
    assert not engine._cache.used_bytes

    result = engine.run(Query(sql=sql, cache="use"))
    result.cancel()
    with pytest.raises(QueryCancelledError):
        list(result)
    result.close()

    assert not engine._cache.used_bytes
    assert ask(engine, sql)[1] == "miss"


def test_memory_held_by_slow_clients_counts_until_they_close(start: StartCached) -> None:
    engine = start(max_bytes=MIB)
    largest = "SELECT n, {number} AS b FROM numbers WHERE n < 5000"
    held = []
    for number in range(20):
        sql = largest.format(number=number)
        ask(engine, sql)
        again = engine.run(Query(sql=sql, cache="use"))
        next(iter(again))
        if again.timings.cache == "hit":
            held.append(again)
        else:
            again.close()
        assert engine._cache.used_bytes <= MIB

    assert 5 < len(held) < 20
    assert states(engine, "SELECT 1", "SELECT 1") == ["miss", "hit"]
    answer = b"".join(held[0])
    for result in held:
        result.close()
        result.close()
    assert answer.endswith(b"}]")
    assert ask(engine, largest.format(number=99))[1] == "miss"
    assert ask(engine, largest.format(number=99))[1] == "hit"
    assert engine._cache.used_bytes <= MIB


def test_a_large_cached_result_has_the_limits_of_a_statement(engine: CachedEngine) -> None:
    sql = "SELECT n FROM numbers WHERE n < 40000"
    ask(engine, sql)

    with closing(engine.run(Query(sql=sql, cache="use", timeout_s=0.0))) as late, pytest.raises(QueryTimeoutError):
        next(iter(late))
    with closing(engine.run(Query(sql=sql, cache="use"))) as cancelled:
        next(iter(cancelled))
        cancelled.cancel()
        with pytest.raises(QueryCancelledError):
            next(iter(cancelled))
    assert late.timings.cache == cancelled.timings.cache == "hit"


# Data that is replaced.


def test_a_manifest_that_looks_like_an_earlier_one_is_another(engine: CachedEngine, publisher: Publisher) -> None:
    """File systems give inodes anew, sizes are the same, and here the clock stands still."""

    def publish(number: int) -> None:
        publisher.publish(flights=f"SELECT {number} AS id")
        os.utime(manifest_path(publisher.state_dir), ns=(0, 0))

    for number in range(31, 36):
        publish(number)
        publish(number + 20)
        expected = b'[{"id":%d}]' % (number + 20)
        assert ask(engine, "SELECT id FROM flights") == (expected, "miss")
        assert ask(engine, "SELECT id FROM flights") == (expected, "hit")
    publisher.publish(flights="SELECT 1 AS id")


@pytest.mark.exhaustive
def test_statements_during_publications_never_see_old_data(engine: CachedEngine, publisher: Publisher) -> None:
    """What was published before a statement is the least it sees, in 200 rounds of any order and pause."""
    published = 1000
    publisher.publish(flights=f"SELECT {published} AS id")
    ends = threading.Event()
    chance = random.Random(7)

    def publish() -> None:
        nonlocal published
        try:
            for number in range(1001, 1041):
                publisher.publish(flights=f"SELECT {number} AS id")
                published = number
                ends.wait(chance.random() / 50)
        finally:
            ends.set()

    found: list[str] = []

    def read() -> None:
        seen, rounds = 0, 0
        while not ends.is_set() or rounds < 200:
            least = published
            answer, state = ask(engine, "SELECT id FROM flights")
            value = int(answer[7:-2])
            assert value >= max(least, seen), (value, least, seen, state)
            seen, rounds = value, rounds + 1
            found.append(state)

    with ThreadPoolExecutor(3) as threads:
        for reading in [threads.submit(read), threads.submit(read), threads.submit(publish)]:
            reading.result()

    assert {"hit", "miss"} <= set(found)
    assert ask(engine, "SELECT id FROM flights")[0] == b'[{"id":1040}]'
    publisher.publish(flights="SELECT 1 AS id")


def test_without_a_manifest_nothing_is_cached(tmp_path: Any) -> None:
    config = cached_config(tmp_path / "state")
    config.state_dir.mkdir()
    with closing(remembering(InProcessEngine(config), config)) as engine:
        assert states(engine, "SELECT 1", "SELECT 1") == ["miss", "miss"]


def test_a_closed_engine_serves_nothing(publisher: Publisher) -> None:
    config = cached_config(publisher.state_dir)
    engine = remembering(InProcessEngine(config), config)
    assert states(engine, "SELECT 1", "SELECT 1") == ["miss", "hit"]

    engine.close()

    assert engine.instance_id is None
    with pytest.raises(QueryError):
        ask(engine, "SELECT 1")
    engine.close()
