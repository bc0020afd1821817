"""
The WSGI application: Django's handler, but for what it does for projects of another kind.

For each request Django sets a script prefix and a URL configuration, announces its begin and its end, and walks through
the URL patterns. Here nothing asks for the first two, nobody listens, and most paths are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.core import signals
from django.core.cache import close_caches
from django.core.handlers.base import reset_urlconf
from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.db import close_old_connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import Resolver404, ResolverMatch, get_resolver

from sqlapi.routes import ROUTES
from sqlapi.sql_request import CONTENT_TYPE


class ApiHandler(WSGIHandler):
    """Answers the requests of the API. Make it when Django's applications are ready; it loads the views."""

    _middleware_chain: Callable[[HttpRequest], HttpResponseBase]

    def __init__(self) -> None:
        super().__init__()
        # Of what Django closes and resets after each request there is nothing.
        for receiver in (close_old_connections, close_caches, reset_urlconf):
            signals.request_finished.disconnect(receiver)
        self._resolver = get_resolver()
        self._matches: dict[str, ResolverMatch] = {}
        for route in ROUTES:
            if "<" not in route.pattern:
                with suppress(Resolver404):  # A project of somebody's own may have it elsewhere.
                    self._matches[f"/{route.pattern}"] = self._resolver.resolve(f"/{route.pattern}")

    def __call__(self, environ: dict[str, Any], start_response: Any) -> HttpResponseBase:
        """Answer one request."""
        # Django parses Content-Type before any middleware runs, and fails with a 500 on charsets that do not exist.
        environ[CONTENT_TYPE] = environ.pop("CONTENT_TYPE", "")
        # Without the header Django would take the server's own name for what the client asked for.
        environ.setdefault("HTTP_HOST", "")
        response = self.get_response(WSGIRequest(environ))
        start_response(f"{response.status_code} {response.reason_phrase}", list(response.items()))
        return response

    def get_response(self, request: HttpRequest) -> HttpResponseBase:
        """Send *request* through the middleware to its view. What is refused has its line in the access log."""
        return self._middleware_chain(request)

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        """Return the view of *request*, and what of the path is for it."""
        match = self._matches.get(request.path_info) or self._resolver.resolve(request.path_info)
        request.resolver_match = match
        return match
