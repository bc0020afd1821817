"""Turns exceptions into responses, in DRF's views and in Django itself."""

import logging
import sys
from typing import Any

from django.http import HttpRequest, HttpResponse
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated

from sqlapi.error_table import HIDDEN_DETAIL, INTERNAL_CODE, Refusal, refusal_of
from sqlapi.problems import REQUEST_ID, TRACE, problem, title
from telemetry.trace_context import log_fields

logger = logging.getLogger(__name__)


def handle_view_exception(error: Exception, context: dict[str, Any]) -> HttpResponse:
    """Answer an exception of a view: DRF's `EXCEPTION_HANDLER`. An internal error is logged with its traceback."""
    request: HttpRequest = context["request"]
    refusal = _unauthorized(error) if isinstance(error, NotAuthenticated | AuthenticationFailed) else refusal_of(error)
    if refusal.is_internal:
        _log_internal_error(request, error)
    return _response(refusal, request)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 (Django passes it)
    """Answer a request that Django itself refuses: `handler400`."""
    detail = "The request is not well-formed."
    return _response(Refusal(status=400, code="malformed_request", detail=detail), request)


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer a failure outside the views: `handler500`. Django calls it while it handles the exception."""
    _log_internal_error(request, sys.exception())
    return _response(Refusal(status=500, code=INTERNAL_CODE, detail=HIDDEN_DETAIL), request)


def _unauthorized(error: NotAuthenticated | AuthenticationFailed) -> Refusal:
    # DRF sets `auth_header` to the challenge of the authentication class before it calls the handler.
    challenge = {"WWW-Authenticate": error.auth_header}  # type: ignore[union-attr]
    code = str(error.get_codes())
    return Refusal(status=401, code=code, detail=str(error.detail), headers=challenge)


def _log_internal_error(request: HttpRequest, error: BaseException | None) -> None:
    fields = {"request_id": request.META.get(REQUEST_ID, ""), **log_fields(request.META.get(TRACE))}
    logger.error("a request failed", exc_info=error, extra={"fields": fields})


def _response(refusal: Refusal, request: HttpRequest) -> HttpResponse:
    document = problem(refusal.status, refusal.code, refusal.detail, request.META.get(REQUEST_ID), refusal.headers)
    response = HttpResponse(document.body, status=document.status, headers=document.headers)
    response.reason_phrase = title(document.status)
    return response
