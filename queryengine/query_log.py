"""The end of each statement, over HTTP and Flight SQL: its log line, and the event for metrics and history."""

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import telemetry.state
from queryengine.engine import Query, QueryTimings
from telemetry.events import MAX_SQL_CHARACTERS, StatementEvent

Protocol = Literal["http", "flight-sql"]

_NO_TIMINGS = QueryTimings()


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """A statement from its arrival until its line is written to the *logger* of the package that received it."""

    logger: logging.Logger
    protocol: Protocol
    query: Query
    request_id: str
    began: float = field(default_factory=time.monotonic)

    def write(self, outcome: str, timings: QueryTimings | None) -> None:
        """
        Write the line and send the event, before the last bytes of the answer are sent.

        *outcome* is "ok" or a stable code; without *timings* the statement did not begin to run.
        """
        duration_s = time.monotonic() - self.began
        if telemetry.state.is_on():
            self._send(outcome, duration_s, timings or _NO_TIMINGS)
        fields: dict[str, Any] = {
            "query_id": self.query.query_id,
            "request_id": self.request_id,
            "protocol": self.protocol,
            "fingerprint": self.query.fingerprint,
            "key": self.query.key_name or None,
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

    def _send(self, outcome: str, duration_s: float, timings: QueryTimings) -> None:
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
            )
        )
