"""The audit line of an HTTP request."""

from __future__ import annotations

from rest_framework.request import Request

from authkeys import audit
from authkeys.credentials import Reason


def log_failure(request: Request, reason: Reason) -> None:
    """Log a request that is about to be refused with 401."""
    match = request._request.resolver_match  # noqa: SLF001 (DRF has no public name for Django's request)
    audit.log_failure(
        reason,
        peer=request.META.get("REMOTE_ADDR", ""),
        method=request.method,
        route=match.url_name if match else None,
        status=401,
        request_id=request.META.get("runtime.request_id", ""),
    )
