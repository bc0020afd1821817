"""`traceparent`, as the W3C recommendation and the SDK of OpenTelemetry read it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from telemetry.trace_context import Parent, is_sampled, new_span_id, new_trace_id, parse, trace_of_caller

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("value", "flag"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"01-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what the future may bring", True),
    ],
)
def test_a_well_formed_value(value: str, flag: bool) -> None:
    assert parse([value]) == Parent(TRACE, SPAN, flag)


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01-",
        f"cc-{TRACE}-{SPAN}-01more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}-٠١",  # noqa: RUF001
    ],
)
def test_a_malformed_value_counts_as_absent(value: str) -> None:
    assert parse([value]) is None
    assert trace_of_caller([value]) is None


def test_none_and_more_than_one_count_as_absent() -> None:
    assert parse([]) is None
    assert parse([f"00-{TRACE}-{SPAN}-01"] * 2) is None


_PIECE = st.one_of(
    st.sampled_from(["00", "01", "ff", "cc", TRACE, SPAN, "0" * 32, "0" * 16, "-", "--", "0", "A", "\n", ","]),
    st.text(max_size=40),
)


@given(st.lists(_PIECE, max_size=9).map("".join) | st.lists(_PIECE, min_size=3, max_size=6).map("-".join))
def test_no_text_is_an_error_and_what_is_taken_has_the_form(value: str) -> None:
    parent = parse([value])

    if parent is not None:
        assert value.split("-")[1:3] == [parent.trace_id, parent.span_id]
        assert len(parent.trace_id) == 32
        assert len(parent.span_id) == 16
        assert int(parent.trace_id, 16)
        assert int(parent.span_id, 16)


@given(
    st.sampled_from(["00", "01", "cc", "fe"]),
    st.text("0123456789abcdef", min_size=32, max_size=32),
    st.text("0123456789abcdef", min_size=16, max_size=16),
    st.integers(0, 255),
)
def test_it_reads_as_the_sdk_does(version: str, trace_id: str, span_id: str, flags: int) -> None:
    value = f"{version}-{trace_id}-{span_id}-{flags:02x}"
    theirs = get_current_span(TraceContextTextMapPropagator().extract({"traceparent": value})).get_span_context()

    ours = parse([value])

    assert (ours is not None) == theirs.is_valid
    if ours is not None:
        assert (int(ours.trace_id, 16), int(ours.span_id, 16)) == (theirs.trace_id, theirs.span_id)
        assert ours.is_sampled == theirs.trace_flags.sampled


@given(st.integers(1, (1 << 128) - 1), st.floats(0, 1))
def test_roots_are_sampled_as_by_the_sdk(trace_id: int, ratio: float) -> None:
    theirs = TraceIdRatioBased(ratio).should_sample(None, trace_id, "name").decision

    assert is_sampled(f"{trace_id:032x}", ratio) == (theirs is Decision.RECORD_AND_SAMPLE)


def test_new_ids_have_the_form() -> None:
    assert parse([f"00-{new_trace_id()}-{new_span_id()}-01"]) is not None
    assert all(is_sampled(new_trace_id(), 1.0) for _ in range(100))
    assert not any(is_sampled(new_trace_id(), 0.0) for _ in range(100))
