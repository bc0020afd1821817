"""Events as the tests need them."""

from typing import Any

from msgspec.structs import replace

from telemetry.events import StatementEvent

#: 2026-01-01T00:00:00Z
START = 1_767_225_600.0


def statement(number: int = 0, **fields: Any) -> StatementEvent:
    """Return the event of a statement that began *number* seconds after `START`."""
    event = StatementEvent(
        query_id=f"{number:032x}",
        request_id=f"request-{number}",
        protocol="http",
        fingerprint="aa",
        key="analyst",
        code="ok",
        started=START + number,
        total_ms=15.0,
        queued_ms=1.0,
        parse_ms=2.0,
        run_ms=8.0,
        encode_ms=4.0,
        rows=3,
        bytes=30,
        cache="",
        statement="d" * 16,
    )
    return replace(event, **fields)
