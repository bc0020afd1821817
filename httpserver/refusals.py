"""Problem bodies for requests that the HTTP server refuses before the application runs."""

import logging
import ssl
from typing import Any

from gunicorn.http import errors as http_errors

import telemetry.state
from sqlapi.errors import RequestTimeoutError
from sqlapi.problems import problem

#: The route of a request that was not read far enough to have one.
_NO_ROUTE = "unknown"

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("sqlapi.access")

#: Exception class, status, code, sentence. The first matching class counts.
REFUSALS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (RequestTimeoutError, 408, RequestTimeoutError.code, str(RequestTimeoutError())),
    (http_errors.LimitRequestLine, 414, "uri_too_long", "The request line is too long."),
    (http_errors.LimitRequestHeaders, 431, "headers_too_large", "The request headers are too large."),
    (http_errors.ExpectationFailed, 417, "expectation_failed", "The Expect header names an unknown expectation."),
    (http_errors.UnsupportedTransferCoding, 501, "unsupported_transfer_coding", "Only chunked is understood."),
    (http_errors.ParseException, 400, "malformed_request", "The request is not well-formed HTTP/1.1."),
)


def refuse(client: Any, address: Any, error: BaseException) -> None:
    """
    Answer a request that failed outside the application with a problem body, except on a failed TLS connection.

    Only the peer is logged, nothing else of the request: a malformed header may hold a key.
    """
    peer = address[0] if isinstance(address, tuple) and address else ""
    if isinstance(error, ssl.SSLError):
        # The peer caused it (plain HTTP, an untrusted certificate), and cannot read an answer.
        logger.info("a TLS connection failed", extra={"fields": {"peer": peer, "reason": error.reason}})
        return
    found = (row[1:] for row in REFUSALS if isinstance(error, row[0]))
    status, code, detail = next(found, (500, "internal_error", "The server failed to handle the request."))
    if status == 500:
        logger.error("a request failed outside the application", exc_info=error)
    answer = problem(status, code, detail)
    telemetry.state.count_request(_NO_ROUTE, status, 0.0)
    fields = {"peer": peer, "method": None, "route": None, "status": status, "code": code}
    fields["request_id"] = answer.headers["X-Request-Id"]
    access_logger.info("request refused by the server", extra={"fields": fields})
    try:
        client.sendall(answer.as_http11())
    except OSError:
        logger.debug("the peer of a refused request is gone")
