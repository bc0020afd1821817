"""From the engine to the client: small, streamed and truncated answers, and clients that disconnect."""

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import queryengine.state
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import QueryConfig, RuntimeConfig
from sqlapi.statements import READ_AHEAD_BYTES
from tests.datasources.support import wait_for
from tests.sqlapi.harness import WITH_KEY, begin, call, environ_of, logged, sql

pytestmark = pytest.mark.usefixtures("runtime")

PATIENCE_S = 60.0
CSV = ("Accept", "text/csv")

#: Runs for minutes, and can be interrupted.
ENDLESS = "SELECT count(*) AS n FROM range(1000000000000) a"
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


def hold_open(statement: str) -> Any:
    """Begin to read a streamed answer, and keep its execution slot."""
    _, pieces = begin(environ_of("POST", "/v1/sql", [WITH_KEY], statement.encode()))
    next(iter(pieces))
    return pieces


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
        streaming = hold_open("SELECT * FROM range(10000000000)")
        ender = threading.Thread(target=end_when_it_waits)
        ender.start()
        with pytest.raises(ServerEndsError):
            sql("SELECT 1 AS a")
        ender.join()
        streaming.close()

    outcomes = [line["outcome"] for line in logged(caplog, "sqlapi.queries")]
    assert outcomes == ["server_stopped", "client_closed_request"]


@pytest.mark.usefixtures("ending")
def test_an_answer_stopped_by_the_server_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    for ends_while_rows_are_made in (False, True):
        pieces = hold_open("SELECT * FROM range(10000000000)")
        with pytest.raises(ServerEndsError):
            end_and_close(pieces, ends_while_rows_are_made=ends_while_rows_are_made)

    assert [line["outcome"] for line in logged(caplog, "sqlapi.queries")] == ["server_stopped"] * 2


def end_and_close(pieces: Any, *, ends_while_rows_are_made: bool) -> None:
    """Act like a server that is stopped while it computes the answer, or while the client reads it."""
    try:
        if ends_while_rows_are_made:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            for _ in pieces:
                pass
        signal.raise_signal(signal.SIGALRM)
    finally:
        pieces.close()


def test_l17_a_disconnect_during_an_answer_releases_the_slot(
    config: RuntimeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(config.query.workers + 1):
        answer = sql("SELECT * FROM range(10000000000)", chunks=3)
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
