"""No answer crosses from one scope to another; two keys with the same scope share."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from queryengine.cache.cached_engine import CachedEngine
from queryengine.engine import Query
from queryengine.errors import QueryError, SqlError
from runtimeconf.model import Scope

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


@pytest.mark.exhaustive
def test_no_answer_of_twenty_thousand_crosses(engine: CachedEngine) -> None:
    assert_none_crosses(engine, 1250)
