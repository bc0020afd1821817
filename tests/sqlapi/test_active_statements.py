"""A caller lists its queued and running statements, and cancels them."""

import csv
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import queryengine.state
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import RuntimeConfig
from sqlapi.errors import AnswerCutError
from tests.datasources.support import wait_for
from tests.sqlapi.harness import WITH_KEY, Answer, Header, begin, call, environ_of, logged
from tests.system.harness import K1, K2

ACTIVE = "/v1/sql/active"
WITH_OTHER_KEY: Header = ("X-API-Key", K2)

#: Returns rows for hours, and can be interrupted.
ENDLESS = "SELECT * FROM range(1000000000000)"


def active(*headers: Header) -> list[dict[str, str]]:
    answer = call("GET", ACTIVE, *headers or (WITH_KEY,))
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    return list(answer.json())


def cancel(query_id: str, *headers: Header, **options: Any) -> Answer:
    return call("POST", f"/v1/sql/{query_id}/cancel", *headers or (WITH_KEY,), **options)


@contextmanager
def streaming(statement: str = ENDLESS, *headers: Header) -> Iterator[tuple[Answer, Any]]:
    """Begin to read an answer, whose statement then runs."""
    answer, pieces = begin(environ_of("POST", "/v1/sql", headers or [WITH_KEY], statement.encode()))
    try:
        next(iter(pieces))
        yield answer, pieces
    finally:
        pieces.close()


@pytest.mark.usefixtures("runtime")
def test_a_running_statement_is_listed_until_it_ends() -> None:
    assert call("GET", ACTIVE, WITH_KEY).body == b"[]"
    assert call("GET", f"{ACTIVE}?format=csv", WITH_KEY).body == b"id,started,state,sql\n"

    statement = f"/* {'é😀' * 1000} */ {ENDLESS}"
    before = datetime.now(UTC)
    with streaming(statement) as (answer, _):
        (listed,) = active()
        as_csv = call("GET", f"{ACTIVE}?format=csv", WITH_KEY)

    assert list(listed) == ["id", "started", "state", "sql"]
    assert listed["id"] == answer.headers["X-Query-Id"]
    assert (listed["state"], listed["sql"]) == ("running", statement[:1000])
    assert listed["started"].endswith("Z")
    assert before - timedelta(milliseconds=1) <= datetime.fromisoformat(listed["started"]) <= datetime.now(UTC)
    assert as_csv.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert list(csv.DictReader(io.StringIO(as_csv.body.decode()))) == [listed]
    assert active() == []


@pytest.mark.usefixtures("runtime")
def test_a_key_sees_and_cancels_its_own_statements_only() -> None:
    with streaming() as (one, _), streaming(ENDLESS, WITH_OTHER_KEY) as (other, _):
        query_id = one.headers["X-Query-Id"]
        refused = cancel(query_id, WITH_OTHER_KEY)
        unknown = cancel("0" * 32, WITH_OTHER_KEY)

        assert [row["id"] for row in active()] == [query_id]
        assert [row["id"] for row in active(WITH_OTHER_KEY)] == [other.headers["X-Query-Id"]]

    assert (refused.status, refused.code) == (404, "query_not_found")
    assert refused.without_request_id() == unknown.without_request_id()
    assert refused.headers.keys() == unknown.headers.keys()
    assert cancel(query_id).code == "query_not_found"


@pytest.mark.usefixtures("runtime")
def test_a_cancelled_answer_is_truncated(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), streaming() as (answer, pieces):
        query_id = answer.headers["X-Query-Id"]
        cancelled = cancel(query_id)
        with pytest.raises(AnswerCutError):
            list(pieces)

    assert (cancelled.status, cancelled.headers["Content-Type"]) == (200, "application/json")
    assert cancelled.json() == {"message": f"Query {query_id} is being cancelled."}
    assert cancelled.headers["X-Query-Id"] == query_id
    queries, requests = logged(caplog, "sqlapi.queries"), logged(caplog, "sqlapi.access")
    assert [line["outcome"] for line in queries] == ["query_cancelled"]
    assert {line["query_id"] for line in queries + requests} == {query_id}
    assert {line["route"] for line in requests} == {"/v1/sql", "/v1/sql/{query_id}/cancel"}
    wait_for(lambda: not active(), "its end")


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("body", [b"", b"{}", b"\xff{", b"x" * 200_000])
def test_a_cancel_reads_no_body(body: bytes) -> None:
    for content_type in ("application/json", ""):
        assert cancel("0" * 32, WITH_KEY, ("Content-Type", content_type), body=body).code == "query_not_found"


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("query_id", ["x", "%00", "%0d%0aSet-Cookie:a=b", "..", "%ff", "active", "x" * 5000, "a%20b"])
def test_odd_ids_are_not_found(query_id: str) -> None:
    answer = cancel(query_id)

    assert (answer.status, answer.code) == (404, "query_not_found")
    assert "X-Query-Id" not in answer.headers


@pytest.mark.usefixtures("auth_off")
def test_with_authentication_off_anyone_sees_all_statements(config: RuntimeConfig, engine: InProcessEngine) -> None:
    queryengine.state.set_engine(engine)

    with streaming(ENDLESS, ("X-API-Key", K1)) as (answer, _):
        (listed,) = call("GET", ACTIVE).json()
        assert listed["id"] == answer.headers["X-Query-Id"]
        assert call("POST", f"/v1/sql/{listed['id']}/cancel").status == 200
        assert call("POST", f"/v1/sql/{listed['id']}/cancel", ("Sec-Fetch-Site", "cross-site")).status == 403
