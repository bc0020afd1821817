"""
Which credential a request presents: the one decision, made from raw header values.

A value is what the header held, or the values of a repeated header joined with commas, as HTTP servers do. A key never
holds a comma, so a comma always means two values, and two values are refused whichever came first.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

#: White space that may stand around a header value (RFC 9110, 5.6.3).
_OWS = " \t"


class Reason(enum.Enum):
    """Why a credential cannot be a key; the value is the name in the audit log."""

    REPEATED = "repeated_header"
    SCHEME = "unknown_scheme"
    CONFLICTING = "conflicting_credentials"
    ENCODING = "malformed_credential"


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


def from_metadata(authorization: Sequence[str], x_api_key: Sequence[str], token: Sequence[str]) -> Credential:
    """
    Decide what a gRPC call presents.

    Args:
        authorization: The values of this metadata: one at most, of the scheme Bearer.
        x_api_key: The same. It authenticates nobody, and beside another key it is refused: no proxy in between may have
            decided by it.
        token: The values of `auth-token-bin`, which old Flight clients send instead after a handshake.
    """
    if len(authorization) > 1 or len(token) > 1:
        return Malformed(Reason.REPEATED)
    credential = from_authorization("".join(authorization))
    if isinstance(credential, Absent) and "".join(token):
        credential = Presented("".join(token))
    elif isinstance(credential, Presented) and token and token[0] != credential.text:
        return Malformed(Reason.CONFLICTING)
    return _beside(x_api_key, credential)


def from_handshake(authorization: Sequence[str], x_api_key: Sequence[str]) -> Credential:
    """
    Decide what a Flight handshake presents: as other calls, or Basic (RFC 7617), whose password is the key.

    The user may be anything, and the padding of Base64 may be missing, as some clients leave it out.
    """
    if len(authorization) > 1:
        return Malformed(Reason.REPEATED)
    return _beside(x_api_key, _from_handshake_authorization("".join(authorization)))


def _beside(x_api_key: Sequence[str], credential: Credential) -> Credential:
    if isinstance(credential, Presented) and any(text.strip(_OWS) not in ("", credential.text) for text in x_api_key):
        return Malformed(Reason.CONFLICTING)
    return credential


def _from_handshake_authorization(authorization: str) -> Credential:
    scheme, _, encoded = authorization.strip(_OWS).partition(" ")
    if scheme.lower() != "basic":
        return from_authorization(authorization)
    encoded = encoded.strip(_OWS).rstrip("=")
    try:
        plain = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True).decode()
    except ValueError:
        return Malformed(Reason.ENCODING)
    _, separator, password = plain.partition(":")
    if not separator:
        return Malformed(Reason.ENCODING)
    return Presented(password) if password else Absent()


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
