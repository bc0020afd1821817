"""No answer crosses from one scope to another; two keys with the same scope share."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from queryengine.cache.cached_engine import CachedEngine
from queryengine.engine import Query
from queryengine.errors import QueryError, SqlError
from runtimeconf.model import DatasetRule, Scope

FLIGHTS = Scope(relations=frozenset({"flights"}))
NUMBERS = Scope(relations=frozenset({"numbers"}))


def ask(engine: CachedEngine, sql: str, scope: Scope | None, key: str = "") -> tuple[object, str]:
    """Return the answer, or the type of the error, and where it came from."""
    try:
        with closing(engine.run(Query(sql=sql, scope=scope, fingerprint=key, cache="use"))) as result:
            return b"".join(result), result.timings.cache
    except QueryError as error:
        return type(error), ""


def test_a_scope_is_part_of_what_is_cached(engine: CachedEngine) -> None:
    sql = "SELECT count(*) AS n FROM numbers"
    answer, state = ask(engine, sql, None, "k1")

    assert state == "miss"
    assert ask(engine, sql, NUMBERS, "k2") == (answer, "miss")
    assert ask(engine, sql, Scope(relations=frozenset(["numbers"])), "k3") == (answer, "hit")
    assert ask(engine, sql, FLIGHTS, "k4") == (SqlError, "")
    assert ask(engine, "SHOW TABLES", FLIGHTS)[0] == b'[{"name":"flights"}]'
    assert ask(engine, "SHOW TABLES", NUMBERS)[0] == b'[{"name":"numbers"}]'


def filtered(row_filter: str) -> Scope:
    return Scope(relations=NUMBERS.relations, rules=(DatasetRule(dataset="numbers", row_filter=row_filter),))


#: Four sets of rules, of which two keys have the first.
RULES = {"n < 10": 10, "n < 20": 20, "n >= 299000": 1000, "n % 3 = 0": 100_000}


def assert_no_rows_cross(engine: CachedEngine, rounds: int) -> None:
    """Five keys with four sets of rules ask the same texts at once."""
    gate = threading.Barrier(10)

    def caller(number: int) -> int:
        row_filter = list(RULES)[number % 5 % 4]
        crossed = 0
        for turn in range(rounds):
            gate.wait()
            sql = f"SELECT {turn // 2} AS turn, count(*) AS n FROM numbers"
            answer, _ = ask(engine, sql, filtered(row_filter), f"k{number % 5}")
            crossed += answer != f'[{{"turn":{turn // 2},"n":{RULES[row_filter]}}}]'.encode()
        return crossed

    with ThreadPoolExecutor(10) as callers:
        assert sum(callers.map(caller, range(10))) == 0


def test_rules_are_part_of_what_is_cached(engine: CachedEngine) -> None:
    sql = "SELECT count(*) AS n FROM numbers"

    assert ask(engine, sql, filtered("n < 10"), "k1") == (b'[{"n":10}]', "miss")
    assert ask(engine, sql, filtered("n < 10"), "k2") == (b'[{"n":10}]', "hit")
    assert ask(engine, sql, filtered("n < 20"), "k1") == (b'[{"n":20}]', "miss")
    assert ask(engine, sql, NUMBERS, "k1")[0] == b'[{"n":300000}]'
    timely = filtered("n < 30 AND now() > TIMESTAMPTZ '2020-01-01'")
    assert [ask(engine, sql, timely, "k1") for _ in range(2)] == [(b'[{"n":30}]', "miss")] * 2


def test_no_rows_cross(engine: CachedEngine) -> None:
    assert_no_rows_cross(engine, 20)


@pytest.mark.parametrize(
    "rounds", [pytest.param(100, marks=pytest.mark.exhaustive), pytest.param(2_000, marks=pytest.mark.soak)]
)
def test_no_rows_cross_in_many_requests(engine: CachedEngine, rounds: int) -> None:
    assert_no_rows_cross(engine, rounds)


def assert_none_crosses(engine: CachedEngine, rounds: int) -> None:
    """Ask the same text at once with scopes that allow it and scopes that do not, 16 at a time, after a warm-up."""
    allowed = {None: True, NUMBERS: True, FLIGHTS: False, Scope(relations=frozenset({"nowhere"})): False}
    gate = threading.Barrier(16)

    def caller(number: int) -> int:
        scope = list(allowed)[number % 4]
        crossed = 0
        for turn in range(rounds):
            if number == 0 and turn % 2:
                ask(engine, f"SELECT {turn + 1} AS turn, sum(n) AS n FROM numbers", None)
            gate.wait()
            answer, _ = ask(engine, f"SELECT {turn} AS turn, sum(n) AS n FROM numbers", scope, f"k{number % 8}")
            crossed += (answer is not SqlError) is not allowed[scope]
        return crossed

    with ThreadPoolExecutor(16) as callers:
        assert sum(callers.map(caller, range(16))) == 0


def test_no_answer_crosses(engine: CachedEngine) -> None:
    assert_none_crosses(engine, 20)


@pytest.mark.parametrize(
    "rounds", [pytest.param(60, marks=pytest.mark.exhaustive), pytest.param(1_250, marks=pytest.mark.soak)]
)
def test_no_answer_of_many_crosses(engine: CachedEngine, rounds: int) -> None:
    assert_none_crosses(engine, rounds)
