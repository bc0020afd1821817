"""DuckDB has one thread for light statements that follow one another, and all for any other."""

import os
from contextlib import closing

import duckdb
import pytest

from queryengine.cancellation import Interruption
from queryengine.engine import Query
from queryengine.errors import QueryError, SqlError
from queryengine.execution.instance import EngineInstance
from queryengine.execution.statistics import _MAX_PATTERNS, LIGHT_IN_A_ROW, Threads
from tests.queryengine.conftest import OpenSession
from tests.queryengine.execution.instances import gate
from tests.queryengine.publishing import Publisher, wait_until

CPUS = len(os.sched_getaffinity(0))
HEAVY = "SELECT count(*) AS n FROM range(20000000) t(i) WHERE i % 7 = 3"
#: Light by its first rows, which are not all.
LONG = "SELECT i FROM range(1000000) t(i)"


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        pytest.param([("a", 1 + LIGHT_IN_A_ROW, True)], [], id="few light ones"),
        pytest.param([("a", 6 + LIGHT_IN_A_ROW, True)], [1], id="light ones"),
        pytest.param(
            [("a", 2 + LIGHT_IN_A_ROW, True), ("b", 1, True), ("a", LIGHT_IN_A_ROW, True)], [1, 8], id="a new one"
        ),
        pytest.param([("a", 2 + LIGHT_IN_A_ROW, True), ("a", 2, False)], [1, 8], id="light no more"),
        pytest.param([(None, 2 * LIGHT_IN_A_ROW, True)], [], id="without a pattern"),
        pytest.param([("heavy", 2 * LIGHT_IN_A_ROW, False)], [], id="heavy ones"),
        pytest.param(
            [*((str(i), 1, True) for i in range(_MAX_PATTERNS + 1)), ("1", 1 + LIGHT_IN_A_ROW, True), ("0", 1, True)],
            [1, 8],
            id="one pattern too many",
        ),
    ],
)
def test_light_statements_in_a_row_get_one_thread(
    statements: list[tuple[str | None, int, bool]], expected: list[int]
) -> None:
    """Each item has a pattern, how often it runs, and whether its first rows are the whole result."""
    numbers: list[int] = []
    threads = Threads(8, numbers.append)

    for pattern, times, whole in statements:
        for _ in range(times):
            threads.begin(pattern)
            threads.learn(pattern, whole=whole)

    assert numbers == expected


@pytest.fixture
def session(open_session: OpenSession, publisher: Publisher) -> EngineInstance:
    publisher.publish(flights="SELECT i AS id FROM range(1000) t(i)")
    return open_session(workers=1)


def ask(session: EngineInstance, sql: str) -> None:
    statement = gate().admit(sql, frozenset({"flights"}))
    with closing(session.run(statement, Query(sql=statement.sql), Interruption())) as reader:
        if reader.encoded is None:
            list(reader)


def threads(session: EngineInstance) -> int:
    with session._connection.cursor() as cursor:
        [[number]] = cursor.execute("SELECT current_setting('threads')").fetchall()
    return int(number)


def has_one_thread(session: EngineInstance) -> bool:
    ask(session, "SELECT 1")
    return threads(session) == 1


def test_duckdb_has_the_threads_that_the_statement_needs(session: EngineInstance) -> None:
    numbers = [threads(session)]
    for sql in (HEAVY, LONG, LONG):
        wait_until(lambda: has_one_thread(session))
        ask(session, sql)
        numbers.append(threads(session))

    assert numbers == [CPUS, CPUS, CPUS, CPUS]


def test_a_failing_statement_is_not_learned_from(session: EngineInstance) -> None:
    for _ in range(2 * LIGHT_IN_A_ROW):
        with pytest.raises(SqlError):
            ask(session, "SELECT missing FROM flights")

    assert threads(session) == CPUS


@pytest.mark.parametrize(
    "sql",
    [
        "SET max_temp_directory_size = '64GB'",
        "SET max_execution_time = 0",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET allowed_configs = ['allowed_paths']",
        "SET allowed_paths = ['/']",
    ],
)
def test_every_other_setting_stays_locked(session: EngineInstance, sql: str) -> None:
    with session._connection.cursor() as cursor, pytest.raises(duckdb.InvalidInputException, match="locked"):
        cursor.execute(sql)


@pytest.mark.skipif(CPUS == 1, reason="there is no other number to set")
def test_a_number_that_cannot_be_set_is_a_failure_of_the_engine(session: EngineInstance) -> None:
    wait_until(lambda: has_one_thread(session))
    session._connection.close()

    with pytest.raises(QueryError, match="The engine could not run this statement"):
        ask(session, HEAVY)


def test_statements_side_by_side_have_all_threads(open_session: OpenSession, publisher: Publisher) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    session = open_session(workers=2)
    for number in range(3 * LIGHT_IN_A_ROW):
        ask(session, f"SELECT {number}")
    with session._connection.cursor() as cursor, pytest.raises(duckdb.InvalidInputException, match="locked"):
        cursor.execute("SET threads = 1")

    assert threads(session) == CPUS
