"""
The trace of a request, as defined in the W3C recommendation Trace Context.

A header that does not follow the recommendation is treated as absent, never as an error.
"""

import os
import re
from collections.abc import Sequence

from msgspec import Struct

#: The HTTP header and the gRPC metadata key.
TRACEPARENT = "traceparent"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_INVALID_VERSION = "ff"
_ONLY_KNOWN_VERSION = "00"
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16
_SAMPLED = 0x01

#: The number of values of an id's lower half. A trace is sampled if that half is below the ratio times this number.
_IDS = 1 << 64


class Parent(Struct, frozen=True):
    """The caller's span."""

    trace_id: str
    span_id: str
    is_sampled: bool


class Trace(Struct, frozen=True):
    """
    The trace of one request. `span_id` is the id of the request's own span, empty if the trace is not exported.

    Ids are lower-case hexadecimal digits: 32 for a trace, 16 for a span. `parent_id` is empty for a root span.
    """

    trace_id: str
    span_id: str = ""
    parent_id: str = ""


def log_fields(trace: Trace | None) -> dict[str, str]:
    """Return the fields of *trace* for a log line; none without a trace."""
    return {} if trace is None else {"trace_id": trace.trace_id}


def trace_id(trace: Trace | None) -> str:
    """Return the id of *trace*; empty without a trace."""
    return "" if trace is None else trace.trace_id


def parse(values: Sequence[str]) -> Parent | None:
    """Parse the value of `traceparent`. Return None if there is no value, more than one, or a malformed one."""
    if len(values) != 1:
        return None
    match = _TRACEPARENT.fullmatch(values[0])
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == _INVALID_VERSION or (version == _ONLY_KNOWN_VERSION and more is not None):
        return None
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return Parent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def trace_of_caller(values: Sequence[str]) -> Trace | None:
    """Return the trace in these values of `traceparent`, for logging only."""
    parent = parse(values)
    return None if parent is None else Trace(parent.trace_id)


def new_trace_id() -> str:
    """Return a random trace id."""
    return os.urandom(16).hex()


def new_span_id() -> str:
    """Return a random span id."""
    return os.urandom(8).hex()


def is_sampled(trace_id: str, ratio: float) -> bool:
    """Return whether a root trace with this id is in the exported share *ratio* (0 to 1) of traces."""
    return int(trace_id[16:], 16) < round(ratio * _IDS)
