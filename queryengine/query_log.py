"""Records the end of each statement over HTTP and Flight SQL: a log line, and an event for metrics and history."""

import logging
import time
from typing import Any, Literal

from msgspec import Struct, field

import telemetry.state
from queryengine.engine import Query, QueryTimings
from telemetry import spans
from telemetry.events import MAX_SQL_CHARACTERS, NO_ERRORS, StatementEvent
from telemetry.trace_context import Trace, log_fields

Protocol = Literal["http", "flight-sql", "mcp"]

_NO_TIMINGS = QueryTimings()


class QueryRecord(Struct, frozen=True):
    """
    A statement from its arrival until its log line is written to the *logger* of the package that received it.

    If the statement takes *slow_s* seconds or longer, a second line is logged as a warning. The *trace* gets a span.
    """

    logger: logging.Logger
    protocol: Protocol
    query: Query
    request_id: str
    slow_s: float | None = None
    trace: Trace | None = None
    began: float = field(default_factory=time.monotonic)

    def write(self, outcome: str, timings: QueryTimings | None) -> None:
        """
        Write the log line, and send the event and the span, before the last bytes of the response are sent.

        Args:
            outcome: "ok" or a stable error code.
            timings: The statement's timings; None if it did not begin to run.
        """
        duration_s = time.monotonic() - self.began
        if telemetry.state.is_on():
            self._send_event(outcome, duration_s, timings or _NO_TIMINGS)
        fields: dict[str, Any] = {
            "query_id": self.query.query_id,
            "request_id": self.request_id,
            "protocol": self.protocol,
            "fingerprint": self.query.fingerprint,
            "key": self.query.key_name or None,
            **log_fields(self.trace),
            "outcome": outcome,
            "duration_ms": round(duration_s * 1000, 1),
        }
        if timings is not None:
            fields |= {"rows": timings.rows, "bytes": timings.bytes}
            for name in ("queued_ms", "parse_ms", "run_ms", "encode_ms"):
                fields[name] = round(getattr(timings, name), 1)
            if timings.cache:
                fields["cache"] = timings.cache
        self.logger.info("query", extra={"fields": fields})
        if self.slow_s is not None and duration_s >= self.slow_s:
            digest = (timings or _NO_TIMINGS).statement or None
            self.logger.warning("slow statement", extra={"fields": fields | {"statement": digest}})
        if self.trace is not None:
            self._send_span(self.trace, outcome, duration_s, timings)

    def _send_event(self, outcome: str, duration_s: float, timings: QueryTimings) -> None:
        query = self.query
        telemetry.state.send(
            StatementEvent(
                query.query_id,
                self.request_id,
                self.protocol,
                query.fingerprint,
                query.key_name,
                outcome,
                time.time() - duration_s,
                duration_s * 1000,
                timings.queued_ms,
                timings.parse_ms,
                timings.run_ms,
                timings.encode_ms,
                timings.rows,
                timings.bytes,
                timings.cache,
                timings.statement,
                query.sql[:MAX_SQL_CHARACTERS] if telemetry.state.keeps_sql() else None,
                self.query.trace_id,
            )
        )

    def _send_span(self, trace: Trace, outcome: str, duration_s: float, timings: QueryTimings | None) -> None:
        attributes: dict[str, spans.Value | None] = {
            "querykeep.query_id": self.query.query_id,
            "querykeep.protocol": self.protocol,
            "querykeep.key": self.query.key_name or None,
        }
        phases: list[tuple[str, float]] = []
        if timings is not None:
            attributes |= {
                "querykeep.statement": timings.statement or None,
                "querykeep.rows": timings.rows,
                "querykeep.bytes": timings.bytes,
                "querykeep.cache": timings.cache or None,
            }
            phases = [
                ("queue", timings.queued_ms),
                ("gate", timings.parse_ms),
                ("run", timings.run_ms),
                ("encode", timings.encode_ms),
            ]
            phases.append(("send", duration_s * 1000 - sum(spent for _, spent in phases)))
        error = "" if outcome in NO_ERRORS else outcome
        spans.send(trace, "statement", duration_s, attributes, phases=phases, error=error)
