"""The engine of this process: set once by whatever starts a server, and by tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from queryengine.errors import EngineUnavailableError

if TYPE_CHECKING:  # Django's start imports this module for client commands too, which are to start fast.
    from queryengine.engine import QueryEngine

_engine: QueryEngine | None = None
_start: Callable[[], object] | None = None


def get_engine() -> QueryEngine:
    """
    Return the engine of this process.

    Raises:
        EngineUnavailableError: None was started.
    """
    if _engine is None and _start is not None:
        _start()
    if _engine is None:
        raise EngineUnavailableError("The engine is not running.")
    return _engine


def set_engine(engine: QueryEngine | None) -> None:
    """Make *engine* the one that `get_engine` returns; None forgets it. The caller closes the one before."""
    global _engine, _start
    _engine, _start = engine, None


def start_on_demand(start: Callable[[], object]) -> None:
    """Have *start*, which sets an engine, called when one is asked for before anybody has set one."""
    global _start  # noqa: PLW0603 - as above
    _start = start


def cancel_statements() -> None:
    """End every statement that runs in this process, with a typed error to its caller. No engine is started."""
    if _engine is not None:
        _engine.close()
