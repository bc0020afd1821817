"""
Exports spans to an OpenTelemetry collector (OTLP over HTTP).

It imports the OpenTelemetry SDK and belongs in a process that serves no requests, or in threads of a single-process
runtime. One thread reads the pipe of `telemetry.spans`, another exports. While the collector does not accept spans, the
newest ones are kept up to a limit. The exporter logs once that the collector has failed, and once that it has
recovered.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec.json
import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from runtimeconf.model import TracesConfig
from telemetry.spans import Span
from telemetry.trace_context import new_span_id

logger = logging.getLogger(__name__)

#: The maximum number of spans (with phases) waiting for export. Beyond that, the oldest are dropped.
MAX_QUEUED = 10_000
#: The maximum number of spans (with phases) in one request to the collector.
MAX_BATCH = 256
#: Seconds between two requests, so that a batch can fill up, and after a failed request.
PAUSE_S = 0.5
#: Seconds that a stop waits for the final batches.
STOP_S = 2.0

#: Seconds after a recovery within which another failure of the collector is not logged again.
QUIET_S = 60.0

#: The maximum bytes read of a collector's response.
_MAX_ANSWER_BYTES = 64 * 1024
_READ_BYTES = 1024 * 1024
#: Seconds between two reads of the pipe.
_POLL_S = 0.05
_KINDS = {"server": SpanKind.SERVER, "root": SpanKind.INTERNAL, "internal": SpanKind.INTERNAL}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_decoder = msgspec.json.Decoder(Span)

# This module logs once what the SDK would log for each attempt.
logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
logging.getLogger("opentelemetry").propagate = False


class _Session(requests.Session):
    """
    A session that does not follow redirects, which would forward the headers, and ignores `.netrc` and proxies.

    It reads only the part of a response that arrives within the timeout.
    """

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s
        self.trust_env = False
        self.headers["Accept-Encoding"] = "identity"
        #: A short description of how the last request failed.
        self.fault = ""

    def request(self, *args: Any, **options: Any) -> requests.Response:
        self.fault = "cannot be reached"
        # The SDK computes its timeout from the time of day, which may be changed while it waits.
        options["timeout"] = min(max(options["timeout"], 0.001), self._timeout_s)
        until = time.monotonic() + options["timeout"]
        try:
            response = super().request(*args, **{**options, "allow_redirects": False, "stream": True})
        except requests.Timeout:
            self.fault = "no response in time"
            raise
        except requests.exceptions.SSLError:
            self.fault = "the TLS connection failed"
            raise
        except OSError as error:
            if not isinstance(error, requests.RequestException):  # how requests reports a missing file
                self.fault = "the root certificate file in SSL_CERT_FILE cannot be used"
            raise
        with response:
            self.fault = "it redirects" if response.is_redirect else f"status {response.status_code}"
            if response.ok and _rejected(response, until):
                self.fault = "it rejects spans"
                response.status_code = 400
        if 300 <= response.status_code < 400:  # The SDK treats a redirect as success.
            response.status_code = 400
        return response


def _rejected(response: requests.Response, until: float) -> int:
    """Return the number of rejected spans, as far as the collector's response reports it before the time *until*."""
    body = bytearray()
    with suppress(requests.RequestException, DecodeError):
        for byte in response.iter_content(1):  # Reading more at once could take forever.
            body += byte
            if len(body) > _MAX_ANSWER_BYTES or time.monotonic() > until:
                return 0
        return int(ExportTraceServiceResponse.FromString(bytes(body)).partial_success.rejected_spans)
    return 0


class SpanExporter:
    """
    Reads spans from the pipe *reader* and exports them according to *config*, from `start` until `stop`.

    Args:
        config: The collector, which `configure` may replace.
        reader: The descriptor of the pipe, which stays open.
        service: The name of the service in each trace.
        version: The version of the runtime.
    """

    def __init__(self, config: TracesConfig, reader: int, *, service: str, version: str) -> None:
        os.set_blocking(reader, False)
        self._reader = reader
        self._resource = Resource({"service.name": service, "service.version": version})
        self._scope = InstrumentationScope("querykeep", version)
        self._queue: deque[bytes] = deque()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._dropped = 0
        self._fault = ""  # the last state that was logged
        self.configure(config)
        self._exporting = threading.Thread(target=self._export, name="spans-export", daemon=True)
        self._reading = threading.Thread(target=self._read, name="spans-read", daemon=True)

    def configure(self, config: TracesConfig) -> None:
        """Export to this collector from the next batch on."""
        session = _Session(config.timeout_s)
        self._quiet_until = 0.0
        self._endpoint = config.endpoint
        self._target = (
            session,
            OTLPSpanExporter(
                endpoint=f"{config.endpoint}/v1/traces",
                certificate_file=os.environ.get("SSL_CERT_FILE"),
                headers=dict(config.headers),
                timeout=config.timeout_s,
                compression=Compression.Gzip,
                session=session,
            ),
        )

    def start(self) -> None:
        """Start exporting."""
        self._reading.start()
        self._exporting.start()

    def stop(self) -> None:
        """Export the spans sent so far, for at most `STOP_S` seconds."""
        self._stopping.set()
        self._exporting.join(STOP_S)

    def _read(self) -> None:
        rest = b""
        while True:
            # Asked before reading: what is sent after an empty read, and before the stop, is read once more.
            is_last = self._stopping.is_set()
            try:
                data = os.read(self._reader, _READ_BYTES)
            except BlockingIOError:
                if is_last:
                    return
                # Do not use select: it would wake this process for each span, and take CPU from the processes that send
                # spans.
                self._stopping.wait(_POLL_S)
                continue
            *lines, rest = (rest + data).split(b"\n")
            self._queue.extend(lines)
            excess = len(self._queue) - MAX_QUEUED
            for _ in range(excess):
                with suppress(IndexError):
                    self._queue.popleft()
            if excess > 0:
                self._tell("it is too slow", excess)

    def _export(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            while self._queue and self._sent() and not self._stopping.is_set():
                pass
        self._reading.join()
        while self._queue and self._sent():
            pass

    def _sent(self) -> bool:
        """Export a batch, and return whether the collector accepted it."""
        lines = 0
        batch: list[ReadableSpan] = []
        session, exporter = self._target
        try:
            with suppress(IndexError):  # The reader also drops lines.
                while lines < MAX_BATCH:
                    line = self._queue.popleft()
                    lines += 1
                    batch.extend(self._spans(line))
            is_sent = exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 (after any error of a library, the next batch may pass)
            session.fault, is_sent = session.fault or type(error).__name__, False
        if not is_sent:
            self._tell(session.fault, lines)
        elif len(self._queue) < MAX_QUEUED / 2:
            self._tell("")
        return is_sent

    def _tell(self, fault: str, dropped: int = 0) -> None:
        """Count *dropped* spans. Log if the collector has stopped accepting spans, or accepts them again."""
        with self._lock:
            self._dropped += dropped
            now = time.monotonic()
            if fault and not self._fault and now >= self._quiet_until:
                self._fault = fault
                fields = {"endpoint": self._endpoint, "error": fault}
                logger.warning("the collector refuses traces", extra={"fields": fields})
            elif self._fault and not fault:
                self._fault, self._quiet_until = "", now + QUIET_S
                logger.info("the collector accepts traces again", extra={"fields": {"dropped": self._dropped}})
                self._dropped = 0

    def _spans(self, line: bytes) -> Iterator[ReadableSpan]:
        span = _decoder.decode(line)
        self._dropped += span.dropped
        shared: dict[str, Any] = {"resource": self._resource, "instrumentation_scope": self._scope}
        context, begin_ns = _context(span.trace_id, span.span_id), span.end_ns - int(span.duration_s * 1e9)
        yield ReadableSpan(
            name=span.name,
            context=context,
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            attributes={**span.attributes, "error.type": span.error} if span.error else span.attributes,
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=begin_ns,
            end_time=span.end_ns,
            **shared,
        )
        for phase, milliseconds in span.phases:
            own = _context(span.trace_id, new_span_id())
            end_ns = min(span.end_ns, begin_ns + int(milliseconds * 1e6))
            yield ReadableSpan(name=phase, context=own, parent=context, start_time=begin_ns, end_time=end_ns, **shared)
            begin_ns = end_ns


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)
