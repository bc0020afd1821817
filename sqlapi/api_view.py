"""The base class of the views, and their JSON and CSV output. Views leave errors to the common exception handler."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.request import Request
from rest_framework.views import APIView

from authkeys import authentication
from authkeys.access import Access
from authkeys.authentication import ApiKeyAuthentication, HasPrincipal
from authkeys.errors import AccessNotBuiltError
from authkeys.principal import Principal
from authkeys.state import get_access
from queryengine.engine import Allowance
from queryengine.errors import RateLimitError
from queryengine.state import get_engine
from runtimeconf.exposure import check_this_process
from runtimeconf.state import get_config
from sqlapi.errors import MethodNotAllowedError, RouteNotFoundError
from sqlapi.hosts import Authority, check_host, check_same_site
from sqlapi.negotiation import FORMAT
from sqlapi.problems import handle_view_exception

#: DRF requires a negotiator, but negotiates nothing here.
_NEGOTIATOR = DefaultContentNegotiation()


class ApiView(APIView):
    """
    The base class of every view. It authenticates the caller before it reads anything else in the request.

    Views require a key unless they declare otherwise, regardless of a project's settings. DRF does no negotiation or
    parsing, because this package reads bodies and `Accept` itself after authentication.
    """

    authentication_classes = [ApiKeyAuthentication]
    permission_classes = [HasPrincipal]
    http_method_names = ["get", "head", "post"]
    renderer_classes = []
    parser_classes = []
    #: The checked `Host` of a request that is authenticated.
    host: Authority
    #: What is left of the caller's `requests_per_minute`; None without such a limit.
    allowance: Allowance | None = None

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """Return DRF's request with the most frequently used attributes copied from Django's request."""
        self._authentication = ApiKeyAuthentication()
        authenticators = [self._authentication] if self.authentication_classes else []
        wrapped = Request(request, authenticators=authenticators, negotiator=_NEGOTIATOR)
        # No parser needs the context, and DRF's default refers back to the request, a cycle that only the garbage
        # collector can free.
        wrapped.parser_context = {}
        # Attribute lookup falls through to Django's request, so cache the two attributes that are used most.
        wrapped.META, wrapped.method = request.META, request.method
        return wrapped

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], HttpResponse]:
        """Return this package's exception handler, regardless of a project's settings."""
        return handle_view_exception

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate first. DRF would negotiate first and respond with 406 instead of 401."""
        # A view without authentication accepts any Host and requests from any web page.
        if self.authentication_classes:
            self.host = _check_sender(request, self._authentication.access)
        self.perform_authentication(request)
        self.check_permissions(request)
        self._count(request)
        # Methods are case-sensitive (RFC 9110, 9.1), but Django converts them to upper case.
        if request.META["REQUEST_METHOD"] != request.method:
            self.http_method_not_allowed(request)

    def authenticate_again(self, request: Request) -> Principal:
        """Return the caller, authenticated again if a reload has changed the keys while this request waited."""
        if get_access() is not self._authentication.access:
            del self._authentication.access
            del request._user  # type: ignore[attr-defined]  # noqa: SLF001 (DRF authenticates when its user is asked for)
            self.perform_authentication(request)
            self.check_permissions(request)
        return caller_of(request)

    def _count(self, request: Request) -> None:
        """
        Count the request of a key with `requests_per_minute`.

        Raises:
            RateLimitError: The request exceeds the limit.
        """
        caller = request.user
        if isinstance(caller, Principal) and caller.limits.requests_per_minute is not None:
            self.allowance = get_engine().count_request(caller.fingerprint, caller.limits.requests_per_minute)
            if not self.allowance.is_allowed:
                raise RateLimitError(self.allowance.limit, self.allowance.reset_s)
            self.authenticate_again(request)  # The count comes from another process.

    def finalize_response(self, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]
        """Add the RateLimit headers of the IETF draft if the key has a limit."""
        response = super().finalize_response(*args, **kwargs)
        if self.allowance is not None:
            response["RateLimit-Limit"] = str(self.allowance.limit)
            response["RateLimit-Remaining"] = str(self.allowance.remaining)
            response["RateLimit-Reset"] = str(self.allowance.reset_s)
        return response

    @property
    def default_response_headers(self) -> dict[str, str]:
        """No headers, because `Allow` is sent only with a 405."""
        return {}

    def http_method_not_allowed(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]
        """
        Refuse the method.

        Raises:
            MethodNotAllowedError: Always.
        """
        raise MethodNotAllowedError(sorted(self.allowed_methods))


class UnknownView(ApiView):
    """Handles every path that is not a route, with any method."""

    def http_method_not_allowed(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]
        """
        Refuse the path.

        Raises:
            RouteNotFoundError: Always.
        """
        raise RouteNotFoundError


def _check_sender(request: Request, access: Access) -> Authority:
    """
    Return the Host. Refuse a wrong one and, while authentication is off, requests from other sites.

    Raises:
        InvalidHostError, CrossSiteRequestError: See `sqlapi.hosts`.
        ConfigError: Other machines can reach this process without a key, and the configuration does not allow it.
    """
    auth_on = access.key_set is not None
    environ = request.META
    # Django's test client sends no Host, so fall back to the server's name, as `HttpRequest.get_host` does.
    sent = environ.get("HTTP_HOST", environ["SERVER_NAME"])
    config = get_config()
    host = check_host(sent, config.http.allowed_hosts, auth_on=auth_on)
    if not auth_on:
        check_this_process(config.auth, config.file)
        check_same_site(host, environ.get("HTTP_ORIGIN"), environ.get("HTTP_SEC_FETCH_SITE"))
    return host


def caller_of(request: Request) -> Principal:
    """
    Return the caller of an authenticated request.

    Raises:
        AccessNotBuiltError: The view has no authentication.
    """
    caller = authentication.caller_of(request)
    if caller is None:
        raise AccessNotBuiltError
    return caller


def table(request: Request, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> HttpResponse:
    """Return *rows* as JSON, or their *columns* as CSV with `?format=csv`."""
    if FORMAT.read(request.META) != "csv":
        return json_response(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    cells = ([row[name] for name in columns] for row in rows)
    writer.writerows(map(_cell, line) for line in cells)
    return HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8")


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def json_response(value: object, status: int = 200) -> HttpResponse:
    """Return *value* as JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return HttpResponse(text, status=status, content_type="application/json")
