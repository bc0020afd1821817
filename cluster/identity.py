"""Who runs statements on a cluster: one id for an engine and all its workers, by which others can end what it left."""

import uuid
from functools import cache


@cache
def engine_id() -> str:
    """Return the id of this engine. The engine calls it before it forks, so its workers have the same."""
    return uuid.uuid4().hex


def engine_tag(engine: str) -> str:
    """Return the tag of the operations of *engine*."""
    return f"querykeep-engine-{engine}"


def query_tag(query_id: str) -> str:
    """Return the tag of the operation of a statement. A worker reports only the beginning of a long id."""
    return f"querykeep-query-{query_id[:32]}"
