"""Statements that are the same and wait for a place: one answer for all; nobody waits for the turn of another key."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from queryengine.cache.cached_engine import CachedEngine
from queryengine.engine import Query
from queryengine.errors import EngineBusyError, QueryCancelledError
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import ResultsCacheConfig
from tests.queryengine.asking import begin
from tests.queryengine.conftest import KINDS, config_of
from tests.queryengine.publishing import ENDLESS, Publisher, wait_until

SQL = "SELECT count(*) AS n FROM flights"
KEYS = ("other", "first", "second")


class Callers:
    """Statements of several keys on an engine with one place, each in a thread of its own."""

    def __init__(self, engine: CachedEngine) -> None:
        self.engine = engine

    def ask(self, key: str, name: str, sql: str = SQL) -> Future[tuple[bytes, str]]:
        """Ask *sql*, and wait until it stands in the queue or runs."""

        def answer() -> tuple[bytes, str]:
            query = Query(sql=sql, fingerprint=key, query_id=f"{key}-{name}", cache="use")
            with closing(self.engine.run(query)) as result:
                return b"".join(result), result.timings.cache

        before = self.waiting
        asked = begin(answer)
        wait_until(lambda: self.is_listed(key, name) or self.waiting > before or asked.done())
        return asked

    def block(self, key: str, name: str) -> Future[tuple[bytes, str]]:
        """Ask what runs until it is cancelled, and is the same as nothing else."""
        return self.ask(key, name, f"{ENDLESS} AND '{key}-{name}' <> ''")

    def take_the_place(self) -> None:
        self.block("other", "0")
        wait_until(lambda: self.is_listed("other", "0", "running"))

    def is_listed(self, key: str, name: str, state: str = "") -> bool:
        listed = {one.query_id: one.state for one in self.engine.active(key)}
        return f"{key}-{name}" in listed and state in {"", listed[f"{key}-{name}"]}

    @property
    def queued(self) -> int:
        """How many stand in the queue for the place."""
        engine = self.engine._engine
        if isinstance(engine, InProcessEngine):  # It lists a statement before it judges and queues it.
            return engine._admission.queue.waiting
        return sum(one.state == "queued" for key in KEYS for one in engine.active(key))

    @property
    def waiting(self) -> int:
        """How many wait for the answer of another."""
        data_version = self.engine._data_version
        return 0 if data_version is None else sum(len(group.waiting) for group in data_version.groups.values())

    def cancel(self, key: str, name: str) -> None:
        assert self.engine.cancel(f"{key}-{name}", key)
        wait_until(lambda: not self.is_listed(key, name))


@pytest.fixture(params=KINDS)
def callers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callers]:
    Publisher(tmp_path / "state").publish(flights="SELECT 1 AS id")
    config = replace(
        config_of(tmp_path / "state", workers=1, max_queued=8, queue_timeout_s=60.0, timeout_s=60.0),
        results_cache=ResultsCacheConfig(enabled=True),
    )
    with ExitStack() as ends:
        engine = CachedEngine(ends.enter_context(KINDS[request.param](config)), config)

        def end() -> None:
            for key in KEYS:
                for one in engine.active(key):
                    engine.cancel(one.query_id, key)

        ends.callback(end)
        yield Callers(engine)


def test_no_statement_waits_for_the_turn_of_another_key(callers: Callers) -> None:
    callers.take_the_place()
    flood = [callers.block("first", str(number)) for number in range(3)]
    last = callers.ask("first", "same")
    same = callers.ask("second", "same")
    assert callers.is_listed("second", "same", "queued")
    wait_until(lambda: callers.queued == 5)  # three of the flood, and one of each key

    def running() -> list[str]:
        return [name for name in "012" if callers.is_listed("first", name, "running")]

    callers.cancel("other", "0")
    wait_until(lambda: same.done() or bool(running()))
    for name in running():
        callers.cancel("first", name)

    assert same.result(60) == (b'[{"n":1}]', "miss")
    assert last.result(60) == (b'[{"n":1}]', "hit")
    assert sum(one.done() for one in flood) < len(flood) - 1


def test_identical_statements_of_one_key_are_queued_once(callers: Callers) -> None:
    callers.take_the_place()
    first, again = callers.ask("first", "same"), callers.ask("first", "again")
    assert callers.waiting == 1
    second = callers.ask("second", "same")
    assert not callers.is_listed("first", "again")

    callers.cancel("other", "0")

    answers = [one.result(60) for one in (first, again, second)]
    assert {data for data, _ in answers} == {b'[{"n":1}]'}
    assert sorted(state for _, state in answers) == ["hit", "hit", "miss"]
    assert callers.waiting == 0


def test_if_the_queued_statement_is_cancelled_another_takes_its_turn(callers: Callers) -> None:
    callers.take_the_place()
    first, again = callers.ask("first", "same"), callers.ask("first", "again")
    second = callers.ask("second", "same")

    callers.cancel("first", "same")
    with pytest.raises(QueryCancelledError):
        first.result(60)
    wait_until(lambda: callers.is_listed("first", "again", "queued"))
    callers.cancel("second", "same")
    with pytest.raises(QueryCancelledError):
        second.result(60)
    callers.cancel("other", "0")

    assert again.result(60) == (b'[{"n":1}]', "miss")


def test_a_statement_that_finds_the_queue_full_is_refused(callers: Callers) -> None:
    callers.take_the_place()
    asked = [callers.ask(f"key {number}", "same") for number in range(9)]
    wait_until(lambda: any(one.done() for one in asked))
    callers.cancel("other", "0")

    errors = [one.exception(60) for one in asked]

    assert [type(error) for error in errors if error is not None] == [EngineBusyError]
