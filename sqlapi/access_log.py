"""The access log: one line per request. It names the route, never the path or query string as sent."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("sqlapi.access")


def log_request(fields: dict[str, Any]) -> None:
    """Log a request that the application answered."""
    logger.info("request", extra={"fields": fields})


def log_refused_request(*, peer: str, status: int, code: str, request_id: str) -> None:
    """Log a request that the HTTP server refused before the application saw it."""
    fields = {"peer": peer, "method": None, "route": None, "status": status, "code": code, "request_id": request_id}
    logger.info("request refused by the server", extra={"fields": fields})
