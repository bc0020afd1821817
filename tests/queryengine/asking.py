"""Asking an engine, whichever it is."""

from __future__ import annotations

import json
from typing import Any

from queryengine.engine import CacheUse, Encoding, Parameters, Query, QueryEngine
from queryengine.errors import QueryError


def ask(engine: QueryEngine, sql: str, parameters: Parameters | None = None, encoding: Encoding = "json") -> bytes:
    """Return the whole answer."""
    result = engine.run(Query(sql=sql, parameters=parameters, encoding=encoding))
    try:
        return b"".join(result)
    finally:
        result.close()


def rows(engine: QueryEngine, sql: str, parameters: Parameters | None = None) -> Any:
    """Return the rows."""
    return json.loads(ask(engine, sql, parameters))


def fail(engine: QueryEngine, sql: str, errors: list[BaseException]) -> None:
    """Run a statement that may well fail, and note how."""
    try:
        ask(engine, sql)
    except QueryError as exc:
        errors.append(exc)


def ask_cached(
    engine: QueryEngine,
    sql: str,
    parameters: Parameters | None = None,
    encoding: Encoding = "json",
    cache: CacheUse = "use",
) -> tuple[bytes, str]:
    """Return the whole answer, and where it came from."""
    result = engine.run(Query(sql=sql, parameters=parameters, encoding=encoding, cache=cache))
    try:
        return b"".join(result), result.timings.cache
    finally:
        result.close()
