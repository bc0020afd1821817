"""Ids of requests and queries: taken from the caller when well-formed, made here otherwise."""

from __future__ import annotations

import re
import secrets

#: Keys of the WSGI environ under which the ids travel; a server may set the first before the application runs.
REQUEST_ID = "runtime.request_id"
QUERY_ID = "runtime.query_id"

_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")


def new_id() -> str:
    """Return 32 random hexadecimal digits."""
    return secrets.token_hex(16)


def accepted_id(inbound: str | None) -> str | None:
    """Return the caller's `X-Request-Id` if it may be repeated in headers and logs, else None."""
    return inbound if inbound is not None and _WELL_FORMED.fullmatch(inbound) else None
