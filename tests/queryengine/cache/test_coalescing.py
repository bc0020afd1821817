"""Identical statements that arrive while one of them waits or runs: one result for all, and each key has its turn."""

from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from pathlib import Path

import pytest

from queryengine.cache.cached_engine import CachedEngine, _Group
from queryengine.cancellation import CancelSource
from queryengine.engine import Query
from queryengine.errors import EngineBusyError, QueryCancelledError, QueryError, QueryTimeoutError, SqlError
from queryengine.pool.inprocess import InProcessEngine
from tests.queryengine.asking import ask_cached, begin, error_of
from tests.queryengine.cache.conftest import cached_config
from tests.queryengine.conftest import KINDS
from tests.queryengine.publishing import ENDLESS, PATIENCE_S, Publisher, wait_until

SQL = "SELECT count(*) AS n FROM flights"
ONE = b'[{"n":1}]'
#: Takes about half a second, and gives one row.
SLOW = "SELECT count(*) AS c FROM range(13000) a, range(13000) b WHERE a.range * b.range = -1"
ZERO = b'[{"c":0}]'
KEYS = ("other", "first", "second")


class Callers:
    """Statements of several keys, each in a thread of its own."""

    def __init__(self, engine: CachedEngine) -> None:
        self.engine = engine
        self.cancels: dict[str, CancelSource] = {}
        self.asked: list[Future[tuple[bytes, str]]] = []

    def ask(self, key: str, name: str, sql: str = SQL, timeout_s: float | None = None) -> Future[tuple[bytes, str]]:
        """Ask *sql*, and wait until it is queued, runs or waits for the result of another, or has ended."""
        query_id = f"{key}-{name}"
        cancel = self.cancels[query_id] = CancelSource()
        query = Query(sql=sql, fingerprint=key, query_id=query_id, timeout_s=timeout_s, cache="use")

        def answer() -> tuple[bytes, str]:
            with closing(self.engine.run(query, cancel)) as result:
                return b"".join(result), result.timings.cache

        before = self.waiting
        asked = begin(answer)
        self.asked.append(asked)
        wait_until(lambda: self.is_listed(key, name) or self.waiting > before or asked.done())
        return asked

    def ask_all(self, sql: str, limits_s: tuple[float | None, ...] = (None,) * 3) -> list[Future[tuple[bytes, str]]]:
        """Ask *sql* once for each limit, by the names "0", "1" and so on; the first statement leads."""
        asked = [self.ask("", "0", sql, limits_s[0])]
        wait_until(lambda: any(group.leader for group in self.groups) or asked[0].done())
        return [*asked, *(self.ask("", str(number), sql, limit) for number, limit in enumerate(limits_s[1:], 1))]

    def block(self, key: str, name: str) -> Future[tuple[bytes, str]]:
        """Ask what runs until it is cancelled, and is the same as nothing else."""
        return self.ask(key, name, f"{ENDLESS} AND '{key}-{name}' <> ''")

    def take_the_slot(self) -> None:
        self.block("other", "0")
        wait_until(lambda: self.is_listed("other", "0", "running"))

    def is_listed(self, key: str, name: str, state: str = "") -> bool:
        listed = {one.query_id: one.state for one in self.engine.active(key)}
        return f"{key}-{name}" in listed and state in {"", listed[f"{key}-{name}"]}

    @property
    def queued(self) -> int:
        """How many stand in the queue for the slot."""
        engine = self.engine._engine
        if isinstance(engine, InProcessEngine):  # It lists a statement before it judges and queues it.
            return engine._admission.queue.waiting
        return sum(one.state == "queued" for key in KEYS for one in engine.active(key))

    @property
    def groups(self) -> list[_Group]:
        data_version = self.engine._data_version
        return [] if data_version is None else list(data_version.groups.values())

    @property
    def waiting(self) -> int:
        """How many wait for the result of another."""
        return sum(len(group.waiting) for group in self.groups)

    def cancel(self, key: str, name: str) -> None:
        assert self.engine.cancel(f"{key}-{name}", key)
        wait_until(lambda: not self.is_listed(key, name))

    def end(self) -> None:
        for cancel in self.cancels.values():
            cancel.cancel()
        assert not wait(self.asked, PATIENCE_S).not_done, "one waits for ever"
        assert not self.groups


@pytest.fixture
def callers(engine: CachedEngine) -> Iterator[Callers]:
    made = Callers(engine)
    yield made
    made.end()


@pytest.fixture(params=KINDS)
def one_slot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callers]:
    """The callers of an engine with one execution slot."""
    Publisher(tmp_path / "state").publish(flights="SELECT 1 AS id")
    config = cached_config(tmp_path / "state", workers=1, max_queued=8, queue_timeout_s=60.0, timeout_s=60.0)
    with KINDS[request.param](config) as engine:
        made = Callers(CachedEngine(engine, config))
        yield made
        made.end()


# While one runs.


def test_identical_statements_share_one_run(callers: Callers) -> None:
    asked = callers.ask_all(SLOW, (None,) * 6)
    assert len(callers.engine.active("")) <= 1, "those that wait use nothing"

    assert [one.result(PATIENCE_S) for one in asked] == [(ZERO, "miss"), *[(ZERO, "hit")] * 5]


def test_a_waiting_statement_keeps_its_own_time_limit_and_cancellation(callers: Callers) -> None:
    leader, late, left, last = callers.ask_all(ENDLESS, (None, 0.3, None, None))
    assert error_of(late) is QueryTimeoutError

    callers.cancels["-2"].cancel()
    assert error_of(left) is QueryCancelledError
    assert not leader.done()
    assert not last.done()

    callers.cancels["-3"].cancel()
    callers.cancels["-0"].cancel()
    assert error_of(last) is error_of(leader) is QueryCancelledError


def test_if_the_leader_is_cancelled_the_others_run_themselves(callers: Callers) -> None:
    leader, *others = callers.ask_all(SLOW)

    callers.cancels["-0"].cancel()

    assert error_of(leader) is QueryCancelledError
    assert [one.result(PATIENCE_S) for one in others] == [(ZERO, "miss")] * 2


@pytest.mark.parametrize(
    ("sql", "limits_s", "error"),
    [
        pytest.param(ENDLESS, (0.5, 1.0, 1.0), QueryTimeoutError, id="the others have the rest of their time"),
        pytest.param(f"SELECT error('no') FROM ({SLOW})", (None,) * 3, SqlError, id="error in the statement"),
    ],
)
def test_each_failing_statement_fails_by_itself(
    callers: Callers, sql: str, limits_s: tuple[float | None, ...], error: type[QueryError]
) -> None:
    assert [error_of(one) for one in callers.ask_all(sql, limits_s)] == [error] * 3


def test_statements_that_are_not_cacheable_wait_only_once(callers: Callers) -> None:
    sql = f"SELECT c, random() > 2 AS d FROM ({SLOW})"
    asked = callers.ask_all(sql)
    assert [one.result(PATIENCE_S) for one in asked] == [(b'[{"c":0,"d":false}]', "miss")] * 3

    callers.ask("", "alone", sql)
    assert not callers.groups


def test_nobody_waits_for_a_client_that_reads_slowly(engine: CachedEngine) -> None:
    sql = "SELECT n FROM numbers WHERE n < 60000"
    slow = engine.run(Query(sql=sql, cache="use"))
    next(iter(slow))

    assert ask_cached(engine, sql)[1] == "miss"
    slow.close()
    assert ask_cached(engine, sql)[1] == "hit"


def test_a_publication_during_the_run_is_not_mixed_up(callers: Callers, publisher: Publisher) -> None:
    sql = f"SELECT id, c FROM flights, ({SLOW})"
    (old,) = callers.ask_all(sql, (None,))
    publisher.publish(flights="SELECT 77 AS id")
    new = callers.ask("", "new", sql)  # it finds another data version, and leads there

    assert new.result(PATIENCE_S) == (b'[{"id":77,"c":0}]', "miss")
    old.result(PATIENCE_S)
    assert ask_cached(callers.engine, sql) == (b'[{"id":77,"c":0}]', "hit")
    publisher.publish(flights="SELECT 1 AS id")


# While one waits for its slot.


def test_no_statement_waits_for_the_turn_of_another_key(one_slot: Callers) -> None:
    one_slot.take_the_slot()
    flood = []
    for number in range(3):
        flood.append(one_slot.block("first", str(number)))
        wait_until(lambda: one_slot.queued == len(flood))
    last = one_slot.ask("first", "same")
    wait_until(lambda: one_slot.queued == 4)  # behind the flood
    same = one_slot.ask("second", "same")
    assert one_slot.is_listed("second", "same", "queued")
    wait_until(lambda: one_slot.queued == 5)

    def running() -> list[str]:
        return [name for name in "012" if one_slot.is_listed("first", name, "running")]

    one_slot.cancel("other", "0")
    wait_until(lambda: same.done() or bool(running()))
    for name in running():
        one_slot.cancel("first", name)

    assert same.result(PATIENCE_S) == (ONE, "miss")
    assert last.result(PATIENCE_S) == (ONE, "hit")
    assert sum(one.done() for one in flood) < len(flood) - 1


def test_identical_statements_of_one_key_are_queued_once(one_slot: Callers) -> None:
    one_slot.take_the_slot()
    first, again = one_slot.ask("first", "same"), one_slot.ask("first", "again")
    assert one_slot.waiting == 1
    second = one_slot.ask("second", "same")
    assert not one_slot.is_listed("first", "again")

    one_slot.cancel("other", "0")

    answers = sorted(one.result(PATIENCE_S) for one in (first, again, second))
    assert answers == [(ONE, "hit"), (ONE, "hit"), (ONE, "miss")]


def test_if_the_queued_statement_is_cancelled_another_takes_its_turn(one_slot: Callers) -> None:
    one_slot.take_the_slot()
    first, again = one_slot.ask("first", "same"), one_slot.ask("first", "again")
    second = one_slot.ask("second", "same")

    one_slot.cancel("first", "same")
    assert error_of(first) is QueryCancelledError
    wait_until(lambda: one_slot.is_listed("first", "again", "queued"))
    one_slot.cancel("second", "same")
    assert error_of(second) is QueryCancelledError
    one_slot.cancel("other", "0")

    assert again.result(PATIENCE_S) == (ONE, "miss")


def test_a_statement_that_finds_the_queue_full_is_refused(one_slot: Callers) -> None:
    one_slot.take_the_slot()
    asked = [one_slot.ask(f"key {number}", "same") for number in range(9)]
    wait_until(lambda: any(one.done() for one in asked))
    one_slot.cancel("other", "0")

    errors = [one.exception(PATIENCE_S) for one in asked]

    assert [type(error) for error in errors if error is not None] == [EngineBusyError]
