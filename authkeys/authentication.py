"""The DRF authentication class, which reads the headers and responds with 401 if `Access` refuses the credential."""

from functools import cached_property
from typing import TYPE_CHECKING

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated
from rest_framework.permissions import BasePermission
from rest_framework.request import ForcedAuthentication, Request

from authkeys.access import Access
from authkeys.audit import log_http_failure
from authkeys.credentials import Credential, Reason, from_headers
from authkeys.principal import ANONYMOUS, Principal
from authkeys.state import get_access

_SENTENCES = {
    Reason.UNKNOWN: "The API key is not valid.",
    Reason.EXPIRED: "The API key is not valid.",
    Reason.REPEATED: "Send one API key, in one header: the header came twice, or its value holds a comma.",
    Reason.SCHEME: "The only Authorization scheme is Bearer: send Authorization: Bearer <key> or X-API-Key: <key>.",
}


class ApiKeyAuthentication(BaseAuthentication):
    """
    Accepts `X-API-Key` and `Authorization: Bearer`, and ignores everything else.

    Each request has its own instance.
    """

    @cached_property
    def access(self) -> Access:
        """The access object that authenticates the request. Delete the attribute to use the current access object."""
        return get_access()

    def authenticate(self, request: Request) -> tuple[Principal, None] | None:
        """
        Return the caller, or None without a credential, which leaves the decision to the permission class.

        Raises:
            AuthenticationFailed: The request's credential is not an accepted key.
            AccessNotBuiltError: This process has not built the key set.
        """
        caller = self.access.authenticate(_credential(self.access, request))
        if isinstance(caller, Principal):
            return caller, None
        if caller is Reason.MISSING:
            return None
        log_http_failure(request, caller)
        raise AuthenticationFailed(_SENTENCES[caller], code="invalid_key")

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge (RFC 9110, 11.6.1). Without it, DRF would respond with 403 instead of 401."""
        scheme = "Bearer" if self.access.takes_bearer else "ApiKey"
        error = "" if _credential(self.access, request) is Reason.MISSING else ', error="invalid_token"'
        return f'{scheme} realm="querykeep"{error}'


def caller_of(request: Request) -> Principal | None:
    """
    Return the authenticated caller of *request*, or None.

    A test that calls REST framework's `force_authenticate` with any other user object gets all permissions. Only test
    clients in this process can do so, because the marker is an attribute of the request object and cannot be sent.
    """
    user = request.user
    if isinstance(user, Principal):
        return user
    return ANONYMOUS if isinstance(request.successful_authenticator, ForcedAuthentication) else None


def _credential(access: Access, request: Request) -> Credential:
    headers = (request.META.get("HTTP_X_API_KEY"), request.META.get("HTTP_AUTHORIZATION"))
    return from_headers(*headers, bearer=access.takes_bearer)


# `rest_framework.views` imports the default permissions, and thus this module, during its own import.
if TYPE_CHECKING:
    from rest_framework.views import APIView


class HasPrincipal(BasePermission):
    """Admits authenticated callers. While authentication is off, every caller is the anonymous principal."""

    def has_permission(self, request: Request, view: "APIView") -> bool:
        """
        Admit a request whose caller is known.

        Raises:
            NotAuthenticated: The request has no credential. The message names the accepted headers.
        """
        if caller_of(request) is not None:
            return True
        log_http_failure(request, Reason.MISSING)
        headers = "X-API-Key: <key>"
        if get_access().takes_bearer:
            headers += " or Authorization: Bearer <key>"
        raise NotAuthenticated(f"An API key is needed: send {headers}.", code="missing_key")
