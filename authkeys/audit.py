"""Logs and counts each failed authentication. The log line contains neither the credential nor the path as sent."""

import logging
from typing import TYPE_CHECKING

import telemetry.state
from authkeys.credentials import Reason
from telemetry.trace_context import Trace, log_fields

if TYPE_CHECKING:  # Flight SQL uses this module too, without REST framework.
    from rest_framework.request import Request

logger = logging.getLogger(__name__)


def log_failure(  # noqa: PLR0913 (one for each field of the line)
    reason: Reason,
    *,
    peer: str,
    method: str | None,
    route: str | None,
    status: int | str,
    request_id: str,
    trace: Trace | None = None,
) -> None:
    """
    Log a request that is about to be refused.

    Args:
        reason: Why the request is refused.
        peer: The caller's address.
        method: The HTTP method or the known RPC; None for an unknown one.
        route: The name of the route; None for an unknown one.
        status: The HTTP or gRPC status of the response.
        request_id: The request id in the response.
        trace: The trace of the request.
    """
    telemetry.state.count_failure(reason.value)
    fields = {
        "peer": peer,
        "method": method,
        "route": route,
        "status": status,
        "reason": reason.value,
        "request_id": request_id,
        **log_fields(trace),
    }
    logger.warning("authentication failed", extra={"fields": fields})


def log_http_failure(request: "Request", reason: Reason) -> None:
    """Log an HTTP request that is about to be refused with 401."""
    match = request._request.resolver_match  # noqa: SLF001 (DRF has no public name for Django's request)
    log_failure(
        reason,
        peer=request.META.get("REMOTE_ADDR", ""),
        method=request.method,
        route=match.url_name if match else None,
        status=401,
        request_id=request.META.get("runtime.request_id", ""),
        trace=request.META.get("runtime.trace"),
    )
