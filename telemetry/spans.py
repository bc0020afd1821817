"""
Sends spans from any process to the exporter through one pipe.

A process begins the trace of each request and sends a span when the request, a statement or a refresh ends. Sending
never blocks and never raises. If the pipe has no room for a span, the span is dropped and counted.
`telemetry.span_exporter` reads the pipe. Only the exporter process imports OpenTelemetry and knows the collector's
headers.
"""

import os
import select
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec.json
from msgspec import Struct

from telemetry.trace_context import Trace, is_sampled, new_span_id, new_trace_id, parse, trace_of_caller

#: OpenTelemetry attribute values.
Value = str | int | float | bool
#: A "server" span represents a request, a "root" span a refresh, and an "internal" span is a child of either.
SpanKind = Literal["server", "root", "internal"]

#: The phases of a span: name and milliseconds, in order.
Phases = Sequence[tuple[str, float]]


class Span(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A span as it is sent through the pipe. `dropped` is the number that the sender has lost since its last span."""

    trace_id: str
    span_id: str
    parent_id: str
    kind: SpanKind
    name: str
    end_ns: int
    duration_s: float
    attributes: dict[str, Value]
    phases: list[tuple[str, float]]
    error: str
    dropped: int


class _Connection(Struct):
    descriptor: int
    ratio: float
    dropped: int = 0


_connection: _Connection | None = None


def connect(descriptor: int | None, ratio: float = 1.0) -> None:
    """
    Send the spans of this process to the pipe *descriptor*. None means that nothing is exported.

    *ratio* is the fraction of traces without a parent that are exported, from 0 to 1.
    """
    global _connection  # noqa: PLW0603 (a process has one exporter)
    if descriptor is not None:
        os.set_blocking(descriptor, False)
    _connection = None if descriptor is None else _Connection(descriptor, ratio)


def sample(ratio: float) -> None:
    """From now on, export the fraction *ratio* of traces without a parent."""
    if _connection is not None:
        _connection.ratio = ratio


def begin(traceparents: Sequence[str]) -> Trace | None:
    """
    Return the trace of a request with these values of `traceparent`.

    If tracing is not configured, the result is the caller's trace, for the log, or None if the caller has none.
    """
    connection = _connection
    if connection is None:
        return trace_of_caller(traceparents)
    parent = parse(traceparents)
    if parent is not None:
        return Trace(parent.trace_id, new_span_id() if parent.is_sampled else "", parent.span_id)
    trace_id = new_trace_id()
    return Trace(trace_id, new_span_id() if is_sampled(trace_id, connection.ratio) else "")


def send(  # noqa: PLR0913 (keywords)
    trace: Trace | None,
    name: str,
    duration_s: float,
    attributes: Mapping[str, Value | None],
    *,
    kind: SpanKind = "internal",
    phases: Phases = (),
    error: str = "",
) -> None:
    """
    Send a span that ends now, if *trace* is exported.

    Args:
        trace: The trace.
        name: The name of the span, one of few.
        duration_s: The duration in seconds.
        attributes: The attributes, which contain no SQL or keys. Attributes that are None are omitted.
        kind: The kind of the span.
        phases: Children of the span, one after the other from its start. Phases without time are omitted.
        error: The stable code of the error that ended the span; empty after success.
    """
    connection = _connection
    if connection is None or trace is None or not trace.span_id:
        return
    is_own = kind != "internal"
    span = Span(
        trace.trace_id,
        trace.span_id if is_own else new_span_id(),
        trace.parent_id if is_own else trace.span_id,
        kind,
        name,
        time.time_ns(),
        duration_s,
        {key: value for key, value in attributes.items() if value is not None},
        [phase for phase in phases if phase[1] > 0],
        error,
        connection.dropped,
    )
    try:
        line = msgspec.json.encode(span)
        # A write of at most PIPE_BUF bytes is atomic: all or nothing, and never mixed with another process's write.
        if len(line) < select.PIPE_BUF:
            os.write(connection.descriptor, line + b"\n")
            connection.dropped = 0
            return
    except (OSError, UnicodeEncodeError):  # An engine worker may have sent part of a character.
        pass
    connection.dropped += 1
