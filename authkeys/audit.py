"""One log line for each failed authentication. Nothing of what was presented is in it, nor the path as it was sent."""

from __future__ import annotations

import logging

from rest_framework.request import Request

logger = logging.getLogger(__name__)

MISSING = "missing_key"
UNKNOWN = "unknown_key"


def log_failure(request: Request, reason: str) -> None:
    """Write the line of a request that is about to be refused with 401."""
    match = request._request.resolver_match  # noqa: SLF001 (DRF has no public name for Django's request)
    logger.warning(
        "authentication failed",
        extra={
            "fields": {
                "peer": request.META.get("REMOTE_ADDR", ""),
                "method": request.method,
                "route": match.url_name if match else None,
                "status": 401,
                "reason": reason,
                "request_id": request.META.get("runtime.request_id", ""),
            }
        },
    )
