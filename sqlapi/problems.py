"""
The one shape of every refusal: a problem document (RFC 9457), as bytes, without any framework.

Views, Django-level failures and the HTTP server itself all answer with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

from queryengine.ids import new_id

CONTENT_TYPE = "application/problem+json"

#: What every answer of the API carries, refusal or not: it is nobody's to cache, and is what its type says.
COMMON_HEADERS: Mapping[str, str] = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

#: The client has left: nobody reads this status but the access log.
CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A refusal, ready to send. `headers` are all but `Content-Length` and those about the connection."""

    status: int
    code: str
    headers: Mapping[str, str]
    body: bytes
    request_id: str

    def as_http11(self) -> bytes:
        """Return the whole answer of a server that closes the connection after it."""
        headers = {
            "Date": formatdate(usegmt=True),
            "Connection": "close",
            **self.headers,
            "Content-Length": str(len(self.body)),
        }
        lines = [f"HTTP/1.1 {self.status} {title(self.status)}", *(f"{name}: {text}" for name, text in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


def title(status: int) -> str:
    """Return the phrase of *status*."""
    return "Client Closed Request" if status == CLIENT_CLOSED_REQUEST else HTTPStatus(status).phrase


def problem(
    status: int, code: str, detail: str, request_id: str | None = None, headers: Mapping[str, str] | None = None
) -> Problem:
    """
    Make the answer of a refusal.

    Args:
        status: The HTTP status.
        code: The stable name of what happened, as documented.
        detail: A sentence for the caller.
        request_id: The id of the request; a new one when the server has not come to know it.
        headers: More headers, such as a challenge.
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
        code=code,
        headers={"Content-Type": CONTENT_TYPE, **COMMON_HEADERS, "X-Request-Id": request_id, **(headers or {})},
        body=json.dumps(document).encode("ascii"),
        request_id=request_id,
    )
