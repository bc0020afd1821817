"""The log line of each statement, over HTTP and Flight SQL."""

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from queryengine.engine import Query, QueryTimings

Protocol = Literal["http", "flight-sql"]


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """A statement from its arrival until its line is written to the *logger* of the package that received it."""

    logger: logging.Logger
    protocol: Protocol
    query: Query
    request_id: str
    began: float = field(default_factory=time.monotonic)

    def write(self, outcome: str, timings: QueryTimings | None) -> None:
        """Write the line: *outcome* is "ok" or a stable code; without *timings* the statement did not begin to run."""
        fields: dict[str, Any] = {
            "query_id": self.query.query_id,
            "request_id": self.request_id,
            "protocol": self.protocol,
            "fingerprint": self.query.fingerprint,
            "key": self.query.key_name or None,
            "outcome": outcome,
            "duration_ms": round((time.monotonic() - self.began) * 1000, 1),
        }
        if timings is not None:
            fields |= {"rows": timings.rows, "bytes": timings.bytes}
            for name in ("queued_ms", "parse_ms", "run_ms", "encode_ms"):
                fields[name] = round(getattr(timings, name), 1)
            if timings.cache:
                fields["cache"] = timings.cache
        self.logger.info("query", extra={"fields": fields})
