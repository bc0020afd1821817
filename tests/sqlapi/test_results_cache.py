"""Cached answers over HTTP: who gets them, `Cache-Control`, and `X-Cache`."""

import logging
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import queryengine.state
from queryengine.cache.cached_engine import remembering
from queryengine.engine import CacheUse
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import ResultsCacheConfig, RuntimeConfig
from sqlapi.negotiation import cache_use
from tests.sqlapi.harness import Answer, logged, sql
from tests.system.harness import K2, WRONG

STATEMENT = "SELECT count(*) AS n FROM orders"
BODY = b'[{"n":100}]'


@pytest.fixture(autouse=True)
def cache(runtime: RuntimeConfig, engine: InProcessEngine) -> Iterator[None]:
    """A new cache in front of the engine that all tests share."""
    config = replace(runtime, results_cache=ResultsCacheConfig(enabled=True))
    queryengine.state.set_engine(remembering(engine, config))
    yield
    queryengine.state.set_engine(engine)


def told(answer: Answer) -> tuple[int, bytes, str | None]:
    return answer.status, answer.body, answer.headers.get("X-Cache")


def test_a_repeated_statement_gets_the_cached_answer() -> None:
    first, second = sql(STATEMENT), sql(f"  {STATEMENT} ;")

    assert (told(first), told(second)) == ((200, BODY, "miss"), (200, BODY, "hit"))
    changed = {"X-Cache", "X-Request-Id", "X-Query-Id"}
    assert first.headers["X-Query-Id"] != second.headers["X-Query-Id"]
    assert {name: value for name, value in first.headers.items() if name not in changed} == {
        name: value for name, value in second.headers.items() if name not in changed
    }
    assert second.headers["Cache-Control"] == "no-store"  # For other caches.


def test_without_the_cache_there_is_no_x_cache_header(engine: InProcessEngine) -> None:
    queryengine.state.set_engine(engine)

    assert [told(sql(STATEMENT)) for _ in range(2)] == [(200, BODY, None)] * 2


def test_authentication_precedes_the_cache_lookup() -> None:
    unknown = [sql("SELECT 1", key=key) for key in (WRONG, None)]
    sql(STATEMENT)
    refused = [sql(STATEMENT, key=key) for key in (WRONG, None)]

    assert [told(answer)[::2] for answer in refused] == [(401, None)] * 2
    assert [answer.without_request_id() for answer in refused] == [answer.without_request_id() for answer in unknown]
    assert told(sql(STATEMENT, key=K2)) == (200, BODY, "hit")


@pytest.mark.parametrize(("directive", "then"), [("max-stale, no-cache", "hit"), ("no-store, no-cache", "miss")])
def test_cache_control_bypasses_the_cache(directive: str, then: str) -> None:
    header = ("Cache-Control", directive)

    assert [told(sql(STATEMENT, header))[2] for _ in range(2)] == ["bypass"] * 2
    assert told(sql(STATEMENT)) == (200, BODY, then)
    assert told(sql(STATEMENT, header)) == (200, BODY, "bypass")


@pytest.mark.parametrize(
    ("header", "use"),
    [
        (None, "use"),
        ("", "use"),
        ("max-age=01, no-cacheable", "use"),
        ("No-Cache", "renew"),
        ("max-age=00", "renew"),
        ('MAX-AGE="0"', "renew"),
        ('max-age="0, no-cache', "use"),
        ("only-if-cached, max-age=60", "use"),
        ("\tno-cache ,x", "renew"),
        ("no-cache, no-store", "none"),
        ('a="no-store, b"', "use"),
    ],
)
def test_cache_control_directives(header: str | None, use: CacheUse) -> None:
    assert cache_use(header) == use


def test_the_log_shows_the_cache_state(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sqlapi.queries"):
        for header in ([], [], [("Cache-Control", "no-store")]):
            sql(STATEMENT, *header)

    lines = logged(caplog, "sqlapi.queries")
    assert [line["cache"] for line in lines] == ["miss", "hit", "bypass"]
    assert [(line["rows"], line["bytes"], line["outcome"]) for line in lines] == [(1, len(BODY), "ok")] * 3
    assert (lines[1]["run_ms"], lines[1]["queued_ms"]) == (0.0, 0.0)
    assert len({line["query_id"] for line in lines}) == 3
