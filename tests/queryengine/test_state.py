from unittest.mock import Mock

import pytest

from queryengine.errors import EngineUnavailableError
from queryengine.state import get_engine, set_engine, start_on_demand


def test_an_engine_is_started_on_demand_and_not_again_after_it_has_stopped() -> None:
    set_engine(None)
    with pytest.raises(EngineUnavailableError, match="not running"):
        get_engine()
    start_on_demand(lambda: set_engine(Mock()))

    assert get_engine() is get_engine()
    set_engine(None)
    with pytest.raises(EngineUnavailableError, match="not running"):
        get_engine()
