"""
The WSGI application: Django's handler without the work per request that this project does not need.

For each request Django sets a script prefix and a URL configuration, sends signals, and searches the URL patterns. This
project uses neither prefix nor signals, and most of its paths are fixed.
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

#: The engine of the default database of a project that has none. A user's own project may have one.
_NO_DATABASE = "django.db.backends.dummy"


class ApiHandler(WSGIHandler):
    """
    The handler of the API. It loads the views, so create it after `django.setup()`.

    Beside WSGI, it offers what `httpserver.application` asks of an application, and its readiness.
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
        """Answer one request."""
        # Django parses Content-Type before any middleware runs, and answers an unknown charset with a 500.
        environ[CONTENT_TYPE] = environ.pop("CONTENT_TYPE", "")
        # Without the header Django would use the server's own name as the host.
        environ.setdefault("HTTP_HOST", "")
        # Django's own `get_response` also logs refusals, as the access log does.
        response = self._middleware_chain(WSGIRequest(environ))
        start_response(f"{response.status_code} {response.reason_phrase}", list(response.items()))
        return response

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        """Return the view of *request* with its arguments from the path."""
        match = self._matches.get(request.path_info) or self._resolver.resolve(request.path_info)
        request.resolver_match = match
        return match
