"""One log line for each failed authentication. Nothing of what was presented is in it, nor the path as it was sent."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

MISSING = "missing_key"
UNKNOWN = "unknown_key"


def log_failure(  # noqa: PLR0913 (one for each field of the line)
    reason: str, *, peer: str, method: str | None, route: str | None, status: int | str, request_id: str
) -> None:
    """
    Write the line of a request that is about to be refused.

    Args:
        reason: Why, as a stable word.
        peer: The caller's address.
        method: The HTTP method or the known RPC; None for an unknown one.
        route: The name of the route, None when there is none.
        status: The HTTP or gRPC status of the refusal.
        request_id: As the answer has it.
    """
    fields = {
        "peer": peer,
        "method": method,
        "route": route,
        "status": status,
        "reason": reason,
        "request_id": request_id,
    }
    logger.warning("authentication failed", extra={"fields": fields})
