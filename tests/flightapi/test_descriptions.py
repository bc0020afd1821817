from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from flightapi import descriptions as limits
from flightapi.descriptions import Descriptions, StatementRequest
from queryengine.engine import Answer, ArrowParameters, Description, QueryTimings
from queryengine.errors import SqlError
from tests.flightapi.endpoint import Clock
from tests.queryengine.publishing import Publisher

TTL_S = 10.0

REQUEST = StatementRequest("key", b"ticket", "FROM flights")
KNOWN = Description(schema=b"schema", parameters=(), is_schema_cacheable=True)
FOUND = replace(KNOWN, answer=Answer(chunks=(b"schema", b"rows"), timings=QueryTimings(rows=1)))


@pytest.fixture
def publish(tmp_path: Path) -> Callable[..., object]:
    publisher = Publisher(tmp_path)
    publisher.publish(flights="SELECT 1 AS id")
    return publisher.publish


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(tmp_path: Path, publish: Callable[..., object], clock: Clock) -> Descriptions:
    return Descriptions(tmp_path, TTL_S, clock)


# The cache of statements without parameters.


class Engine:
    """Describes every statement in the same way, and counts its calls."""

    def __init__(self, description: Description = KNOWN) -> None:
        self.asked = 0
        self._description = description

    def __call__(self) -> Description:
        self.asked += 1
        return self._description


def test_a_description_is_cached_without_its_answer_until_data_is_published_or_it_expires(
    kept: Descriptions, publish: Callable[..., object], clock: Clock
) -> None:
    engine = Engine(FOUND)

    def asks(sql: str = "FROM flights") -> int:
        before = engine.asked
        assert [kept.of(sql, None, engine) in (FOUND, KNOWN), kept.of(sql, None, engine)] == [True, KNOWN]
        return engine.asked - before

    assert [asks(), asks(), asks("FROM planes")] == [1, 0, 1]
    publish(flights="SELECT 2 AS id")
    assert asks() == 1
    clock.now = TTL_S - 0.1
    assert asks() == 0
    clock.now = TTL_S
    assert [asks(), asks()] == [1, 0]


def test_a_description_from_before_a_publication_is_not_cached(
    kept: Descriptions, publish: Callable[..., object]
) -> None:
    engine = Engine()

    def slow() -> Description:
        publish(flights="SELECT 2 AS id")
        kept.of("FROM others", None, engine)
        return Description(schema=b"old", parameters=(), is_schema_cacheable=True)

    kept.of("FROM flights", None, slow)

    assert kept.of("FROM flights", None, engine) == KNOWN


@pytest.mark.parametrize(
    "description",
    [
        pytest.param(Description(schema=b"schema", parameters=()), id="of this moment"),
        pytest.param(Description(schema=None, parameters=("1",), is_schema_cacheable=True), id="without a schema"),
        pytest.param(Description(schema=b"schema", parameters=("1",), is_schema_cacheable=True), id="with parameters"),
        pytest.param(
            Description(schema=bytes(limits.MAX_CACHED_BYTES), parameters=(), is_schema_cacheable=True),
            id="of many columns",
        ),
    ],
)
def test_descriptions_that_are_never_cached(kept: Descriptions, description: Description) -> None:
    engine = Engine(description)

    assert [kept.of("SELECT $1", None, engine) for _ in range(2)] == [description] * 2
    assert engine.asked == 2


def test_a_failure_is_not_cached(kept: Descriptions) -> None:
    def fails() -> Description:
        raise SqlError("No.")

    with pytest.raises(SqlError):
        kept.of("FROM flights", None, fails)

    assert kept.of("FROM flights", None, Engine()) == KNOWN


def test_the_least_recently_used_description_is_evicted(kept: Descriptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES", 20_000)
    engine = Engine()
    for number in range(100):
        kept.of(f"SELECT {number}", None, engine)
        kept.of("SELECT 0", None, engine)
    assert engine.asked == 100

    kept.of("SELECT 99", None, engine)
    assert engine.asked == 100
    kept.of("SELECT 1", None, engine)
    assert engine.asked == 101


# Results that wait to be claimed.


def test_a_result_is_handed_out_once_and_only_for_the_same_request(kept: Descriptions) -> None:
    kept.keep(REQUEST, FOUND, kept.data_version())

    for other in (
        replace(REQUEST, fingerprint="other"),
        replace(REQUEST, claim=b"other"),
        replace(REQUEST, sql="FROM planes"),
        replace(REQUEST, parameters=ArrowParameters(b"row")),
    ):
        assert kept.take(other) is kept.move(other, REQUEST) is None
    assert [kept.take(REQUEST), kept.take(REQUEST)] == [FOUND, None]


def test_newer_data_invalidates_a_result(kept: Descriptions, publish: Callable[..., object]) -> None:
    late, before = replace(REQUEST, claim=b"late"), kept.data_version()
    kept.keep(REQUEST, FOUND, before)
    publish(flights="SELECT 2 AS id")
    kept.keep(late, FOUND, before)

    assert kept.take(REQUEST) is kept.move(late, REQUEST) is None


def test_a_result_expires_even_if_it_was_moved(kept: Descriptions, clock: Clock) -> None:
    requests = [replace(REQUEST, claim=claim) for claim in (b"a", b"b", b"c", b"d")]
    for request in requests:
        kept.keep(request, FOUND, kept.data_version())

    clock.now = TTL_S - 1
    assert kept.take(requests[0]) == FOUND
    assert kept.move(requests[1], REQUEST) == FOUND
    assert kept.take(requests[1]) is None
    clock.now = TTL_S
    assert [kept.take(REQUEST), kept.take(requests[2])] == [None, None]
    assert len(kept) == 1
    kept.expire()
    assert len(kept) == 0


def test_results_are_bounded_in_memory(kept: Descriptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES", 10_000)
    with_row = replace(REQUEST, parameters=ArrowParameters(bytes(5_000)))
    requests = [replace(REQUEST, claim=bytes([number])) for number in range(4)]

    for request in (*requests, with_row, with_row):
        kept.keep(request, FOUND, kept.data_version())

    assert len(kept) < 5
    assert [kept.take(requests[0]), kept.take(with_row)] == [None, FOUND]
