"""One log line for each failed authentication. It holds neither the credential nor the path as sent."""

from __future__ import annotations

import logging

from authkeys.credentials import Reason

logger = logging.getLogger(__name__)


def log_failure(  # noqa: PLR0913 (one for each field of the line)
    reason: Reason, *, peer: str, method: str | None, route: str | None, status: int | str, request_id: str
) -> None:
    """
    Log a request that is about to be refused.

    Args:
        reason: Why it is refused.
        peer: The caller's address.
        method: The HTTP method or the known RPC; None for an unknown one.
        route: The name of the route; None for an unknown one.
        status: The HTTP or gRPC status of the answer.
        request_id: The request id of the answer.
    """
    fields = {
        "peer": peer,
        "method": method,
        "route": route,
        "status": status,
        "reason": reason.value,
        "request_id": request_id,
    }
    logger.warning("authentication failed", extra={"fields": fields})
