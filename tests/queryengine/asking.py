"""Asking an engine, whichever it is."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from typing import Any, TypeVar

from queryengine.engine import CacheUse, Encoding, Parameters, Query, QueryEngine
from tests.queryengine.publishing import PATIENCE_S


def ask(engine: QueryEngine, sql: str, parameters: Parameters | None = None, encoding: Encoding = "json") -> bytes:
    """Return the whole answer."""
    return ask_cached(engine, sql, parameters, encoding, "none")[0]


_T = TypeVar("_T")


def begin(function: Callable[[], _T]) -> Future[_T]:
    """Call *function* in a thread of its own, which does not outlive the tests."""
    begun: Future[_T] = Future()

    def call() -> None:
        try:
            begun.set_result(function())
        except BaseException as error:  # noqa: BLE001 - the test examines it
            begun.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return begun


def error_of(begun: Future[Any]) -> type[BaseException]:
    """Wait for the end, and return the type of the error."""
    error = begun.exception(PATIENCE_S)
    assert error is not None, "there is no error"
    return type(error)


def rows(engine: QueryEngine, sql: str, parameters: Parameters | None = None) -> Any:
    """Return the rows."""
    return json.loads(ask(engine, sql, parameters))


def ask_cached(
    engine: QueryEngine,
    sql: str,
    parameters: Parameters | None = None,
    encoding: Encoding = "json",
    cache: CacheUse = "use",
) -> tuple[bytes, str]:
    """Return the whole answer, and where it came from."""
    with closing(engine.run(Query(sql=sql, parameters=parameters, encoding=encoding, cache=cache))) as result:
        return b"".join(result), result.timings.cache
