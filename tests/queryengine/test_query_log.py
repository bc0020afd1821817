"""The lines and the span of a statement."""

import json
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from queryengine.engine import Query, QueryTimings
from queryengine.query_log import QueryRecord
from telemetry import spans
from telemetry.trace_context import Trace

QUERY = Query(sql="SELECT 'canary'", query_id="q", key_name="reports", fingerprint="f")
TIMINGS = QueryTimings(queued_ms=5.0, parse_ms=1.0, run_ms=20.0, encode_ms=0.0, rows=3, bytes=40, statement="d1")
TRACE = Trace("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


@pytest.fixture
def pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    spans.connect(writer)
    yield reader
    spans.connect(None)
    os.close(reader)
    os.close(writer)


def record(slow_s: float | None = None, trace: Trace | None = None, *, took_s: float = 0.0) -> QueryRecord:
    began = time.monotonic() - took_s
    return QueryRecord(logging.getLogger("a.queries"), "http", QUERY, "r", slow_s, trace, began)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, dict[str, Any]]]:
    return [(one.levelname, one.getMessage(), one.fields) for one in caplog.records]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_a_statement_that_takes_long_has_a_second_line_with_its_digest(caplog: pytest.LogCaptureFixture) -> None:
    record(1.0, TRACE, took_s=1.0).write("ok", TIMINGS)

    (level, message, fields), slow = lines(caplog)
    assert (level, message) == ("INFO", "query")
    assert fields["trace_id"] == TRACE.trace_id
    assert fields["duration_ms"] >= 1000
    assert slow == ("WARNING", "slow statement", {**fields, "statement": "d1"})
    assert "canary" not in str(lines(caplog))


@pytest.mark.parametrize(("slow_s", "took_s", "count"), [(None, 9.0, 1), (1.0, 0.5, 1), (1.0, 2.0, 2)])
def test_others_have_one_line(slow_s: float, took_s: float, count: int, caplog: pytest.LogCaptureFixture) -> None:
    record(slow_s, took_s=took_s).write("timeout", None)

    assert len(caplog.records) == count
    assert all("trace_id" not in fields for _, _, fields in lines(caplog))
    assert count == 1 or lines(caplog)[1][2]["statement"] is None


def test_the_span_has_the_phases_and_neither_text_nor_key(pipe: int) -> None:
    record(None, TRACE, took_s=0.1).write("ok", TIMINGS)
    record(None, TRACE).write("query_timeout", None)
    record(None, Trace(TRACE.trace_id)).write("ok", TIMINGS)

    sent = [json.loads(line) for line in os.read(pipe, 65536).splitlines()]
    (trace_id, _, parent, kind, name, _, _, attributes, phases, error, _), failed = sent
    assert (trace_id, parent, kind, name, error) == (TRACE.trace_id, TRACE.span_id, "internal", "statement", "")
    assert attributes == {
        "querykeep.query_id": "q",
        "querykeep.protocol": "http",
        "querykeep.key": "reports",
        "querykeep.statement": "d1",
        "querykeep.rows": 3,
        "querykeep.bytes": 40,
    }
    assert [name for name, _ in phases] == ["queue", "gate", "run", "send"]
    assert sum(spent for _, spent in phases) == pytest.approx(100, abs=50)
    assert (failed[8], failed[9]) == ([], "query_timeout")
