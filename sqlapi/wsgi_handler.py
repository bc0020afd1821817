"""
The WSGI application: Django's handler without the per-request work that this project does not need.

For each request, Django sets a script prefix and a URL configuration, sends signals, and searches the URL patterns.
This project uses neither the prefix nor the signals, and most of its paths are fixed.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.core import signals
from django.core.cache import close_caches
from django.core.handlers.base import reset_urlconf
from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.db import close_old_connections, connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import Resolver404, ResolverMatch, get_resolver

import queryengine.state
from sqlapi.middleware import refuse
from sqlapi.request_bodies import CONTENT_TYPE, must_close
from sqlapi.status import is_ready
from sqlapi.urls import ROUTES

#: Django's default database engine in a project without a database. A user's own project may have a database.
_NO_DATABASE = "django.db.backends.dummy"


class ApiHandler(WSGIHandler):
    """
    The WSGI handler of the API. It loads the views, so create it after `django.setup()`.

    In addition to WSGI, it implements the application interface of `httpserver.application` and reports readiness.
    """

    is_ready = staticmethod(is_ready)
    refuse = staticmethod(refuse)
    must_close = staticmethod(must_close)
    cancel_all = staticmethod(queryengine.state.cancel_statements)

    _middleware_chain: Callable[[HttpRequest], HttpResponseBase]  # Private to Django.

    def __init__(self) -> None:
        super().__init__()
        # There are no caches or URL configurations to close or reset after a request.
        for receiver in (close_caches, reset_urlconf):
            signals.request_finished.disconnect(receiver)
        if all(database["ENGINE"] == _NO_DATABASE for database in connections.settings.values()):
            signals.request_finished.disconnect(close_old_connections)
        self._resolver = get_resolver()
        self._matches: dict[str, ResolverMatch] = {}
        for route in ROUTES:
            if "<" not in route.pattern:
                with suppress(Resolver404):  # A user's own project may mount the routes elsewhere.
                    self._matches[f"/{route.pattern}"] = self._resolver.resolve(f"/{route.pattern}")

    def __call__(self, environ: dict[str, Any], start_response: Any) -> HttpResponseBase:
        """Handle one request."""
        # Django parses Content-Type before any middleware runs and responds to an unknown charset with a 500.
        environ[CONTENT_TYPE] = environ.pop("CONTENT_TYPE", "")
        # Without the header, Django would use the server's own name as the host.
        environ.setdefault("HTTP_HOST", "")
        # Django's own `get_response` would also log refusals, which the access log already contains.
        response = self._middleware_chain(WSGIRequest(environ))
        start_response(f"{response.status_code} {response.reason_phrase}", list(response.items()))
        return response

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        """Return the view of *request* and its path arguments."""
        match = self._matches.get(request.path_info) or self._resolver.resolve(request.path_info)
        request.resolver_match = match
        return match
