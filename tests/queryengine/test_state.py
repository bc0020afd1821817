from __future__ import annotations

from collections.abc import Iterator

import pytest

from queryengine.errors import EngineUnavailableError
from queryengine.state import get_engine, set_engine
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
