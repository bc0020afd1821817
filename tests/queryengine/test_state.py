from collections.abc import Iterator

import pytest

from queryengine.errors import EngineUnavailableError
from queryengine.state import get_engine, set_engine, start_on_demand
from tests.queryengine.conftest import MakeEngine


@pytest.fixture(autouse=True)
def _forget_the_engine() -> Iterator[None]:
    set_engine(None)
    yield
    set_engine(None)


def test_without_an_engine_the_accessor_says_so() -> None:
    with pytest.raises(EngineUnavailableError, match="not running"):
        get_engine()


def test_the_engine_that_was_set_is_returned(make_engine: MakeEngine) -> None:
    engine = make_engine()

    set_engine(engine)

    assert get_engine() is engine


def test_an_engine_is_started_on_demand_and_not_again_after_it_has_stopped(make_engine: MakeEngine) -> None:
    start_on_demand(lambda: set_engine(make_engine()))

    assert get_engine() is get_engine()
    set_engine(None)
    with pytest.raises(EngineUnavailableError, match="not running"):
        get_engine()
