"""Problem bodies for requests that the HTTP server refuses before the application runs."""

from __future__ import annotations

import logging
import ssl
from typing import Any, Protocol

from gunicorn.http import errors as http_errors

from sqlapi.access_log import log_refused_request
from sqlapi.errors import RequestTimeoutError
from sqlapi.problems import problem

logger = logging.getLogger(__name__)

#: Exception class, status, code, sentence. The first matching class counts.
REFUSALS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (RequestTimeoutError, 408, RequestTimeoutError.code, str(RequestTimeoutError())),
    (http_errors.LimitRequestLine, 414, "uri_too_long", "The request line is too long."),
    (http_errors.LimitRequestHeaders, 431, "headers_too_large", "The request headers are too large."),
    (http_errors.ExpectationFailed, 417, "expectation_failed", "The Expect header names an unknown expectation."),
    (http_errors.UnsupportedTransferCoding, 501, "unsupported_transfer_coding", "Only chunked is understood."),
    (http_errors.ParseException, 400, "malformed_request", "The request is not well-formed HTTP/1.1."),
)


class CanSendAll(Protocol):
    """A socket."""

    def sendall(self, data: bytes, /) -> Any:
        """Send all of *data*."""


def refuse(client: CanSendAll, address: Any, error: BaseException) -> None:
    """
    Answer a request that failed outside the application with a problem body, except on a failed TLS connection.

    Only the peer is logged, nothing else of the request: a malformed header may hold a key.
    """
    peer = address[0] if isinstance(address, tuple) and address else ""
    if isinstance(error, ssl.SSLError):
        # The peer caused it (plain HTTP, an untrusted certificate), and cannot read an answer.
        logger.info("a TLS connection failed", extra={"fields": {"peer": peer, "reason": error.reason}})
        return
    status, code, detail = _refusal(error)
    if status == 500:
        logger.error("a request failed outside the application", exc_info=error)
    answer = problem(status, code, detail)
    log_refused_request(peer=peer, status=status, code=code, request_id=answer.request_id)
    try:
        client.sendall(answer.as_http11())
    except OSError:
        logger.debug("the peer of a refused request is gone")


def _refusal(error: BaseException) -> tuple[int, str, str]:
    """Return status, code and sentence of an error outside the application."""
    for kind, status, code, detail in REFUSALS:
        if isinstance(error, kind):
            return status, code, detail
    return 500, "internal_error", "The server failed to handle the request."
