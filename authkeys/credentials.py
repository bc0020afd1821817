"""
Which credential a request presents: the one decision, made from raw header values.

A value is what the header held, or the values of a repeated header joined with commas, as HTTP servers do. A key never
holds a comma, so a comma always means two values, and two values are refused whichever came first.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

#: White space that may stand around a header value (RFC 9110, 5.6.3).
_OWS = " \t"


class Reason(enum.Enum):
    """Why a credential cannot be a key; the value is the name in the audit log."""

    REPEATED = "repeated_header"
    SCHEME = "unknown_scheme"


@dataclass(frozen=True, slots=True)
class Absent:
    """No credential was presented."""


@dataclass(frozen=True, slots=True)
class Presented:
    """A credential that may be a key."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Malformed:
    """A credential was presented that cannot be a key."""

    reason: Reason


Credential = Absent | Presented | Malformed


def from_headers(x_api_key: str | None, authorization: str | None, *, bearer: bool = True) -> Credential:
    """
    Decide what an HTTP request presents.

    A non-empty `X-API-Key` decides alone, right or wrong; an empty one counts as absent. *bearer* says whether
    `Authorization` is looked at otherwise (it is not in version 1.10).
    """
    key = (x_api_key or "").strip(_OWS)
    if key:
        return Malformed(Reason.REPEATED) if "," in key else Presented(key)
    return from_authorization(authorization) if bearer else Absent()


def from_authorization(authorization: str | None) -> Credential:
    """Decide what `Authorization` presents: only the scheme `Bearer`, in any case; no token counts as absent."""
    value = (authorization or "").strip(_OWS)
    if not value:
        return Absent()
    if "," in value:
        return Malformed(Reason.REPEATED)
    scheme, _, token = value.partition(" ")
    if scheme.lower() != "bearer":
        return Malformed(Reason.SCHEME)
    token = token.strip(_OWS)
    return Presented(token) if token else Absent()
