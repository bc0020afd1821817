"""
Reads the credential of a request from its raw header values.

HTTP, Flight calls and Flight handshakes each have a function here. `authkeys.access` decides whether the credential is
an accepted key.

HTTP servers join the values of a repeated header with commas. A key never holds a comma, so a comma always means two
values, and two values are refused in any order.
"""

import base64
import enum
from collections.abc import Sequence

from runtimeconf.secret import Secret

#: Optional white space around a header value (RFC 9110, 5.6.3).
_OWS = " \t"


class Reason(enum.Enum):
    """Why a request is not authenticated: it holds no credential, or a bad one. The value is in the audit log."""

    MISSING = "missing_key"
    UNKNOWN = "unknown_key"
    EXPIRED = "expired_key"  # in the audit log only: the answer is that to an unknown key
    REPEATED = "repeated_header"
    SCHEME = "unknown_scheme"
    CONFLICTING = "conflicting_credentials"
    ENCODING = "malformed_credential"


#: The text that a request presents as its key, or the reason why none of its headers can hold a key.
Credential = Secret | Reason


def from_headers(x_api_key: str | None, authorization: str | None, *, bearer: bool = True) -> Credential:
    """
    Read the credential of an HTTP request.

    A non-empty `X-API-Key` alone decides, whether it is valid or not; an empty one counts as absent. Without it,
    `Authorization` decides, unless *bearer* is false (compatibility 1.10).
    """
    key = (x_api_key or "").strip(_OWS)
    if key:
        return Reason.REPEATED if "," in key else Secret(key)
    return from_authorization(authorization) if bearer else Reason.MISSING


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
        return Reason.REPEATED
    credential = from_authorization("".join(authorization))
    if credential is Reason.MISSING and "".join(token):
        credential = Secret("".join(token))
    elif isinstance(credential, Secret) and token and token[0] != credential.reveal():
        return Reason.CONFLICTING
    return _refuse_conflict(x_api_key, credential)


def from_handshake(authorization: Sequence[str], x_api_key: Sequence[str]) -> Credential:
    """
    Read the credential of a Flight handshake: Bearer, or Basic (RFC 7617) with the key as the password.

    Any user name is accepted. The padding of Base64 is optional, because some clients omit it.
    """
    if len(authorization) > 1:
        return Reason.REPEATED
    return _refuse_conflict(x_api_key, _from_basic_or_bearer("".join(authorization)))


def _refuse_conflict(x_api_key: Sequence[str], credential: Credential) -> Credential:
    if isinstance(credential, Secret) and any(text.strip(_OWS) not in ("", credential.reveal()) for text in x_api_key):
        return Reason.CONFLICTING
    return credential


def _from_basic_or_bearer(authorization: str) -> Credential:
    scheme, _, encoded = authorization.strip(_OWS).partition(" ")
    if scheme.lower() != "basic":
        return from_authorization(authorization)
    encoded = encoded.strip(_OWS).rstrip("=")
    try:
        plain = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True).decode()
    except ValueError:
        return Reason.ENCODING
    _, separator, password = plain.partition(":")
    if not separator:
        return Reason.ENCODING
    return Secret(password) if password else Reason.MISSING


def from_authorization(authorization: str | None) -> Credential:
    """Read the credential of an `Authorization: Bearer` header. The scheme ignores case; no token counts as absent."""
    value = (authorization or "").strip(_OWS)
    if not value:
        return Reason.MISSING
    if "," in value:
        return Reason.REPEATED
    scheme, _, token = value.partition(" ")
    if scheme.lower() != "bearer":
        return Reason.SCHEME
    token = token.strip(_OWS)
    return Secret(token) if token else Reason.MISSING
