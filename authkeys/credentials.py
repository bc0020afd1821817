"""
Reads the credential of a request from its raw header values.

HTTP, Flight calls and Flight handshakes each have a function here. `authkeys.access` decides whether the credential is
an accepted key.

HTTP servers join the values of a repeated header with commas. A key never contains a comma, so a comma always means two
values. Two values are refused in any order.
"""

import base64
import enum
from collections.abc import Sequence

from runtimeconf.secret import Secret

#: Optional white space around a header value (RFC 9110, 5.6.3).
_OWS = " \t"


class Reason(enum.Enum):
    """Why a request is not authenticated: its credential is missing or bad. The audit log contains the value."""

    MISSING = "missing_key"
    UNKNOWN = "unknown_key"
    EXPIRED = "expired_key"  # only in the audit log; the response is the same as for an unknown key
    REPEATED = "repeated_header"
    SCHEME = "unknown_scheme"
    CONFLICTING = "conflicting_credentials"
    ENCODING = "malformed_credential"


#: The text that a request presents as its key, or the reason why its headers contain no usable key.
Credential = Secret | Reason


def from_headers(x_api_key: str | None, authorization: str | None, *, bearer: bool = True) -> Credential:
    """
    Read the credential of an HTTP request.

    A non-empty `X-API-Key` is the only credential, even if it is invalid. An empty one counts as absent. Without it,
    `Authorization` is read unless *bearer* is false (compatibility 1.10).
    """
    key = (x_api_key or "").strip(_OWS)
    if key:
        return Reason.REPEATED if "," in key else Secret(key)
    return from_authorization(authorization) if bearer else Reason.MISSING


def from_metadata(authorization: Sequence[str], x_api_key: Sequence[str], token: Sequence[str]) -> Credential:
    """
    Read the credential of a gRPC call. Each argument contains all values of one metadata key.

    Args:
        authorization: At most one value, of the scheme Bearer.
        x_api_key: Never authenticates a call. A value that differs from the credential is refused, because a proxy may
            have based its decision on that value.
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

    Any user name is accepted. Base64 padding is optional because some clients omit it.
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
    """
    Read the credential of an `Authorization: Bearer` header.

    The scheme is case-insensitive; an empty token counts as absent.
    """
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
