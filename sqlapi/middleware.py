"""The middleware, outermost first: request ids and common headers, then the access log and request counts."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

import telemetry.state
from queryengine.ids import accepted_id, new_id
from runtimeconf.state import get_config
from sqlapi.error_table import Refusal
from sqlapi.problems import COMMON_HEADERS, QUERY_ID, REQUEST_ID, TRACE, as_http11, problem
from sqlapi.urls import UNKNOWN, route_name
from system.client_address import client_address
from telemetry import spans
from telemetry.trace_context import Trace, log_fields

logger = logging.getLogger("sqlapi.access")

#: The methods that a span can name. A caller may send any other text as the method.
_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})

GetResponse = Callable[[HttpRequest], HttpResponseBase]


class RequestIdMiddleware:
    """Adds an id to each request, and the common headers to each response."""

    def __init__(self, get_response: GetResponse) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Handle one request."""
        environ = request.META
        environ.setdefault(REQUEST_ID, accepted_id(environ.get("HTTP_X_REQUEST_ID")) or new_id())
        # Servers join repeated headers with a comma, so a repeated header is malformed.
        environ[TRACE] = spans.begin([environ["HTTP_TRACEPARENT"]] if "HTTP_TRACEPARENT" in environ else [])
        if not request.path_info.startswith("/"):
            # Django would answer a target without a path (`OPTIONS *`) with its own 404, so turn the target into an
            # unknown path.
            request.path_info = f"//{request.path_info}"
        response = self._get_response(request)
        response["X-Request-Id"] = environ[REQUEST_ID]
        if QUERY_ID in environ:
            response["X-Query-Id"] = environ[QUERY_ID]
        for name, value in COMMON_HEADERS.items():
            response.setdefault(name, value)
        if isinstance(response, HttpResponse):
            response["Content-Length"] = str(len(response.content))
            if request.method == "HEAD":
                response.content = b""
        return response


class AccessLogMiddleware:
    """
    Logs each request, immediately or when its streamed response ends.

    No line contains the path or query string as sent. REMOTE_ADDR becomes the address of the client behind a proxy, for
    this line and for the audit log.
    """

    def __init__(self, get_response: GetResponse) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Handle one request."""
        began = time.monotonic()
        if forwarded_for := request.META.get("HTTP_X_FORWARDED_FOR"):
            trusted_proxies = get_config().http.trusted_proxies
            request.META["REMOTE_ADDR"] = client_address(request.META["REMOTE_ADDR"], forwarded_for, trusted_proxies)
        response = self._get_response(request)

        def log(sent_bytes: int, complete: bool) -> None:
            environ = request.META
            caller = getattr(request, "user", None)
            duration_s = time.monotonic() - began
            route = route_name(request.resolver_match)
            telemetry.state.count_request(route, response.status_code, duration_s)
            fields = {
                "peer": environ.get("REMOTE_ADDR", ""),
                "method": environ["REQUEST_METHOD"],
                "route": route,
                "status": response.status_code,
                "duration_ms": round(duration_s * 1000, 1),
                "bytes": sent_bytes,
                "complete": complete,
                "fingerprint": getattr(caller, "fingerprint", ""),
                "key": getattr(caller, "name", "") or None,
                "request_id": environ.get(REQUEST_ID, ""),
                "query_id": environ.get(QUERY_ID),
                **log_fields(environ.get(TRACE)),
            }
            logger.info("request", extra={"fields": fields})
            _send_span(environ.get(TRACE), fields, duration_s)

        if isinstance(response, StreamingHttpResponse):
            response.streaming_content = _Metered(cast("Iterable[bytes]", response.streaming_content), log)
        else:
            content = cast("HttpResponse", response).content
            log(0 if request.method == "HEAD" else len(content), True)
        return response


def refuse(peer: str, status: int, code: str, detail: str) -> bytes:
    """
    Log and count a request that the HTTP server refuses. Return the response; the connection then closes.

    Only the peer of the request is logged, because a malformed header may contain a key.
    """
    response = problem(Refusal(status=status, code=code, detail=detail))
    telemetry.state.count_request(UNKNOWN, status, 0.0)
    fields = {"peer": peer, "method": None, "route": None, "status": status, "code": code}
    fields["request_id"] = response.headers["X-Request-Id"]
    logger.info("request refused by the server", extra={"fields": fields})
    return as_http11(response)


def _send_span(trace: Trace | None, fields: Mapping[str, Any], duration_s: float) -> None:
    """Send the span of a request whose log line has these *fields*."""
    method = fields["method"] if fields["method"] in _METHODS else None
    attributes = {
        "http.request.method": method or "_OTHER",
        "http.route": fields["route"],
        "http.response.status_code": fields["status"],
        "http.response.body.size": fields["bytes"],
        "querykeep.key": fields["key"],
        "querykeep.request_id": fields["request_id"],
        "querykeep.query_id": fields["query_id"],
    }
    # By OpenTelemetry conventions, a client error is not an error of the server span.
    error = str(fields["status"]) if fields["status"] >= 500 else ""
    if not fields["complete"]:
        error = "incomplete"
    spans.send(trace, f"{method or 'HTTP'} {fields['route']}", duration_s, attributes, kind="server", error=error)


class _Metered:
    """Passes chunks on and counts their bytes. The server always closes it."""

    def __init__(self, chunks: Iterable[bytes], log: Callable[[int, bool], None]) -> None:
        self._chunks = iter(chunks)
        self._log = log
        self._sent_bytes = 0
        self._complete = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            chunk = next(self._chunks)
        except StopIteration:
            self._complete = True
            raise
        self._sent_bytes += len(chunk)
        return chunk

    def close(self) -> None:
        """Write the log line."""
        self._log(self._sent_bytes, self._complete)
