"""The engine of this process: set once by whatever starts a server, and by tests."""

from __future__ import annotations

from queryengine.engine import QueryEngine
from queryengine.errors import EngineUnavailableError

_engine: QueryEngine | None = None


def get_engine() -> QueryEngine:
    """
    Return the engine of this process.

    Raises:
        EngineUnavailableError: None was started.
    """
    if _engine is None:
        raise EngineUnavailableError("The engine is not running.")
    return _engine


def set_engine(engine: QueryEngine | None) -> None:
    """Make *engine* the one that `get_engine` returns; None forgets it. The caller closes the one before."""
    global _engine  # noqa: PLW0603 - the one accessor of this room's process-wide state
    _engine = engine
