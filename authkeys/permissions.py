"""The default DRF permission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.exceptions import NotAuthenticated
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from authkeys import audit, http_audit
from authkeys.principal import Principal
from authkeys.state import get_access

if TYPE_CHECKING:  # `rest_framework.views` imports the default permissions, and so this module, while it is imported.
    from rest_framework.views import APIView


class HasPrincipal(BasePermission):
    """The caller is known, or authentication is off (then everybody is the anonymous principal)."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """
        Let a known caller pass.

        Raises:
            NotAuthenticated: No credential was presented. The sentence names the headers that are looked at.
        """
        if isinstance(request.user, Principal):
            return True
        http_audit.log_failure(request, audit.MISSING)
        headers = "X-API-Key: <key>"
        if get_access().takes_bearer:
            headers += " or Authorization: Bearer <key>"
        raise NotAuthenticated(f"An API key is needed: send {headers}.", code="missing_key")
