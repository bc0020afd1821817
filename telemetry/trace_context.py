"""
The trace that a request belongs to, as in the W3C recommendation Trace Context.

A header that does not follow the recommendation is treated as absent, never as an error.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

#: The header of HTTP and the metadata key of gRPC.
TRACEPARENT = "traceparent"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_INVALID_VERSION = "ff"
_ONLY_KNOWN_VERSION = "00"
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16
_SAMPLED = 0x01

#: Ids below this share of the largest one are sampled.
_IDS = 1 << 64


@dataclass(frozen=True, slots=True)
class Parent:
    """What a caller says about its own span."""

    trace_id: str
    span_id: str
    is_sampled: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """
    The trace of one request. `span_id` is that of the request's own span, and empty if the trace is not exported.

    All ids are lower-case hexadecimal digits: 32 for a trace, 16 for a span. `parent_id` is empty for a root.
    """

    trace_id: str
    span_id: str = ""
    parent_id: str = ""


def log_fields(trace: Trace | None) -> dict[str, str]:
    """Return the fields of *trace* for a log line; none without a trace."""
    return {} if trace is None else {"trace_id": trace.trace_id}


def trace_id(trace: Trace | None) -> str:
    """Return the id of *trace*; empty without one."""
    return "" if trace is None else trace.trace_id


def parse(values: Sequence[str]) -> Parent | None:
    """Return what the one value of `traceparent` says; None if there is no value, more than one, or a malformed one."""
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
    """Return the trace that these values of `traceparent` name, for the log alone."""
    parent = parse(values)
    return None if parent is None else Trace(parent.trace_id)


def new_trace_id() -> str:
    """Return a random trace id."""
    return os.urandom(16).hex()


def new_span_id() -> str:
    """Return a random span id."""
    return os.urandom(8).hex()


def is_sampled(trace_id: str, ratio: float) -> bool:
    """Return whether a root with this id is among the share *ratio* of traces, from 0 to 1, that is exported."""
    return int(trace_id[16:], 16) < round(ratio * _IDS)
