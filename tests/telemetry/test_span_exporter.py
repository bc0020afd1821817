"""Spans go through the pipe to the collector, and whatever the collector does, nobody waits for it."""

import gzip
import json
import logging
import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from runtimeconf.model import TracesConfig
from telemetry import span_exporter, spans
from telemetry.span_exporter import SpanExporter
from telemetry.trace_context import Trace
from tests.system.harness import PATIENCE_S, free_port, run_program, wait_for
from tests.telemetry.collectors import Collector, attributes, collecting

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
REJECTING = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=1)).SerializeToString()
UNSAMPLED = f"{PARENT[:-2]}00"
DOWN = "the collector refuses traces"
UP = "the collector accepts traces again"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "PAUSE_S", 0.02)


@pytest.fixture
def pipe() -> Iterator[int]:
    """The end of a pipe from which spans are read; this process sends to the other."""
    reader, writer = os.pipe()
    spans.connect(writer)
    yield reader
    spans.connect(None)
    os.close(reader)
    os.close(writer)


@contextmanager
def exporting(reader: int, endpoint: str, **options: Any) -> Iterator[SpanExporter]:
    config = TracesConfig(endpoint=endpoint, **{"timeout_s": PATIENCE_S, **options})
    exporter = SpanExporter(config, reader, service="test", version="1.2")
    exporter.start()
    try:
        yield exporter
    finally:
        exporter.stop()
        exporter._queue.clear()
        exporter._exporting.join(PATIENCE_S)  # What it logs must not be taken for that of the next test.


def send(name: str = "request", **more: Any) -> bool:
    """Send the span of a request; return False, for conditions that go on to look at something else."""
    spans.send(spans.begin([PARENT]), name, 0.05, {"rows": 3, "none": None}, kind="server", **more)
    return False


def records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return our records. Those of the SDK do not propagate, but the fixture has them."""
    return [record for record in caplog.records if record.name == "telemetry.span_exporter"]


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in records(caplog)]


def test_a_request_with_its_statement_and_its_phases(pipe: int) -> None:
    trace = spans.begin([PARENT])
    spans.send(trace, "statement", 0.05, {}, phases=[("queue", 10.0), ("gate", 0.0), ("run", 30.0)], error="timeout")
    spans.send(trace, "POST /v1/sql", 0.06, {"http.route": "/v1/sql", "absent": None}, kind="server")

    with collecting() as collector, exporting(pipe, collector.url, headers={"x-token": "s"}):
        wait_for(lambda: collector.named("POST /v1/sql"), "the span")
    by_name = {span.name: span for span in collector.spans}

    assert list(by_name) == ["statement", "queue", "run", "POST /v1/sql"]
    request, statement = by_name["POST /v1/sql"], by_name["statement"]
    assert {span.trace_id.hex() for span in collector.spans} == {PARENT[3:35]}
    assert request.parent_span_id.hex() == PARENT[36:52]
    assert (statement.parent_span_id, by_name["run"].parent_span_id) == (request.span_id, statement.span_id)
    assert attributes(request) == {"http.route": "/v1/sql"}
    assert attributes(statement) == {"error.type": "timeout"}
    assert (request.kind, statement.kind) == (2, 1)
    assert (statement.status.code, request.status.code) == (2, 0)
    assert statement.end_time_unix_nano - statement.start_time_unix_nano == 50_000_000
    queue, run = by_name["queue"], by_name["run"]
    assert queue.start_time_unix_nano == statement.start_time_unix_nano
    assert (queue.end_time_unix_nano, run.end_time_unix_nano) == (
        run.start_time_unix_nano, statement.start_time_unix_nano + 40_000_000,
    )  # fmt: skip
    assert collector.services >= {"test", "1.2"}
    assert {(one["path"], one["x-token"], one["content-encoding"]) for one in collector.requests} == {
        ("/v1/traces", "s", "gzip")
    }


def test_the_caller_decides_on_its_traces_and_the_share_on_others(pipe: int) -> None:
    begun = [spans.begin(values) for values in ([PARENT], [UNSAMPLED], ["nonsense"], [])]
    spans.sample(0.0)
    begun.append(spans.begin([]))

    assert [bool(trace and trace.span_id) for trace in begun] == [True, False, True, True, False]
    spans.connect(None)
    assert spans.begin([PARENT]) == Trace(PARENT[3:35])
    assert spans.begin([]) is None


def test_sending_neither_waits_nor_fails_and_counts_what_it_drops(pipe: int) -> None:
    while select.select([], [spans._connection.descriptor], [], 0)[1]:  # type: ignore[union-attr]
        send("x" * 3000)
    send("y" * 3000)
    send("z" * 5000)
    assert spans._connection is not None
    dropped = spans._connection.dropped
    assert dropped >= 2

    os.read(pipe, 1024 * 1024)
    send("last")

    *_, line = os.read(pipe, 1024 * 1024).splitlines()
    assert (json.loads(line)[4], json.loads(line)[-1]) == ("last", dropped)
    assert spans._connection.dropped == 0


def failing(collector: Collector, kind: str) -> str:
    """Make *collector* fail, and return the reason in the log."""
    if kind == "silent":
        collector.delay_s = 1.0
        return "no response in time"
    if kind == "rejects":
        collector.body = REJECTING
        return "it rejects spans"
    collector.status = int(kind)
    if kind == "307":
        collector.location = "http://127.0.0.1:1/"
        return "it redirects"
    return f"status {kind}"


@pytest.mark.parametrize("kind", ["silent", "500", "401", "307", "304", "rejects"])
def test_a_collector_that_fails_is_told_once_and_once_when_it_recovers(
    pipe: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with collecting() as collector:
        reason = failing(collector, kind)
        with exporting(pipe, collector.url, timeout_s=0.3 if kind == "silent" else PATIENCE_S):
            wait_for(lambda: send() or len(collector.requests) > 2, "three requests")
            wait_for(lambda: DOWN in messages(caplog), "the warning")
            collector.status, collector.delay_s, collector.body = 200, 0.0, b""
            wait_for(lambda: send() or UP in messages(caplog), "the recovery")

    down, up = records(caplog)
    assert (down.getMessage(), up.getMessage()) == (DOWN, UP)
    assert vars(down)["fields"] == {"endpoint": collector.url, "error": reason}
    assert vars(up)["fields"]["dropped"] >= 1
    assert collector.spans


@pytest.mark.parametrize(
    ("status", "body", "pause_s"),
    [
        pytest.param(200, b"x", 0.1, id="200-slow"),
        pytest.param(500, b"x" * 65536, 0.0, id="500-fast"),
        pytest.param(200, b"x" * 65536, 0.0, id="200-fast", marks=pytest.mark.exhaustive),
        pytest.param(500, b"x", 0.1, id="500-slow", marks=pytest.mark.exhaustive),
    ],
)
def test_an_answer_without_an_end_is_left_unread(
    pipe: int, status: int, body: bytes, pause_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting() as collector, exporting(pipe, collector.url, timeout_s=3.0):
        collector.status, collector.body, collector.is_endless, collector.pause_s = status, body, True, pause_s
        wait_for(lambda: send() or len(collector.requests) > 1, "two requests")
        collector.is_endless = False

    assert messages(caplog) == ([] if status == 200 else [DOWN])


def test_a_collector_that_keeps_failing_and_recovering_is_told_once_in_a_while(
    pipe: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with collecting() as collector, exporting(pipe, collector.url):

        def fails_and_recovers() -> None:
            taken, collector.status = len(collector.requests), 500
            wait_for(lambda: send() or len(collector.requests) > taken + 1, "a failure")
            taken, collector.status = len(collector.spans), 200
            wait_for(lambda: send() or len(collector.spans) > taken + 1, "a success")

        for _ in range(5):
            fails_and_recovers()
        wait_for(lambda: UP in messages(caplog), "the recovery")
        assert messages(caplog) == [DOWN, UP]


@pytest.mark.parametrize("timeout_s", [3600.0, 0.0])
def test_a_clock_that_is_set_changes_no_timeout(timeout_s: float) -> None:
    with collecting() as collector:
        collector.delay_s = 2.0
        # The SDK asks for such a time-out if the time of day was set meanwhile.
        session = span_exporter._Session(0.2)
        with pytest.raises(requests.Timeout):
            session.request("POST", collector.url, data=gzip.compress(b""), timeout=timeout_s)
        collector.delay_s = 0.0


def test_a_line_that_is_no_span_does_not_end_the_export(pipe: int, caplog: pytest.LogCaptureFixture) -> None:
    assert spans._connection is not None
    os.write(spans._connection.descriptor, b"no span\n")

    with collecting() as collector, exporting(pipe, collector.url):
        wait_for(lambda: DOWN in messages(caplog), "the warning")
        wait_for(lambda: send() or collector.spans, "a span")


def test_a_collector_that_is_down_is_told_once_and_another_one_is_used(
    pipe: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with exporting(
        pipe, f"http://127.0.0.1:{free_port()}", timeout_s=0.3
    ) as exporter:  # the SDK tries again until then
        wait_for(lambda: send() or DOWN in messages(caplog), "the warning")
        assert records(caplog)[0].fields["error"] == "cannot be reached"  # type: ignore[attr-defined]
        with collecting() as collector:
            exporter.configure(TracesConfig(endpoint=collector.url))
            wait_for(lambda: send() or UP in messages(caplog), "the recovery")

    assert messages(caplog) == [DOWN, UP]


@pytest.mark.exhaustive
def test_a_collector_that_is_too_slow_is_told_once(
    pipe: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(span_exporter, "MAX_QUEUED", 20)
    monkeypatch.setattr(span_exporter, "MAX_BATCH", 5)

    with collecting() as collector, exporting(pipe, collector.url):
        collector.delay_s = 0.2
        wait_for(lambda: send() or messages(caplog), "the warning")
        assert records(caplog)[0].fields["error"] == "it is too slow"  # type: ignore[attr-defined]
        collector.delay_s = 0.0
        wait_for(lambda: UP in messages(caplog), "the recovery")

    assert messages(caplog) == [DOWN, UP]


@pytest.mark.parametrize("delay_s", [0.0, PATIENCE_S])
@pytest.mark.exhaustive
def test_a_stop_sends_what_is_left_but_does_not_wait_long(
    pipe: int, delay_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_exporter, "STOP_S", 0.5 if delay_s else PATIENCE_S)
    with collecting() as collector, exporting(pipe, collector.url) as exporter:
        collector.delay_s = delay_s
        for _ in range(10):
            send()
        began = time.monotonic()
        exporter.stop()
        took_s = time.monotonic() - began
        assert len(collector.spans) == (0 if delay_s else 10)
        collector.hurry.set()

    assert 0.5 <= took_s < delay_s or not delay_s


def test_what_is_sent_after_an_empty_read_is_exported_by_a_stop(pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "STOP_S", PATIENCE_S)
    is_empty, go_on, read = threading.Event(), threading.Event(), os.read

    def slow(descriptor: int, size: int) -> bytes:
        try:
            return read(descriptor, size)
        except BlockingIOError:
            is_empty.set()
            go_on.wait(PATIENCE_S)
            raise

    monkeypatch.setattr("telemetry.span_exporter.os.read", slow)
    with collecting() as collector, exporting(pipe, collector.url) as exporter:
        is_empty.wait(PATIENCE_S)
        send()
        exporter._stopping.set()
        go_on.set()
        exporter.stop()
        assert len(collector.spans) == 1


@pytest.mark.exhaustive
def test_only_the_exporter_imports_opentelemetry(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "from supervisor import tracing\n"
        "import supervisor.web, flightapi.service, datasources.refresh.refresher\n"
        "import runtimeconf.schema\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('opentelemetry', 'requests')])\n"
    )

    done = run_program(str(tmp_path / "program.py"), PYTHONPATH=".", DJANGO_SETTINGS_MODULE="runtime_site.settings")

    assert done.stdout == "[]\n", done.stderr


@pytest.mark.exhaustive
def test_libraries_that_are_not_all_there_are_named_with_what_installs_them(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "from supervisor.tracing import exporter_of\n"
        "from runtimeconf.model import RuntimeConfig, TracesConfig\n"
        "traces = TracesConfig(endpoint='http://127.0.0.1:1')\n"
        "try:\n"
        "    exporter_of(traces, RuntimeConfig(file=Path('a'), state_dir=Path('b'), traces=traces), 0)\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )

    done = run_program(str(tmp_path / "program.py"), PYTHONPATH=".", DJANGO_SETTINGS_MODULE="runtime_site.settings")

    assert "opentelemetry.sdk" in done.stdout, done.stderr
    assert "python -m pip install 'opentelemetry-exporter-otlp-proto-http" in done.stdout


def test_an_unusable_file_of_root_certificates_is_named(
    pipe: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")

    with exporting(pipe, "https://127.0.0.1:1"):
        wait_for(lambda: send() or DOWN in messages(caplog), "the warning")

    fields: Any = records(caplog)[0].__dict__["fields"]
    assert fields["error"] == "the root certificate file in SSL_CERT_FILE cannot be used"
