"""The engine of this process: set once when a server starts, and by tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from queryengine.errors import EngineUnavailableError

if TYPE_CHECKING:  # Django also imports this module for client commands, which must start fast.
    from queryengine.engine import QueryEngine

_engine: QueryEngine | None = None
_start: Callable[[], object] | None = None


def get_engine() -> QueryEngine:
    """
    Return the engine of this process.

    Raises:
        EngineUnavailableError: No engine was started.
    """
    if _engine is None and _start is not None:
        _start()
    if _engine is None:
        raise EngineUnavailableError("The engine is not running.")
    return _engine


def set_engine(engine: QueryEngine | None) -> None:
    """Make `get_engine` return *engine*; None removes it. The caller closes the previous engine."""
    global _engine, _start
    _engine, _start = engine, None


def start_on_demand(start: Callable[[], object]) -> None:
    """Call *start*, which sets an engine, when `get_engine` is called before an engine is set."""
    global _start  # noqa: PLW0603 - as above
    _start = start


def cancel_statements() -> None:
    """End every statement that runs in this process, with a typed error. No engine is started."""
    if _engine is not None:
        _engine.close()
