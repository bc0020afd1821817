"""Small, streamed and truncated results, clients that disconnect, and the list of statements that run."""

import csv
import io
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

import authkeys.state
import queryengine.state
import runtimeconf.state
from authkeys.access import build
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import AuthConfig, QueryConfig, RuntimeConfig
from sqlapi.errors import AnswerCutError
from sqlapi.statements import READ_AHEAD_BYTES
from tests.sqlapi.harness import WITH_KEY, Answer, Header, begin, call, environ_of, logged, sql
from tests.system.harness import K1, K2, wait_for

pytestmark = pytest.mark.usefixtures("runtime")

PATIENCE_S = 60.0
CSV = ("Accept", "text/csv")

#: Runs for minutes, and can be interrupted.
ENDLESS = "SELECT count(*) AS n FROM range(1000000000000) a"
#: Returns rows for hours, and can be interrupted.
ENDLESS_ROWS = "SELECT * FROM range(1000000000000)"
#: Returns rows at once, and fails on one of the last.
FAILS_LATE = "SELECT CAST(CASE WHEN range = 2999999 THEN 'x' ELSE '1' END AS INTEGER) AS a FROM range(3000000)"


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO):
        yield


def test_a_small_answer_has_a_length_and_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    answer = sql("SELECT 1 AS a", ("X-Request-Id", "short"))

    assert answer.headers["Content-Length"] == "9"
    (query,) = logged(caplog, "sqlapi.queries")
    (access,) = logged(caplog, "sqlapi.access")
    assert query["outcome"] == "ok"
    assert query["request_id"] == access["request_id"] == "short"
    assert query["query_id"] == access["query_id"] == answer.headers["X-Query-Id"]
    assert query["fingerprint"] == access["fingerprint"] != ""
    assert (query["rows"], query["bytes"], access["bytes"]) == (1, 9, 9)
    for name in ("queued_ms", "parse_ms", "run_ms", "encode_ms", "duration_ms"):
        assert 0 <= query[name] <= PATIENCE_S * 1000


def test_a_large_answer_is_streamed_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    answer = sql("SELECT * FROM range(100000) t(a)")

    assert not answer.is_cut
    assert "Content-Length" not in answer.headers
    assert json.loads(answer.body) == [{"a": number} for number in range(100_000)]
    (query,) = logged(caplog, "sqlapi.queries")
    (access,) = logged(caplog, "sqlapi.access")
    assert (query["outcome"], query["rows"]) == ("ok", 100_000)
    assert query["bytes"] == access["bytes"] == len(answer.body)
    assert access["complete"] is True


def test_answers_just_below_and_above_the_size_that_is_streamed() -> None:
    for rows in (READ_AHEAD_BYTES // 20, READ_AHEAD_BYTES // 2):
        answer = sql(f"SELECT * FROM range({rows}) t(a)", CSV)
        assert answer.body.decode().splitlines() == ["a", *map(str, range(rows))]


@pytest.mark.parametrize(
    "accept", ["text/csv", "application/json", "application/x-ndjson", "application/vnd.spiceai.sql.v1+json"]
)
def test_l12_a_late_failure_truncates_the_answer_and_is_logged(accept: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = sql(FAILS_LATE, ("Accept", accept))

    assert answer.status == 200
    assert answer.is_cut
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.body)
    (query,) = logged(caplog, "sqlapi.queries")
    (access,) = logged(caplog, "sqlapi.access")
    assert query["outcome"] == "sql_error"
    assert access["complete"] is False
    assert access["bytes"] == len(answer.body)


@contextmanager
def streaming(statement: str = ENDLESS_ROWS, *headers: Header) -> Iterator[tuple[Answer, Any]]:
    """Begin to read a streamed result, whose statement then runs in its execution slot."""
    answer, pieces = begin(environ_of("POST", "/v1/sql", headers or [WITH_KEY], statement.encode()))
    try:
        next(iter(pieces))
        yield answer, pieces
    finally:
        pieces.close()


class ServerEndsError(SystemExit):
    """Ends a statement from outside, like gevent's `GreenletExit`."""


@pytest.fixture
def ending() -> Iterator[None]:
    """
    Make SIGALRM raise `ServerEndsError` in the thread of the test.

    A moment later if coverage is at work: an error there leaves its lock held, and every thread waits for it for ever.
    """

    def end(_: int, frame: FrameType | None) -> None:
        if frame is not None and "coverage" in Path(frame.f_code.co_filename).parts:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
        else:
            raise ServerEndsError

    before = signal.signal(signal.SIGALRM, end)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("ending")
def test_a_queued_statement_stopped_by_the_server_is_logged_as_such(
    config: RuntimeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    asking = threading.get_ident()

    def end_when_it_waits() -> None:
        wait_for(lambda: b'"queued"' in call("GET", "/v1/sql/active", WITH_KEY).body, "the queue")
        # It is listed before it is parsed, and DuckDB's parser handles signals itself.
        waits = threading.__file__
        wait_for(lambda: sys._current_frames()[asking].f_code.co_filename == waits, "the wait for a slot")
        os.kill(os.getpid(), signal.SIGALRM)

    limits = QueryConfig(workers=1, max_queued=1, queue_timeout_s=PATIENCE_S)
    with closing(InProcessEngine(replace(config, query=limits))) as engine:
        queryengine.state.set_engine(engine)
        ender = threading.Thread(target=end_when_it_waits)
        with streaming():
            ender.start()
            with pytest.raises(ServerEndsError):
                sql("SELECT 1 AS a")
            ender.join()

    outcomes = [line["outcome"] for line in logged(caplog, "sqlapi.queries")]
    assert outcomes == ["server_stopped", "client_closed_request"]


@pytest.mark.usefixtures("ending")
def test_an_answer_stopped_by_the_server_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    for rows_are_made in (False, True):
        with pytest.raises(ServerEndsError):
            end_while_it_is_read(rows_are_made=rows_are_made)

    assert [line["outcome"] for line in logged(caplog, "sqlapi.queries")] == ["server_stopped"] * 2


def end_while_it_is_read(*, rows_are_made: bool) -> None:
    """Act like a server that is stopped while it computes the answer, or while the client reads it."""
    with streaming() as (_, pieces):
        if rows_are_made:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            deque(pieces, maxlen=0)
        signal.raise_signal(signal.SIGALRM)


def test_l17_a_disconnect_during_an_answer_releases_the_slot(
    config: RuntimeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(config.query.workers + 1):
        answer = sql(ENDLESS_ROWS, chunks=3)
        assert answer.status == 200

    assert sql("SELECT 1 AS a").json() == [{"a": 1}]
    outcomes = [line["outcome"] for line in logged(caplog, "sqlapi.queries")]
    assert outcomes == ["client_closed_request"] * (config.query.workers + 1) + ["ok"]
    assert logged(caplog, "sqlapi.access")[0]["complete"] is False


@pytest.mark.parametrize("name", ["runtime.socket", "gunicorn.socket"])
@pytest.mark.parametrize("waits_s", [0.0, 0.3])
def test_l17_a_disconnect_before_the_answer_stops_the_statement(
    name: str, waits_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()
    client = threading.Timer(waits_s, theirs.close)
    client.start()
    if not waits_s:
        client.join()
    began = time.monotonic()
    answer = sql(ENDLESS, environ={name: ours})
    client.join()
    ours.close()

    assert time.monotonic() - began < 30
    assert (answer.status, answer.code) == (499, "client_closed_request")
    assert [line["outcome"] for line in logged(caplog, "sqlapi.queries")] == ["client_closed_request"]


def test_l17_a_disconnect_while_streaming_truncates_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = socket.socketpair()
    stalls = "SELECT * FROM range(100000) UNION ALL SELECT count(*) FROM range(1000000000000)"

    client = threading.Timer(0.5, theirs.close)
    client.start()
    answer = sql(stalls, CSV, environ={"runtime.socket": ours})
    client.join()
    ours.close()

    assert answer.is_cut or answer.status == 499
    assert [line["outcome"] for line in logged(caplog, "sqlapi.queries")] == ["client_closed_request"]


def test_a_refused_statement_is_logged_but_no_text_of_statements(caplog: pytest.LogCaptureFixture) -> None:
    answer = sql("DELETE FROM orders")
    sql("SELECT 'a secret text' AS a")
    call("POST", "/v1/sql?a-secret-text", WITH_KEY, body=b"SELECT 'a secret text' FROM nowhere")

    query = logged(caplog, "sqlapi.queries")[0]
    assert query["outcome"] == "statement_not_allowed"
    assert query["query_id"] == answer.headers["X-Query-Id"]
    assert (query["rows"], query["bytes"]) == (0, 0)
    # Django's own loggers print nothing (runtime_site.logs).
    ours = [record.__dict__ for record in caplog.records if not record.name.startswith("django.")]
    assert "DELETE" not in str(ours)
    assert "secret" not in str(ours)


ACTIVE = "/v1/sql/active"
WITH_OTHER_KEY: Header = ("X-API-Key", K2)


def active(*headers: Header) -> list[dict[str, str]]:
    answer = call("GET", ACTIVE, *headers or (WITH_KEY,))
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    return list(answer.json())


def cancel(query_id: str, *headers: Header, **options: Any) -> Answer:
    return call("POST", f"/v1/sql/{query_id}/cancel", *headers or (WITH_KEY,), **options)


def test_a_running_statement_is_listed_until_it_ends() -> None:
    assert call("GET", ACTIVE, WITH_KEY).body == b"[]"
    assert call("GET", f"{ACTIVE}?format=csv", WITH_KEY).body == b"id,started,state,sql\n"

    statement = f"/* {'é😀' * 1000} */ {ENDLESS_ROWS}"
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


def test_a_key_sees_and_cancels_its_own_statements_only() -> None:
    with streaming() as (one, _), streaming(ENDLESS_ROWS, WITH_OTHER_KEY) as (other, _):
        query_id = one.headers["X-Query-Id"]
        refused = cancel(query_id, WITH_OTHER_KEY)
        unknown = cancel("0" * 32, WITH_OTHER_KEY)

        assert [row["id"] for row in active()] == [query_id]
        assert [row["id"] for row in active(WITH_OTHER_KEY)] == [other.headers["X-Query-Id"]]

    assert (refused.status, refused.code) == (404, "query_not_found")
    assert refused.without_request_id() == unknown.without_request_id()
    assert refused.headers.keys() == unknown.headers.keys()
    assert cancel(query_id).code == "query_not_found"


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


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff{", b"x" * 200_000])
def test_a_cancel_reads_no_body(body: bytes) -> None:
    for content_type in ("application/json", ""):
        assert cancel("0" * 32, WITH_KEY, ("Content-Type", content_type), body=body).code == "query_not_found"


@pytest.mark.parametrize("query_id", ["x", "%00", "%0d%0aSet-Cookie:a=b", "..", "%ff", "active", "x" * 5000, "a%20b"])
def test_odd_ids_are_not_found(query_id: str) -> None:
    answer = cancel(query_id)

    assert (answer.status, answer.code) == (404, "query_not_found")
    assert "X-Query-Id" not in answer.headers


def test_with_authentication_off_anyone_sees_all_statements(config: RuntimeConfig) -> None:
    runtimeconf.state.set_config(off := replace(config, auth=AuthConfig()))
    authkeys.state.set_access(build(off))

    with streaming(ENDLESS_ROWS, ("X-API-Key", K1)) as (answer, _):
        (listed,) = call("GET", ACTIVE).json()
        assert listed["id"] == answer.headers["X-Query-Id"]
        assert call("POST", f"/v1/sql/{listed['id']}/cancel").status == 200
        assert call("POST", f"/v1/sql/{listed['id']}/cancel", ("Sec-Fetch-Site", "cross-site")).status == 403
