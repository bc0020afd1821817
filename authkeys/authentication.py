"""The DRF authentication class: reads the headers, asks the key set, says who calls."""

from __future__ import annotations

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from authkeys import audit, http_audit
from authkeys.access import Access
from authkeys.credentials import Absent, Credential, Malformed, Reason
from authkeys.keys import ApiKey
from authkeys.principal import ANONYMOUS, Principal
from authkeys.state import get_access

_SENTENCES = {
    Reason.REPEATED: "Send one API key, in one header: the header came twice, or its value holds a comma.",
    Reason.SCHEME: "The only Authorization scheme is Bearer: send Authorization: Bearer <key> or X-API-Key: <key>.",
}


class ApiKeyAuthentication(BaseAuthentication):
    """
    `X-API-Key`, or `Authorization: Bearer`; nothing else in a request is looked at.

    Without a credential the caller stays unknown, and the permission decides. While authentication is off everybody is
    the anonymous principal.
    """

    def authenticate(self, request: Request) -> tuple[Principal, ApiKey | None] | None:
        """
        Say who calls.

        Raises:
            AuthenticationFailed: A credential was presented and it is not an accepted key.
            AccessNotBuiltError: The key set was never built in this process.
        """
        access = get_access()
        if access.key_set is None:
            return ANONYMOUS, None
        credential = _credential(access, request)
        if isinstance(credential, Absent):
            return None
        if isinstance(credential, Malformed):
            http_audit.log_failure(request, credential.reason.value)
            raise AuthenticationFailed(_SENTENCES[credential.reason], code="invalid_key")
        key = access.key_set.find(credential.text)
        if key is None:
            http_audit.log_failure(request, audit.UNKNOWN)
            raise AuthenticationFailed("The API key is not valid.", code="invalid_key")
        return Principal.of(key), key

    def authenticate_header(self, request: Request) -> str:
        """Name the challenge (RFC 9110, 11.6.1); without it DRF answers 403 where 401 is due."""
        access = get_access()
        return access.challenge(presented=not isinstance(_credential(access, request), Absent))


def _credential(access: Access, request: Request) -> Credential:
    return access.credential(request.META.get("HTTP_X_API_KEY"), request.META.get("HTTP_AUTHORIZATION"))
