"""Remembered answers: the same tests on an engine in this process and on workers. None is ever out of date."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest

from queryengine.cache.cached_engine import READ_AHEAD_BYTES, CachedEngine, remembering
from queryengine.cancellation import CancelSource
from queryengine.engine import ArrowParameters, CacheUse, Encoding, Parameters, Query, QueryEngine
from queryengine.errors import QueryCancelledError, QueryError, QueryTimeoutError, SqlError, StatementNotAllowedError
from queryengine.gate.functions import NONDETERMINISTIC
from queryengine.manifest import manifest_path
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import MIB, ResultsCacheConfig, RuntimeConfig
from tests.queryengine import engine_tier
from tests.queryengine.conftest import config_of
from tests.queryengine.publishing import ENDLESS, Publisher, wait_until
from tests.queryengine.statements import READS

PATIENCE_S = 60.0

KINDS: dict[str, Callable[[RuntimeConfig], AbstractContextManager[QueryEngine]]] = {
    "in process": lambda config: closing(InProcessEngine(config)),
    "workers": engine_tier.running,
}
VIEWS = {"few": "SELECT * FROM flights WHERE id < 3", "noise": "SELECT random() AS r", "over_noise": "FROM noise"}

Start = Callable[..., CachedEngine]


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Publisher]]:
    """An engine of either kind, and what publishes for it."""
    publisher = Publisher(tmp_path_factory.mktemp("cached") / "state")
    publisher.publish(flights="SELECT 1 AS id", numbers="SELECT range AS n FROM range(300000)")
    config = replace(
        config_of(publisher.state_dir, ("flights", "numbers", "absent"), VIEWS, workers=2),
        results_cache=ResultsCacheConfig(enabled=True, max_bytes=16 * MIB),
    )
    with KINDS[request.param](config) as running:
        yield (running, config), publisher


@pytest.fixture
def publisher(shared: tuple[Any, Publisher]) -> Publisher:
    return shared[1]


@pytest.fixture
def start(shared: tuple[Any, Publisher]) -> Iterator[Start]:
    """Make a memory over the shared engine, which outlives it."""
    (running, config), _ = shared

    def make(**settings: Any) -> CachedEngine:
        cache = replace(config.results_cache, **{k: v for k, v in settings.items() if k == "max_bytes"})
        query = replace(config.query, **{k: v for k, v in settings.items() if k == "timeout_s"})
        made = remembering(running, replace(config, results_cache=cache, query=query))
        assert isinstance(made, CachedEngine)
        return made

    yield make
    wait_until(lambda: not running.active(""))


@pytest.fixture
def engine(start: Start) -> CachedEngine:
    return start()


def ask(
    engine: QueryEngine,
    sql: str,
    parameters: Parameters | None = None,
    encoding: Encoding = "json",
    cache: CacheUse = "use",
) -> tuple[bytes, str]:
    """Return the answer, and where it came from."""
    result = engine.run(Query(sql=sql, parameters=parameters, encoding=encoding, cache=cache))
    try:
        return b"".join(result), result.timings.cache
    finally:
        result.close()


def states(engine: QueryEngine, *statements: str) -> list[str]:
    return [ask(engine, sql)[1] for sql in statements]


# What is given again.


def test_an_answer_is_given_again(engine: CachedEngine) -> None:
    first = ask(engine, "SELECT id, 'a  b' AS text FROM few -- once")
    again = engine.run(Query(sql="SELECT id, 'a  b' AS text\nFROM few;", cache="use"))

    assert first == (b'[{"id":1,"text":"a  b"}]', "miss")
    assert b"".join(again) == first[0]
    assert (again.timings.cache, again.timings.rows, again.timings.bytes) == ("hit", 1, len(first[0]))
    again.cancel()
    again.close()


@pytest.mark.parametrize("encoding", ["json", "csv", "arrow", "vnd"])
def test_each_encoding_is_an_answer_of_its_own(engine: CachedEngine, encoding: Encoding) -> None:
    other: Encoding = "csv" if encoding == "json" else "json"
    ask(engine, "SELECT n FROM numbers ORDER BY n LIMIT 3", encoding=other)

    answer, state = ask(engine, "SELECT n FROM numbers ORDER BY n LIMIT 3", encoding=encoding)
    assert state == "miss"
    assert ask(engine, "SELECT n FROM numbers ORDER BY n LIMIT 3", encoding=encoding) == (answer, "hit")


def test_no_two_parameters_are_the_same_unless_their_json_is(engine: CachedEngine) -> None:
    values = [1, 2, 1.0, "1", True, None, -0.0, 0.0, 0, False, "", "a", "A", [1], ["1"], {"a": 1}, {"A": 1}]
    answers = [ask(engine, "SELECT $1 AS a, typeof($1) AS b", [value]) for value in values]

    assert [state for _, state in answers] == ["miss"] * len(values)
    assert [ask(engine, "SELECT $1 AS a, typeof($1) AS b", [value]) for value in values] == [
        (answer, "hit") for answer, _ in answers
    ]
    assert ask(engine, "SELECT $a AS a", {"a": 1})[1] == "miss"
    assert ask(engine, "SELECT $a AS a", {"a": 1})[1] == "hit"
    assert ask(engine, "SELECT $a AS a", {"a": "1"})[1] == "miss"


def test_parameters_that_are_no_json_have_no_answer_to_give_again(engine: CachedEngine) -> None:
    with pytest.raises(QueryError):
        engine.run(Query(sql="SELECT $1", parameters=[object()], cache="use"))
    with pytest.raises(QueryError):
        engine.run(Query(sql="SELECT $1", parameters=ArrowParameters(b"no stream"), cache="use"))


def test_changed_literals_and_names_are_other_statements(engine: CachedEngine) -> None:
    statements = ["'a'", "'A'", "'a '", "1", "1.0", "1e0", "2", 'id AS "X"', 'id AS "x"', "id AS X", "id", "$$a$$"]

    answers = [ask(engine, f"SELECT {one} FROM flights") for one in statements]
    assert [state for _, state in answers] == ["miss"] * len(statements)
    assert [ask(engine, f"SELECT {one} FROM flights") for one in statements] == [(body, "hit") for body, _ in answers]


@pytest.mark.parametrize("sql", [sql for sql in READS if "flights" not in sql][:150])
def test_what_is_given_again_is_what_was_given(engine: CachedEngine, sql: str) -> None:
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


@pytest.mark.parametrize("name", sorted(NONDETERMINISTIC))
def test_no_answer_of_what_is_not_steady_is_given_again(engine: CachedEngine, name: str) -> None:
    forms = [
        name,
        f"{name}()",
        f"{name}(DATE '2020-01-01')",
        f"{name}(INTERVAL 1 DAY)",
        f"{name}(true)",
        f"{name}(0.5)",
        f"{name}('Europe/London', TIMETZ '12:00:00+00')",
    ]
    statements = [f"SELECT {form} AS a" for form in forms] + [f"FROM {name}()"]
    ran = 0
    for sql in statements:
        for _ in range(3):
            try:
                assert ask(engine, sql)[1] == "miss"
            except QueryError:
                break
            ran += 1
    assert ran >= 3, "no form of it works"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT list_transform([1, 2], lambda x: x + random())",
        "SELECT 1 FROM flights WHERE id > (SELECT random())",
        "WITH a AS (SELECT now() AS t) SELECT 1 AS one FROM a",
        "SELECT sum(random()) OVER () FROM flights",
        "FROM noise",
        "FROM over_noise",
        "SELECT 1 FROM flights, over_noise",
        "FROM numbers USING SAMPLE 3",
        "SELECT n FROM numbers TABLESAMPLE 10%",
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE SELECT 1",
        "SHOW TABLES",
        "SHOW DATABASES",
        "DESCRIBE flights",
        "SUMMARIZE flights",
        "FROM information_schema.tables",
        "PIVOT flights ON id",
    ],
)
def test_what_asks_for_more_than_data_is_run_each_time(engine: CachedEngine, sql: str) -> None:
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
def test_no_error_is_remembered(engine: CachedEngine, sql: str, error: type[QueryError]) -> None:
    for _ in range(2):
        with pytest.raises(error):
            ask(engine, sql)
    assert not engine._cache.used_bytes
    assert not (engine._basis and engine._basis.groups)


def test_who_asks_for_none_gets_none(engine: CachedEngine) -> None:
    assert ask(engine, "SELECT 7", cache="none") == (b'[{"7":7}]', "bypass")
    assert ask(engine, "SELECT 7") == (b'[{"7":7}]', "miss")
    assert ask(engine, "SELECT 7", cache="none") == (b'[{"7":7}]', "bypass")


def test_who_asks_for_a_new_one_leaves_it_to_others(engine: CachedEngine) -> None:
    assert ask(engine, "SELECT 8", cache="renew")[1] == "bypass"
    assert ask(engine, "SELECT 8")[1] == "hit"
    assert ask(engine, "SELECT 8", cache="renew")[1] == "bypass"


# Size.


def test_a_long_answer_is_collected_while_it_is_given(engine: CachedEngine) -> None:
    sql = "SELECT n FROM numbers WHERE n < 40000"
    first = ask(engine, sql)

    again = ask(engine, sql)

    assert len(first[0]) > 4 * READ_AHEAD_BYTES
    assert (first[1], again[1]) == ("miss", "hit")
    assert again[0] == first[0]
    assert len(first[0]) < engine._cache.used_bytes < 1.1 * len(first[0]) + 10_000


def test_one_that_is_too_long_is_given_and_forgotten(start: Start) -> None:
    engine = start(max_bytes=MIB)
    assert states(engine, "SELECT 1", "SELECT 1") == ["miss", "hit"]

    sql = "SELECT n FROM numbers"
    answers = [ask(engine, sql) for _ in range(2)]

    assert [state for _, state in answers] == ["miss", "miss"]
    assert answers[0][0].count(b"n") == 300000
    assert engine._cache.used_bytes < MIB // 8
    assert states(engine, "SELECT 1") == ["hit"]  # and has driven nobody out


def test_one_that_is_broken_off_is_forgotten(engine: CachedEngine) -> None:
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


def test_many_answers_keep_to_the_bytes(start: Start) -> None:
    engine = start(max_bytes=64 * 1024)
    for number in range(200):
        ask(engine, f"SELECT repeat('x', {number * 50}) AS a, {number} AS b")
        assert engine._cache.used_bytes <= 64 * 1024
    assert len(engine._cache) > 3


def test_what_slow_clients_hold_counts_until_they_let_go(start: Start) -> None:
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


def test_a_long_answer_that_is_given_again_keeps_the_limits_of_a_statement(engine: CachedEngine) -> None:
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


def test_once_something_is_published_nothing_of_before_is_given(engine: CachedEngine, publisher: Publisher) -> None:
    for number in range(10, 20):
        publisher.publish(flights=f"SELECT {number} AS id")
        expected = b'[{"id":%d}]' % number
        assert ask(engine, "SELECT id FROM flights") == (expected, "miss")
        assert ask(engine, "SELECT id FROM flights") == (expected, "hit")
    publisher.publish(flights="SELECT 1 AS id")


def test_a_manifest_that_looks_like_the_one_before_the_last_is_another(
    engine: CachedEngine, publisher: Publisher
) -> None:
    """File systems give inodes anew, sizes are the same, and here the clock stands still."""

    def publish(number: int) -> None:
        publisher.publish(flights=f"SELECT {number} AS id")
        os.utime(manifest_path(publisher.state_dir), ns=(0, 0))

    for number in range(31, 41):
        publish(number)
        publish(number + 20)
        assert ask(engine, "SELECT id FROM flights") == (b'[{"id":%d}]' % (number + 20), "miss")
    publisher.publish(flights="SELECT 1 AS id")


def test_statements_beside_a_publisher_never_see_the_past(engine: CachedEngine, publisher: Publisher) -> None:
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


def test_without_a_manifest_nothing_is_remembered(tmp_path: Any) -> None:
    config = replace(config_of(tmp_path / "state"), results_cache=ResultsCacheConfig(enabled=True))
    config.state_dir.mkdir()
    with closing(remembering(InProcessEngine(config), config)) as engine:
        assert states(engine, "SELECT 1", "SELECT 1") == ["miss", "miss"]


def test_an_engine_that_has_ended_gives_nothing(publisher: Publisher) -> None:
    config = replace(config_of(publisher.state_dir), results_cache=ResultsCacheConfig(enabled=True))
    engine = remembering(InProcessEngine(config), config)
    assert states(engine, "SELECT 1", "SELECT 1") == ["miss", "hit"]

    engine.close()

    assert engine.era is None
    with pytest.raises(QueryError):
        ask(engine, "SELECT 1")
    engine.close()


# Statements that wait for one another.


class Crowd:
    """Statements that are the same, each in a thread of its own; the first leads."""

    def __init__(self, engine: CachedEngine, sql: str) -> None:
        self.engine, self.sql = engine, sql
        self.cancels: list[CancelSource] = []
        self.outcomes: list[Any] = []
        self._threads: list[threading.Thread] = []

    def add(self, timeout_s: float | None = None) -> None:
        number = len(self.outcomes)
        cancel = CancelSource()
        self.cancels.append(cancel)
        self.outcomes.append(None)

        def run() -> None:
            try:
                query = Query(sql=self.sql, cache="use", timeout_s=timeout_s, query_id=f"query-{id(self)}-{number}")
                result = self.engine.run(query, cancel)
                self.outcomes[number] = b"".join(result), result.timings.cache
                result.close()
            except QueryError as error:
                self.outcomes[number] = type(error)

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)

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
        basis = self.engine._basis
        return {} if basis is None else {key: one for key, one in basis.groups.items() if one.leader is not None}

    @property
    def waiting(self) -> list[Any]:
        return next((group.waiting for group in self.leaders.values()), [])

    def cancel(self) -> None:
        for cancel in self.cancels:
            cancel.cancel()

    def end(self) -> list[Any]:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "one waits for ever"
        assert self.engine._basis is None or not self.engine._basis.groups
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


def test_the_same_statements_share_one_run(engine: CachedEngine, crowd: Callable[..., Crowd]) -> None:
    same = crowd(SLOW)
    same.lead()
    same.follow(5)
    assert len(engine.active("")) == 1  # those that wait use nothing

    outcomes = same.end()

    assert outcomes == [(b'[{"c":0}]', "miss")] + [(b'[{"c":0}]', "hit")] * 5


def test_one_that_waits_keeps_its_own_time_and_its_own_cancel(start: Start, crowd: Callable[..., Crowd]) -> None:
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


def test_when_the_first_is_cancelled_the_others_run_themselves(crowd: Callable[..., Crowd]) -> None:
    same = crowd(SLOW)
    same.lead()
    same.follow(2)

    same.cancels[0].cancel()

    assert same.end() == [QueryCancelledError, (b'[{"c":0}]', "miss"), (b'[{"c":0}]', "miss")]


def test_when_the_first_runs_out_of_time_the_others_have_what_is_left_of_theirs(crowd: Callable[..., Crowd]) -> None:
    same = crowd(ENDLESS)
    same.lead(timeout_s=0.5)
    same.follow(2, timeout_s=1.0)

    assert same.end() == [QueryTimeoutError] * 3


def test_one_fails_for_all_but_each_by_itself(crowd: Callable[..., Crowd]) -> None:
    same = crowd(f"SELECT error('no') FROM ({SLOW})")
    same.lead()
    same.follow(2)

    assert same.end() == [SqlError] * 3


def test_nobody_waits_for_what_is_not_steady_twice(engine: CachedEngine, crowd: Callable[..., Crowd]) -> None:
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


def test_what_is_published_meanwhile_is_not_mixed_up(
    engine: CachedEngine, publisher: Publisher, crowd: Callable[..., Crowd]
) -> None:
    same = crowd(f"SELECT id, c FROM flights, ({SLOW})")
    same.lead()
    publisher.publish(flights="SELECT 77 AS id")
    same.add()  # it finds another basis, and leads there
    outcomes = same.end()

    assert outcomes[1] == (b'[{"id":77,"c":0}]', "miss")
    assert ask(engine, same.sql) == (b'[{"id":77,"c":0}]', "hit")
    publisher.publish(flights="SELECT 1 AS id")
