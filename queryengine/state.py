"""The engine of this process."""

from functools import partial
from typing import TYPE_CHECKING

from queryengine.errors import EngineUnavailableError
from system.process_value import ProcessValue

if TYPE_CHECKING:  # Django also imports this module for client commands, which must start fast.
    from queryengine.engine import QueryEngine

#: None before a server has started the engine: `get` then raises EngineUnavailableError. Code that replaces an engine
#: must close the old one.
_engine: "ProcessValue[QueryEngine]" = ProcessValue(partial(EngineUnavailableError, "The engine is not running."))
get_engine, set_engine, start_on_demand = _engine.get, _engine.set, _engine.start_on_demand


def cancel_statements() -> None:
    """Stop every statement that runs in this process, with a typed error. This does not start an engine."""
    if _engine.value is not None:
        _engine.value.close()
