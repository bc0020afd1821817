"""The log line of each statement, over HTTP and Flight SQL."""

from __future__ import annotations

import logging
import time
from typing import Any, Literal

from queryengine.engine import Query, QueryTimings

Protocol = Literal["http", "flight-sql"]


class QueryRecord:
    """
    A statement from its arrival until its line is written.

    Args:
        logger: The logger of the package that received the statement.
        protocol: The protocol of the request.
        query: The statement.
        request_id: The id of its request.
    """

    def __init__(self, logger: logging.Logger, protocol: Protocol, query: Query, request_id: str) -> None:
        self._logger = logger
        self._protocol = protocol
        self._query = query
        self._request_id = request_id
        self._began = time.monotonic()

    def write(self, outcome: str, timings: QueryTimings | None) -> None:
        """Write the line: *outcome* is "ok" or a stable code; without *timings* the statement did not begin to run."""
        fields: dict[str, Any] = {
            "query_id": self._query.query_id,
            "request_id": self._request_id,
            "protocol": self._protocol,
            "fingerprint": self._query.fingerprint,
            "outcome": outcome,
            "duration_ms": round((time.monotonic() - self._began) * 1000, 1),
        }
        if timings is not None:
            fields |= {
                "rows": timings.rows,
                "bytes": timings.bytes,
                "queued_ms": round(timings.queued_ms, 1),
                "parse_ms": round(timings.parse_ms, 1),
                "run_ms": round(timings.run_ms, 1),
                "encode_ms": round(timings.encode_ms, 1),
            }
            if timings.cache:
                fields["cache"] = timings.cache
        self._logger.info("query", extra={"fields": fields})
