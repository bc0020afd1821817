"""
Reads the credential of a request from its raw header values.

HTTP, Flight calls and Flight handshakes each have a function here. `authkeys.access` decides whether the credential is
an accepted key.

HTTP servers join the values of a repeated header with commas. A key never holds a comma, so a comma always means two
values, and two values are refused whatever their order.
"""

import base64
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

#: The two headers that may hold the key over HTTP, as WSGI names them (PEP 3333).
API_KEY_HEADER = "HTTP_X_API_KEY"
AUTHORIZATION_HEADER = "HTTP_AUTHORIZATION"

#: Optional white space around a header value (RFC 9110, 5.6.3).
_OWS = " \t"


class Reason(enum.Enum):
    """Why a request is not authenticated; the value is the `reason` in the audit log."""

    MISSING = "missing_key"
    UNKNOWN = "unknown_key"
    EXPIRED = "expired_key"  # in the audit log only: the answer is that to an unknown key
    REPEATED = "repeated_header"
    SCHEME = "unknown_scheme"
    CONFLICTING = "conflicting_credentials"
    ENCODING = "malformed_credential"


@dataclass(frozen=True, slots=True)
class Absent:
    """The request holds no credential."""


@dataclass(frozen=True, slots=True)
class Presented:
    """The request holds a credential that may be a key."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Malformed:
    """The request holds a credential that cannot be a key."""

    reason: Reason


Credential = Absent | Presented | Malformed


def from_headers(x_api_key: str | None, authorization: str | None, *, bearer: bool = True) -> Credential:
    """
    Read the credential of an HTTP request.

    A non-empty `X-API-Key` alone decides, whether it is valid or not; an empty one counts as absent. Without it,
    `Authorization` decides, unless *bearer* is false (compatibility 1.10).
    """
    key = (x_api_key or "").strip(_OWS)
    if key:
        return Malformed(Reason.REPEATED) if "," in key else Presented(key)
    return from_authorization(authorization) if bearer else Absent()


def from_metadata(authorization: Sequence[str], x_api_key: Sequence[str], token: Sequence[str]) -> Credential:
    """
    Read the credential of a gRPC call. Each argument holds all values of one metadata key.

    Args:
        authorization: At most one value, of the scheme Bearer.
        x_api_key: Never authenticates. A value that differs from the credential is refused, because a proxy in between
            may have based its decision on it.
        token: `auth-token-bin`, which old Flight clients send instead of `authorization` after a handshake.
    """
    if len(authorization) > 1 or len(token) > 1:
        return Malformed(Reason.REPEATED)
    credential = from_authorization("".join(authorization))
    if isinstance(credential, Absent) and "".join(token):
        credential = Presented("".join(token))
    elif isinstance(credential, Presented) and token and token[0] != credential.text:
        return Malformed(Reason.CONFLICTING)
    return _refuse_conflict(x_api_key, credential)


def from_handshake(authorization: Sequence[str], x_api_key: Sequence[str]) -> Credential:
    """
    Read the credential of a Flight handshake: Bearer, or Basic (RFC 7617) with the key as the password.

    Any user name is accepted. The padding of Base64 is optional, because some clients omit it.
    """
    if len(authorization) > 1:
        return Malformed(Reason.REPEATED)
    return _refuse_conflict(x_api_key, _from_basic_or_bearer("".join(authorization)))


def _refuse_conflict(x_api_key: Sequence[str], credential: Credential) -> Credential:
    if isinstance(credential, Presented) and any(text.strip(_OWS) not in ("", credential.text) for text in x_api_key):
        return Malformed(Reason.CONFLICTING)
    return credential


def _from_basic_or_bearer(authorization: str) -> Credential:
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
    """Read the credential of an `Authorization: Bearer` header. The scheme ignores case; no token counts as absent."""
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
