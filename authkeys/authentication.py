"""The DRF authentication class: reads the headers, asks `Access` to decide, and answers 401 if it refuses."""

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
    Reason.REPEATED: "Send one API key, in one header: the header is repeated, or its value contains a comma.",
    Reason.SCHEME: "Only the Bearer scheme is supported: send Authorization: Bearer <key> or X-API-Key: <key>.",
}


class ApiKeyAuthentication(BaseAuthentication):
    """Accepts `X-API-Key` and `Authorization: Bearer`; ignores everything else. Each request has an instance."""

    @cached_property
    def access(self) -> Access:
        """The access object that decides about the request. Delete it to ask for the one in force."""
        return get_access()

    def authenticate(self, request: Request) -> tuple[Principal, None] | None:
        """
        Return the caller, or None if there is no credential, which leaves the decision to the permission.

        Raises:
            AuthenticationFailed: The request holds a credential that is not an accepted key.
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
        """Name the challenge (RFC 9110, 11.6.1); without it DRF answers 403 where 401 is due."""
        scheme = "Bearer" if self.access.takes_bearer else "ApiKey"
        error = "" if _credential(self.access, request) is Reason.MISSING else ', error="invalid_token"'
        return f'{scheme} realm="querykeep"{error}'


def caller_of(request: Request) -> Principal | None:
    """
    Return the authenticated caller of *request*, or None.

    A test that calls `force_authenticate` of REST framework with a user of another kind gets all rights. Only test
    clients in this process can do so: the mark is on the request object, not in what was sent.
    """
    user = request.user
    if isinstance(user, Principal):
        return user
    return ANONYMOUS if isinstance(request.successful_authenticator, ForcedAuthentication) else None


def _credential(access: Access, request: Request) -> Credential:
    headers = (request.META.get("HTTP_X_API_KEY"), request.META.get("HTTP_AUTHORIZATION"))
    return from_headers(*headers, bearer=access.takes_bearer)


if TYPE_CHECKING:  # `rest_framework.views` imports the default permissions, and so this module, while it is imported.
    from rest_framework.views import APIView


class HasPrincipal(BasePermission):
    """Admits authenticated callers; while authentication is off, everybody is the anonymous principal."""

    def has_permission(self, request: Request, view: "APIView") -> bool:
        """
        Admit a request whose caller is known.

        Raises:
            NotAuthenticated: The request holds no credential. The message names the accepted headers.
        """
        if caller_of(request) is not None:
            return True
        log_http_failure(request, Reason.MISSING)
        headers = "X-API-Key: <key>"
        if get_access().takes_bearer:
            headers += " or Authorization: Bearer <key>"
        raise NotAuthenticated(f"An API key is required: send {headers}.", code="missing_key")
