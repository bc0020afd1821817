"""The id that an engine and its workers use on a cluster, so that others can end its leftover operations."""

import uuid
from functools import cache


@cache
def engine_id() -> str:
    """Return the id of this engine. The engine calls this before it forks, so its workers have the same id."""
    return uuid.uuid4().hex


def engine_tag(engine: str) -> str:
    """Return the tag of *engine*'s operations."""
    return f"querykeep-engine-{engine}"


def query_tag(query_id: str) -> str:
    """Return the tag of a statement's operation. A worker reports only the beginning of a long id."""
    return f"querykeep-query-{query_id[:32]}"
