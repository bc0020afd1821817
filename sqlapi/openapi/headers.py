"""The headers that routes read and send, with their schemas."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from queryengine.errors import QueryCancelledError
from sqlapi.errors import ContentEncodingError
from sqlapi.openapi.schemas import Schema
from sqlapi.problems import COMMON_HEADERS


@dataclass(frozen=True, slots=True)
class Header:
    """A header: what it means, and the schema of its value."""

    description: str
    schema: Schema


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}

#: What may be sent beside the credential, `Accept` and `Content-Type`, which OpenAPI describes in other places.
REQUEST_HEADERS: Mapping[str, Header] = {
    "X-Request-Id": Header(
        "Identifies the request in the log. It is used if it consists of 1 to 128 letters, digits, dots, hyphens or "
        "underscores; otherwise the request gets another id.",
        _TEXT,
    ),
    "traceparent": Header(
        "The W3C trace context that the request belongs to. A malformed one is ignored.",
        _TEXT,
    ),
    "Cache-Control": Header(
        "`no-cache` runs the statement and caches its response, `no-store` runs it and caches nothing.", _TEXT
    ),
}

#: Those that every route reads.
READ_ALWAYS = ("X-Request-Id", "traceparent")

RESPONSE_HEADERS: Mapping[str, Header] = {
    "X-Request-Id": Header(
        "Identifies the request in the log.", {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"}
    ),
    **{
        name: Header("On every response.", {"type": "string", "const": value}) for name, value in COMMON_HEADERS.items()
    },
    "X-Query-Id": Header("Identifies the statement in the log.", {"type": "string", "pattern": "^[0-9a-f]{32}$"}),
    "X-Cache": Header(
        "With the results cache on: where the response comes from.",
        {"type": "string", "enum": ["hit", "miss", "bypass"]},
    ),
    "WWW-Authenticate": Header(
        "The challenge.",
        {"type": "string", "pattern": '^(Bearer|ApiKey) realm="querykeep"(, error="invalid_token")?$'},
    ),
    "Allow": Header("The methods of the route.", {"type": "string", "pattern": "^[A-Z]+(, [A-Z]+)*$"}),
    "Retry-After": Header("Seconds to wait before another attempt.", {"type": "integer", "minimum": 1}),
    "Accept-Encoding": Header("If the body was compressed: `identity`.", {"type": "string", "const": "identity"}),
    "RateLimit-Limit": Header("The `requests_per_minute` of the key, if it has such a limit.", _COUNT),
    "RateLimit-Remaining": Header("The requests that are left.", _COUNT),
    "RateLimit-Reset": Header("Seconds until some are available again.", _COUNT),
}

#: On every response.
SENT_ALWAYS = ("X-Request-Id", *COMMON_HEADERS)

#: On the responses to a key with `requests_per_minute`, once the key is known.
RATE_LIMIT = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")

#: On each error with this status.
_OF_STATUS: Mapping[int, tuple[str, ...]] = {
    401: ("WWW-Authenticate",),
    405: ("Allow",),
    429: ("Retry-After",),
    503: ("Retry-After",),
}


def headers_of_error(status: int, codes: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the headers that an error with one of *codes* always has, and those that it may have."""
    of_status = _OF_STATUS.get(status, ())
    if QueryCancelledError.code in codes:  # clients must not retry by themselves
        return (), of_status
    return of_status, ("Accept-Encoding",) if ContentEncodingError.code in codes else ()
