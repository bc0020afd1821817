"""The requests that the HTTP server refuses before the application runs."""

import logging
import ssl
from typing import Any

from gunicorn.http import errors as http_errors

from httpserver.application import Application

logger = logging.getLogger(__name__)


class HeadTimeoutError(Exception):
    """The head of a request was not complete in time."""


#: Exception class, status, code, sentence. The first matching class counts.
REFUSALS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (HeadTimeoutError, 408, "request_timeout", "The headers were not complete in time: send them without long pauses."),
    (http_errors.LimitRequestLine, 414, "uri_too_long", "The request line is too long."),
    (http_errors.LimitRequestHeaders, 431, "headers_too_large", "The request headers are too large."),
    (http_errors.ExpectationFailed, 417, "expectation_failed", "The Expect header names an unknown expectation."),
    (http_errors.UnsupportedTransferCoding, 501, "unsupported_transfer_coding", "Only chunked is understood."),
    (http_errors.ParseException, 400, "malformed_request", "The request is not well-formed HTTP/1.1."),
)


def refuse(application: Application, client: Any, address: Any, error: BaseException) -> None:
    """
    Answer a request that failed outside *application* as the application would, except on a failed TLS connection.

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
    response = application.refuse(peer, status, code, detail)
    try:
        client.sendall(response)
    except OSError:
        logger.debug("the peer of a refused request is gone")
