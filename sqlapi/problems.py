"""
Problem documents (RFC 9457), the body of every error response, as bytes and without a framework.

Views, Django's own handlers and the HTTP server itself all use them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

from queryengine.ids import new_id

CONTENT_TYPE = "application/problem+json"

#: The headers of every response.
COMMON_HEADERS: Mapping[str, str] = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

#: The keys of the WSGI environ that hold the ids of request and query. A server may set the first one.
REQUEST_ID = "runtime.request_id"
QUERY_ID = "runtime.query_id"
#: The key of its trace, a `Trace` or None.
TRACE = "runtime.trace"

#: The client has disconnected: only the access log shows this status.
CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error response. `headers` lack only `Content-Length` and those about the connection."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def as_http11(self) -> bytes:
        """Return the response as bytes, for a server that then closes the connection."""
        headers = {
            "Date": formatdate(usegmt=True),
            "Connection": "close",
            **self.headers,
            "Content-Length": str(len(self.body)),
        }
        lines = [f"HTTP/1.1 {self.status} {title(self.status)}", *(f"{name}: {text}" for name, text in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


def title(status: int) -> str:
    """Return the reason phrase of *status*."""
    return "Client Closed Request" if status == CLIENT_CLOSED_REQUEST else HTTPStatus(status).phrase


def problem(
    status: int, code: str, detail: str, request_id: str | None = None, headers: Mapping[str, str] | None = None
) -> Problem:
    """
    Build an error response.

    Args:
        status: The HTTP status.
        code: The stable, documented code of the error.
        detail: A sentence for the caller.
        request_id: The id of the request; None makes a new one.
        headers: Additional headers, such as a challenge.
    """
    request_id = request_id or new_id()
    document = {
        "type": "about:blank",
        "title": title(status),
        "status": status,
        "detail": detail,
        "code": code,
        "request_id": request_id,
    }
    return Problem(
        status=status,
        headers={"Content-Type": CONTENT_TYPE, **COMMON_HEADERS, "X-Request-Id": request_id, **(headers or {})},
        body=json.dumps(document).encode("ascii"),
    )
