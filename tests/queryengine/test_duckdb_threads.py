"""DuckDB has one thread for light statements that follow one another, and all for any other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import duckdb
import pytest

from queryengine.cancellation import Interruption
from queryengine.errors import QueryError, SqlError
from queryengine.execution.duckdb_threads import _MAX_PATTERNS, LIGHT_IN_A_ROW, Threads
from queryengine.execution.instance import EngineInstance
from queryengine.gate.gate import Gate
from queryengine.manifest import read_manifest
from tests.queryengine.bare_engine import Engine, running
from tests.queryengine.conftest import MakeConfig
from tests.queryengine.publishing import Publisher, wait_until

CPUS = len(os.sched_getaffinity(0))
HEAVY = "SELECT count(*) AS n FROM range(20000000) t(i) WHERE i % 7 = 3"
#: Light by its first rows, which are not all.
LONG = "SELECT i FROM range(1000000) t(i)"


class Numbers(list[int]):
    """What a `Threads` has set."""

    def __init__(self) -> None:
        self.threads = Threads(8, self.append)

    def pass_light(self, pattern: str | None, times: int) -> None:
        for _ in range(times):
            self.threads.begin(pattern)
            self.threads.learn(pattern, whole=True)


def test_after_some_light_statements_in_a_row_there_is_one_thread() -> None:
    numbers = Numbers()

    numbers.pass_light("a", 1 + LIGHT_IN_A_ROW)
    before = list(numbers)
    numbers.pass_light("a", 5)

    assert (before, numbers) == ([], [1])


def test_a_statement_that_is_not_known_to_be_light_has_all_threads_at_once() -> None:
    numbers = Numbers()
    numbers.pass_light("a", 2 + LIGHT_IN_A_ROW)

    numbers.pass_light("b", 1)
    numbers.pass_light("a", LIGHT_IN_A_ROW)

    assert numbers == [1, 8]


def test_a_statement_that_was_light_and_is_so_no_more_has_all_threads_the_next_time() -> None:
    numbers = Numbers()
    numbers.pass_light("a", 2 + LIGHT_IN_A_ROW)

    numbers.threads.begin("a")
    numbers.threads.learn("a", whole=False)
    numbers.threads.begin("a")

    assert numbers == [1, 8]


@pytest.mark.parametrize("pattern", [None, "heavy"])
def test_a_statement_that_is_never_known_to_be_light_changes_nothing(pattern: str | None) -> None:
    numbers = Numbers()
    for _ in range(2 * LIGHT_IN_A_ROW):
        numbers.threads.begin(pattern)
        numbers.threads.learn(pattern, whole=pattern is None)

    assert numbers == []


def test_as_many_patterns_are_known_as_there_is_room_for() -> None:
    numbers = Numbers()
    numbers.pass_light("first", 1)
    for number in range(_MAX_PATTERNS):
        numbers.pass_light(str(number), 1)

    numbers.pass_light("1", 1 + LIGHT_IN_A_ROW)
    numbers.pass_light("first", 1)

    assert numbers == [1, 8]


@pytest.fixture
def session(make_config: MakeConfig, publisher: Publisher, tmp_path: Path) -> Iterator[EngineInstance]:
    publisher.publish(flights="SELECT i AS id FROM range(1000) t(i)")
    manifest = read_manifest(publisher.state_dir)
    with closing(EngineInstance.open(make_config(workers=1), manifest, (), tmp_path / "scratch")) as session:
        yield session


@cache
def gate() -> Gate:
    return Gate()


def ask(session: EngineInstance, sql: str) -> None:
    statement = gate().admit(sql, frozenset({"flights"}))
    with closing(session.run(statement, None, Interruption(), encoding="json")) as reader:
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
        "SET memory_limit = '64GB'",
        "SET max_temp_directory_size = '64GB'",
        "SET max_execution_time = 0",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET allowed_configs = ['memory_limit']",
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


def test_statements_side_by_side_have_all_threads(
    make_config: MakeConfig, publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    manifest = read_manifest(publisher.state_dir)
    with closing(EngineInstance.open(make_config(workers=2), manifest, (), tmp_path / "scratch")) as session:
        for number in range(3 * LIGHT_IN_A_ROW):
            ask(session, f"SELECT {number}")
        with session._connection.cursor() as cursor, pytest.raises(duckdb.InvalidInputException, match="locked"):
            cursor.execute("SET threads = 1")

        assert threads(session) == CPUS


def tasks(engine: Engine) -> int:
    return len(list(Path(f"/proc/{engine.worker()}/task").iterdir()))


def test_a_worker_runs_light_statements_without_the_threads_of_heavy_ones(tmp_path: Path) -> None:
    Publisher(tmp_path).publish(flights="SELECT 1 AS id")
    with running(tmp_path) as engine:
        before = tasks(engine)

        def has_one_thread_of_duckdb() -> bool:
            assert engine.ask("SELECT 1 AS n").data == b'[{"n":1}]'
            return tasks(engine) == before - (CPUS - 1)

        wait_until(has_one_thread_of_duckdb)
        assert engine.ask(HEAVY).code == ""
        after = tasks(engine)

    assert after == before
