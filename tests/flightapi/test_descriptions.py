from pathlib import Path

import pytest

from flightapi import descriptions as limits
from flightapi.descriptions import TTL_S, Descriptions
from queryengine.engine import Description
from queryengine.errors import SqlError
from tests.flightapi.endpoint import Clock
from tests.queryengine.publishing import Publisher

KNOWN = Description(schema=b"schema", parameters=(), is_schema_cacheable=True)


class Engine:
    """Describes every statement in the same way, and counts its calls."""

    def __init__(self, description: Description = KNOWN) -> None:
        self.asked = 0
        self._description = description

    def __call__(self) -> Description:
        self.asked += 1
        return self._description


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(tmp_path: Path, clock: Clock) -> Descriptions:
    Publisher(tmp_path).publish(flights="SELECT 1 AS id")
    return Descriptions(tmp_path, clock)


def test_a_description_is_cached_until_data_is_published_or_it_expires(
    known: Descriptions, tmp_path: Path, clock: Clock
) -> None:
    engine = Engine()

    def asks(sql: str = "FROM flights") -> int:
        before = engine.asked
        assert [known.of(sql, None, engine) for _ in range(2)] == [KNOWN] * 2
        return engine.asked - before

    assert [asks(), asks(), asks("FROM planes")] == [1, 0, 1]
    Publisher(tmp_path).publish(flights="SELECT 2 AS id")
    assert asks() == 1
    clock.now = TTL_S - 0.1
    assert asks() == 0
    clock.now = TTL_S
    assert [asks(), asks()] == [1, 0]


def test_a_description_from_before_a_publication_is_not_cached(known: Descriptions, tmp_path: Path) -> None:
    engine = Engine()

    def slow() -> Description:
        Publisher(tmp_path).publish(flights="SELECT 2 AS id")
        known.of("FROM others", None, engine)
        return Description(schema=b"old", parameters=(), is_schema_cacheable=True)

    known.of("FROM flights", None, slow)

    assert known.of("FROM flights", None, engine) == KNOWN


@pytest.mark.parametrize(
    "description",
    [
        pytest.param(Description(schema=b"schema", parameters=()), id="of this moment"),
        pytest.param(Description(schema=None, parameters=("1",), is_schema_cacheable=True), id="without a schema"),
        pytest.param(Description(schema=b"schema", parameters=("1",), is_schema_cacheable=True), id="with parameters"),
        pytest.param(
            Description(schema=bytes(limits.MAX_ENTRY_BYTES), parameters=(), is_schema_cacheable=True),
            id="of many columns",
        ),
    ],
)
def test_descriptions_that_are_never_cached(known: Descriptions, description: Description) -> None:
    engine = Engine(description)

    assert [known.of("SELECT $1", None, engine) for _ in range(2)] == [description] * 2
    assert engine.asked == 2


def test_a_failure_is_not_cached(known: Descriptions) -> None:
    def fails() -> Description:
        raise SqlError("No.")

    with pytest.raises(SqlError):
        known.of("FROM flights", None, fails)

    assert known.of("FROM flights", None, Engine()) == KNOWN


def test_the_least_recently_used_description_is_evicted(known: Descriptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES", 10_000)
    engine = Engine()
    for number in range(100):
        known.of(f"SELECT {number}", None, engine)
        known.of("SELECT 0", None, engine)
    assert engine.asked == 100

    known.of("SELECT 99", None, engine)
    assert engine.asked == 100
    known.of("SELECT 1", None, engine)
    assert engine.asked == 101
