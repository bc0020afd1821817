from __future__ import annotations

from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.permissions import AllowAny

from authkeys.authentication import ApiKeyAuthentication
from authkeys.permissions import HasPrincipal
from sqlapi.routes import ROUTES, UNKNOWN
from sqlapi.urls import VIEWS
from sqlapi.views import ApiView, HealthView, ReadyView


def patterns(resolver: URLResolver) -> list[URLPattern]:
    found = []
    for entry in resolver.url_patterns:
        found += patterns(entry) if isinstance(entry, URLResolver) else [entry]
    return found


def test_every_view_but_two_authenticates_first() -> None:
    found = patterns(get_resolver())

    assert [pattern.name for pattern in found] == [*(route.name for route in ROUTES), UNKNOWN]
    for pattern in found:
        view = pattern.callback.cls  # type: ignore[attr-defined]
        assert issubclass(view, ApiView)
        assert view.initial is ApiView.initial
        is_open = view in {HealthView, ReadyView}
        assert view.authentication_classes == ([] if is_open else [ApiKeyAuthentication])
        assert view.permission_classes == ([AllowAny] if is_open else [HasPrincipal])


def test_the_routes_match_the_methods_of_the_views() -> None:
    for route in ROUTES:
        view = VIEWS[route.name]
        methods = {name.upper() for name in view.http_method_names if hasattr(view, name)}
        assert methods | ({"HEAD"} if "GET" in methods else set()) == set(route.methods)
