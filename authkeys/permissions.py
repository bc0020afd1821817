"""The default DRF permission."""

from typing import TYPE_CHECKING

from rest_framework.exceptions import NotAuthenticated
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from authkeys.audit import log_http_failure
from authkeys.authentication import caller_of
from authkeys.credentials import Reason
from authkeys.state import get_access

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
        raise NotAuthenticated(f"An API key is needed: send {headers}.", code="missing_key")
