"""A fetched result is, to the byte, the one that record batches give."""

import json
import threading
import tracemalloc
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from queryengine.cancellation import CancelSource
from queryengine.engine import Encoding, Query
from queryengine.errors import QueryCancelledError, QueryError, QueryTimeoutError
from queryengine.execution.reader import SMALL_BYTES, SMALL_ROWS, Reader
from queryengine.execution.statistics import _MAX_PATTERNS, SmallPatterns
from queryengine.pool.inprocess import InProcessEngine
from tests.queryengine.asking import ask, rows
from tests.queryengine.conftest import MakeEngine
from tests.queryengine.publishing import Publisher
from tests.queryengine.statements import READS, TABLES, VIEWS


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each fetch, whether its answer came as Python values."""
    found: list[bool] = []
    fetch = Reader.fetch

    def counted(reader: Reader, *args: Any) -> bool:
        found.append(fetch(reader, *args))
        return found[-1]

    monkeypatch.setattr(Reader, "fetch", counted)
    monkeypatch.setattr("queryengine.execution.reader.SMALL_S", 60.0)  # A busy machine is slower than the real limit.
    return found


@pytest.fixture
def engine(publisher: Publisher, make_engine: MakeEngine) -> InProcessEngine:
    publisher.publish(**TABLES)
    return make_engine(tuple(TABLES), VIEWS)


def outcome(engine: InProcessEngine, sql: str, encoding: Encoding = "json") -> bytes | tuple[str, str]:
    try:
        return ask(engine, sql, encoding=encoding)
    except QueryError as exc:
        return exc.code, str(exc)


#: Words of statements that have another answer each time.
_NONDETERMINISTIC = ("random", "uuid", "now", "current_t", "today", "sample", "explain")


def test_every_statement_has_the_same_answer_again(
    publisher: Publisher, make_engine: MakeEngine, fetches: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    # DuckDB with one thread gives rows that have no order in the same one again.
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    publisher.publish(**TABLES)
    engine = make_engine(tuple(TABLES), VIEWS)

    for sql in READS:
        if not any(word in sql.lower() for word in _NONDETERMINISTIC):
            assert outcome(engine, sql, "csv") == outcome(engine, sql, "csv"), sql

    assert sum(fetches) > 30


SMALL = "SELECT 1 AS a, 'b' AS b, id FROM flights WHERE id = 2"
ENUM = "SELECT 'a'::ENUM('b', 'a') AS a"


@pytest.mark.parametrize(
    ("sql", "encoding", "count"),
    [
        *((SMALL, encoding, 2) for encoding in ("arrow", "flight", "vnd")),
        ("SELECT id AS a FROM flights WHERE id < 0", "arrow", 2),
        (ENUM, "json", 2),
        (ENUM, "arrow", 0),  # only text can hold it
        (f"SELECT i FROM range({SMALL_ROWS + 1}) t(i)", "json", 0),
        (f"SELECT repeat('a', {SMALL_BYTES + 1}) AS a", "json", 0),
    ],
)
def test_a_small_result_is_fetched_from_the_second_time_on(
    engine: InProcessEngine, fetches: list[bool], sql: str, encoding: Encoding, count: int
) -> None:
    assert len({ask(engine, sql, encoding=encoding) for _ in range(3)}) == 1
    assert sum(fetches) == count


@pytest.mark.parametrize("encoding", ["json", "arrow"])
def test_the_limit_of_a_fetch_ends_with_it(
    engine: InProcessEngine, fetches: list[bool], monkeypatch: pytest.MonkeyPatch, encoding: Encoding
) -> None:
    fetch = Reader.fetch

    def late(reader: Reader, *args: Any) -> bool:
        found = fetch(reader, *args)
        reader._interruption.stop(partial(QueryTimeoutError, 1.0))  # as the watchdog before it forgets the fetch
        return found

    monkeypatch.setattr(Reader, "fetch", late)

    assert len({ask(engine, SMALL, encoding=encoding) for _ in range(3)}) == 1
    assert sum(fetches) == 2


def test_a_type_that_only_text_can_hold_may_come_later(engine: InProcessEngine, fetches: list[bool]) -> None:
    sql = "SELECT struct_extract({{'a': 1, 'b': 'x'::ENUM('y', 'x')}}, '{}') AS v"
    for name in "aa":
        ask(engine, sql.format(name), encoding="arrow")
    assert sum(fetches) == 1

    (chunk,) = pa.ipc.open_stream(ask(engine, sql.format("b"), encoding="arrow")).read_all().column("v").chunks

    assert chunk.dictionary.to_pylist() == ["y", "x"], "all values of the type, in its order"
    assert sum(fetches) == 1


def test_a_description_has_the_schema_of_a_small_result(engine: InProcessEngine, fetches: list[bool]) -> None:
    sql = "SELECT {} AS n, 1.5 AS a, 7::HUGEINT AS a, 7::UHUGEINT AS b, NULL AS c"
    for number in range(1, 4):
        described = engine.describe(Query(sql=sql.format(number), encoding="flight"))
        answer = ask(engine, sql.format(number), encoding="arrow")
        assert described.schema is not None
        assert pa.ipc.open_stream(answer).schema == pa.ipc.read_schema(pa.BufferReader(described.schema))
    assert sum(fetches) == 2


def test_other_literals_have_their_own_results(engine: InProcessEngine, fetches: list[bool]) -> None:
    for number in range(1, 6):
        answer = ask(engine, f"SELECT id, {number} AS n FROM flights WHERE id = {number}")
        assert answer == b'[{"id":%d,"n":%d}]' % (number, number)
    assert sum(fetches) == 4

    for text in ("a", "''", "b''c", "--", "/*"):
        answer = ask(engine, f"SELECT '{text}' AS t, name FROM airlines WHERE carrier = '{text}' OR 1=1 LIMIT 1")
        assert json.loads(answer)[0]["t"] == text.replace("''", "'")
    assert sum(fetches) >= 6


def test_a_number_of_another_type_changes_the_type_of_the_result(engine: InProcessEngine, fetches: list[bool]) -> None:
    for number, type_ in (("1.5", "DECIMAL(2,1)"), ("1.25", "DECIMAL(3,2)"), ("10.125", "DECIMAL(5,3)")):
        sql = f"SELECT n, typeof(n) AS t FROM (SELECT {number} AS n)"
        assert rows(engine, sql) == [{"n": float(number), "t": type_}]
    assert sum(fetches) == 2


def test_rows_and_times_are_counted(engine: InProcessEngine, fetches: list[bool]) -> None:
    for limit in (3, 4):
        result = engine.run(Query(sql=f"SELECT id FROM flights LIMIT {limit}"))
        body = b"".join(result)
        assert (result.timings.rows, result.timings.bytes) == (limit, len(body))
        assert result.timings.run_ms > 0
        assert result.timings.encode_ms > 0
    assert sum(fetches) == 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT i FROM range(1000) t(i) LIMIT 9{}",
        "SELECT CASE WHEN {} < 2 THEN 'a' ELSE repeat('a', 100000) END AS a",
        "SELECT CASE WHEN {} < 2 THEN DATE '2020-01-01' ELSE DATE 'infinity' END AS a",
    ],
    ids=["rows", "bytes", "value"],
)
def test_a_result_that_turns_out_large(engine: InProcessEngine, fetches: list[bool], sql: str) -> None:
    small, longer = sql.format(1), sql.format(99)
    expected = ask(engine, small)
    assert ask(engine, small) == expected
    assert sum(fetches) == 1

    first = ask(engine, longer)
    assert sum(fetches) == 1
    assert ask(engine, longer) == first

    assert ask(engine, small) == expected
    assert sum(fetches) == 1  # It is not tried again.


COUNTING = """
WITH RECURSIVE counted AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM counted WHERE n < {until})
SELECT max(n) AS n FROM counted
"""


def test_a_slow_fetch_is_given_up_early(
    engine: InProcessEngine, fetches: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [ask(engine, COUNTING.format(until=number)) for number in (2, 3)]
    assert (answers, sum(fetches)) == ([b'[{"n":2}]', b'[{"n":3}]'], 1)
    cancel = CancelSource()
    start = Reader.start

    def started(reader: Reader, *args: Any) -> None:
        threading.Timer(0.1, cancel.cancel).start()
        start(reader, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "start", started)
        with pytest.raises(QueryCancelledError):
            engine.run(Query(sql=COUNTING.format(until=999_999_999)), cancel)

    assert ask(engine, COUNTING.format(until=4)) == b'[{"n":4}]'
    assert sum(fetches) == 1


def test_a_fetch_is_stopped_like_any_statement(
    publisher: Publisher, make_engine: MakeEngine, fetches: list[bool]
) -> None:
    engine = make_engine((), timeout_s=2.0)
    for number in (2, 3):
        ask(engine, COUNTING.format(until=number))
    cancel = CancelSource()
    cancel.cancel()
    with pytest.raises(QueryCancelledError):
        engine.run(Query(sql=COUNTING.format(until=4)), cancel)
    assert ask(engine, COUNTING.format(until=5)) == b'[{"n":5}]'
    assert sum(fetches) == 2

    with pytest.raises(QueryTimeoutError, match="after 2 s"):
        engine.run(Query(sql=COUNTING.format(until=999_999_999)))


def test_few_long_texts_are_fetched(engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT repeat('a', n) AS a FROM range(90), (SELECT {length} AS n)"
    for _ in range(2):
        ask(engine, sql.format(length=5))
    objects = []
    fetch = Reader.fetch

    def traced(reader: Reader, *args: Any) -> bool:
        tracemalloc.start()
        try:
            return fetch(reader, *args)
        finally:
            objects.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    monkeypatch.setattr(Reader, "fetch", traced)
    assert ask(engine, sql.format(length=SMALL_BYTES)).count(b"a" * SMALL_BYTES) == 90
    (most,) = objects
    assert most < 5 * SMALL_BYTES


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ({} || '')::TINYINT AS a",
        "SELECT id FROM flights ORDER BY {} LIMIT 1",
        "SELECT CASE WHEN {} = 1 THEN 1 ELSE error('no') END AS a",
    ],
    ids=["value", "column", "in a row"],
)
def test_errors_are_the_same(engine: InProcessEngine, fetches: list[bool], sql: str) -> None:
    good, bad = sql.format(1), sql.format(1000)
    expected = outcome(engine, bad)
    assert isinstance(expected, tuple)
    answers = [outcome(engine, good) for _ in range(2)]
    assert sum(fetches) == 1

    assert outcome(engine, bad) == expected

    assert [outcome(engine, good) for _ in range(2)] == answers
    assert sum(fetches) == 3


def test_a_nondeterministic_result_is_never_fetched(engine: InProcessEngine, fetches: list[bool]) -> None:
    for sql in ("SELECT random() AS r", "SELECT uuid() AS u", "SELECT now() AS n"):
        assert len({ask(engine, sql) for _ in range(3)}) == 3
    assert sum(fetches) == 0


def test_values_of_parameters(engine: InProcessEngine, fetches: list[bool]) -> None:
    sql = "SELECT ? AS v"

    assert [ask(engine, sql, [value]) for value in (1, 2, "a", None, 1.5, [1])] == [
        b'[{"v":1}]', b'[{"v":2}]', b'[{"v":"a"}]', b'[{"v":null}]', b'[{"v":1.5}]', b'[{"v":[1]}]'
    ]  # fmt: skip
    assert sum(fetches) == 4


def test_the_number_of_patterns_is_limited() -> None:
    answers = SmallPatterns(_MAX_PATTERNS)
    for number in range(_MAX_PATTERNS + 1):
        answers.learn(f"SELECT {number}", small=True)

    assert [answers.get(f"SELECT {number}", False) for number in (0, 1, _MAX_PATTERNS)] == [False, True, True]
    answers.learn(None, small=True)
    assert len(answers) == _MAX_PATTERNS, "a statement without a pattern is not learned"
