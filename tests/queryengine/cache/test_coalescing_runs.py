"""Statements that are the same and come while one of them runs: one answer for all."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from typing import Any

import pytest

from queryengine.cache.cached_engine import CachedEngine
from queryengine.cancellation import CancelSource
from queryengine.engine import Query
from queryengine.errors import QueryCancelledError, QueryTimeoutError, SqlError
from tests.queryengine.asking import ask_cached as ask
from tests.queryengine.asking import begin
from tests.queryengine.cache.conftest import StartCached
from tests.queryengine.publishing import ENDLESS, PATIENCE_S, Publisher, wait_until


def outcome_of(asked: Future[Any]) -> Any:
    return asked.result() if asked.exception() is None else type(asked.exception())


class Crowd:
    """Statements that are the same, each in a thread of its own; the first leads."""

    def __init__(self, engine: CachedEngine, sql: str) -> None:
        self.engine, self.sql = engine, sql
        self.cancels: list[CancelSource] = []
        self.asked: list[Future[Any]] = []

    def add(self, timeout_s: float | None = None) -> None:
        cancel = CancelSource()
        query = Query(sql=self.sql, cache="use", timeout_s=timeout_s, query_id=f"query-{id(self)}-{len(self.asked)}")

        def run() -> Any:
            with closing(self.engine.run(query, cancel)) as result:
                return b"".join(result), result.timings.cache

        self.cancels.append(cancel)
        self.asked.append(begin(run))

    @property
    def outcomes(self) -> list[Any]:
        """The answer or the type of the error of each; None while it waits or runs."""
        return [outcome_of(one) if one.done() else None for one in self.asked]

    def lead(self, timeout_s: float | None = None) -> None:
        self.add(timeout_s)
        wait_until(lambda: bool(self.leaders))

    def follow(self, count: int, timeout_s: float | None = None) -> None:
        wanted = len(self.waiting) + count
        for _ in range(count):
            self.add(timeout_s)
        wait_until(lambda: len(self.waiting) >= wanted)

    @property
    def leaders(self) -> dict[Any, Any]:
        data_version = self.engine._data_version
        groups = {} if data_version is None else data_version.groups
        return {key: one for key, one in groups.items() if one.leader is not None}

    @property
    def waiting(self) -> list[Any]:
        return next((group.waiting for group in self.leaders.values()), [])

    def cancel(self) -> None:
        for cancel in self.cancels:
            cancel.cancel()

    def end(self) -> list[Any]:
        assert not wait(self.asked, PATIENCE_S).not_done, "one waits for ever"
        assert self.engine._data_version is None or not self.engine._data_version.groups
        return self.outcomes


@pytest.fixture
def crowd(engine: CachedEngine) -> Iterator[Callable[..., Crowd]]:
    with ExitStack() as ends:

        def make(sql: str, of: CachedEngine = engine) -> Crowd:
            made = Crowd(of, sql)
            ends.callback(made.cancel)
            return made

        yield make


#: Takes about half a second, and gives one row.
SLOW = "SELECT count(*) AS c FROM range(13000) a, range(13000) b WHERE a.range * b.range = -1"


def test_identical_statements_share_one_run(engine: CachedEngine, crowd: Callable[..., Crowd]) -> None:
    same = crowd(SLOW)
    same.lead()
    same.follow(5)
    assert len(engine.active("")) == 1  # those that wait use nothing

    outcomes = same.end()

    assert outcomes == [(b'[{"c":0}]', "miss")] + [(b'[{"c":0}]', "hit")] * 5


def test_a_waiting_statement_keeps_its_own_time_limit_and_cancellation(
    start: StartCached, crowd: Callable[..., Crowd]
) -> None:
    same = crowd(ENDLESS)
    same.lead()
    same.follow(1, timeout_s=0.3)
    same.follow(2)
    wait_until(lambda: same.outcomes[1] is not None)
    assert same.outcomes[1] is QueryTimeoutError

    same.cancels[2].cancel()
    wait_until(lambda: same.outcomes[2] is not None)
    assert same.outcomes == [None, QueryTimeoutError, QueryCancelledError, None]

    same.cancels[3].cancel()
    same.cancels[0].cancel()
    assert same.end()[3] is same.outcomes[0] is QueryCancelledError


def test_if_the_leader_is_cancelled_the_others_run_themselves(crowd: Callable[..., Crowd]) -> None:
    same = crowd(SLOW)
    same.lead()
    same.follow(2)

    same.cancels[0].cancel()

    assert same.end() == [QueryCancelledError, (b'[{"c":0}]', "miss"), (b'[{"c":0}]', "miss")]


def test_if_the_leader_times_out_the_others_have_the_rest_of_their_time(crowd: Callable[..., Crowd]) -> None:
    same = crowd(ENDLESS)
    same.lead(timeout_s=0.5)
    same.follow(2, timeout_s=1.0)

    assert same.end() == [QueryTimeoutError] * 3


def test_each_failing_statement_fails_by_itself(crowd: Callable[..., Crowd]) -> None:
    same = crowd(f"SELECT error('no') FROM ({SLOW})")
    same.lead()
    same.follow(2)

    assert same.end() == [SqlError] * 3


def test_statements_that_are_not_cacheable_wait_only_once(engine: CachedEngine, crowd: Callable[..., Crowd]) -> None:
    same = crowd(f"SELECT c, random() > 2 AS d FROM ({SLOW})")
    same.lead()
    same.follow(2)
    assert same.end() == [(b'[{"c":0,"d":false}]', "miss")] * 3

    same.add()
    wait_until(lambda: len(engine.active("")) == 1)
    assert not same.leaders
    same.end()


def test_nobody_waits_for_a_client_that_reads_slowly(engine: CachedEngine) -> None:
    sql = "SELECT n FROM numbers WHERE n < 60000"
    slow = engine.run(Query(sql=sql, cache="use"))
    next(iter(slow))

    assert ask(engine, sql)[1] == "miss"
    slow.close()
    assert ask(engine, sql)[1] == "hit"


def test_a_publication_during_the_run_is_not_mixed_up(
    engine: CachedEngine, publisher: Publisher, crowd: Callable[..., Crowd]
) -> None:
    same = crowd(f"SELECT id, c FROM flights, ({SLOW})")
    same.lead()
    publisher.publish(flights="SELECT 77 AS id")
    same.add()  # it finds another data_version, and leads there
    outcomes = same.end()

    assert outcomes[1] == (b'[{"id":77,"c":0}]', "miss")
    assert ask(engine, same.sql) == (b'[{"id":77,"c":0}]', "hit")
    publisher.publish(flights="SELECT 1 AS id")
