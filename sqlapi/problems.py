"""Error responses: problem documents (RFC 9457), and the handlers that send them for DRF and Django."""

import json
import logging
import sys
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated

from queryengine.ids import new_id
from sqlapi.error_table import CLIENT_CLOSED_REQUEST, HIDDEN_DETAIL, INTERNAL_CODE, Refusal, refusal_of
from telemetry.trace_context import log_fields

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"

#: The headers of every response.
COMMON_HEADERS: Mapping[str, str] = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

#: The WSGI environ keys of the request id and query id. The server may set the request id.
REQUEST_ID = "runtime.request_id"
QUERY_ID = "runtime.query_id"
#: The environ key of the request's trace, a `Trace` or None.
TRACE = "runtime.trace"


def title(status: int) -> str:
    """Return the reason phrase of *status*."""
    return "Client Closed Request" if status == CLIENT_CLOSED_REQUEST else HTTPStatus(status).phrase


def problem(refusal: Refusal, request_id: str = "") -> HttpResponse:
    """Return the response to the request *request_id*. An empty id is replaced by a new one."""
    request_id = request_id or new_id()
    document = {
        "type": "about:blank",
        "title": title(refusal.status),
        "status": refusal.status,
        "detail": refusal.detail,
        "code": refusal.code,
        "request_id": request_id,
    }
    headers = {"Content-Type": CONTENT_TYPE, **COMMON_HEADERS, "X-Request-Id": request_id, **refusal.headers}
    return HttpResponse(json.dumps(document), status=refusal.status, reason=title(refusal.status), headers=headers)


def as_http11(response: HttpResponse) -> bytes:
    """Return *response* as bytes for a server that then closes the connection."""
    response["Date"], response["Connection"] = formatdate(usegmt=True), "close"
    response["Content-Length"] = str(len(response.content))
    return f"HTTP/1.1 {response.status_code} {response.reason_phrase}\r\n".encode("ascii") + response.serialize()


def handle_view_exception(error: Exception, context: dict[str, Any]) -> HttpResponse:
    """
    Respond to an exception in a view, as DRF's `EXCEPTION_HANDLER`.

    Internal errors are logged with their traceback.
    """
    request: HttpRequest = context["request"]
    refusal = _unauthorized(error) if isinstance(error, NotAuthenticated | AuthenticationFailed) else refusal_of(error)
    if refusal.is_internal:
        _log_internal_error(request, error)
    return problem(refusal, request.META.get(REQUEST_ID, ""))


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 (Django passes it)
    """Respond to a request that Django itself refuses (`handler400`)."""
    detail = "The request is not well-formed."
    return problem(Refusal(status=400, code="malformed_request", detail=detail), request.META.get(REQUEST_ID, ""))


def server_error(request: HttpRequest) -> HttpResponse:
    """Respond to a failure outside the views (`handler500`). Django calls this while it handles the exception."""
    _log_internal_error(request, sys.exception())
    return problem(Refusal(status=500, code=INTERNAL_CODE, detail=HIDDEN_DETAIL), request.META.get(REQUEST_ID, ""))


def _unauthorized(error: NotAuthenticated | AuthenticationFailed) -> Refusal:
    # DRF sets `auth_header` to the challenge of the authentication class before it calls the handler.
    challenge = {"WWW-Authenticate": error.auth_header}  # type: ignore[union-attr]
    code = str(error.get_codes())
    return Refusal(status=401, code=code, detail=str(error.detail), headers=challenge)


def _log_internal_error(request: HttpRequest, error: BaseException | None) -> None:
    fields = {"request_id": request.META.get(REQUEST_ID, ""), **log_fields(request.META.get(TRACE))}
    logger.error("a request failed", exc_info=error, extra={"fields": fields})
