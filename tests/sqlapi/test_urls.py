from __future__ import annotations

from django.urls import URLPattern, URLResolver, get_resolver

from sqlapi.routes import ROUTES, UNKNOWN
from sqlapi.urls import VIEWS
from sqlapi.views import ApiView, HealthView, ReadyView


def patterns(resolver: URLResolver) -> list[URLPattern]:
    found = []
    for entry in resolver.url_patterns:
        found += patterns(entry) if isinstance(entry, URLResolver) else [entry]
    return found


def test_every_view_authenticates_first() -> None:
    found = patterns(get_resolver())

    assert [pattern.name for pattern in found] == [*(route.name for route in ROUTES), UNKNOWN]
    for pattern in found:
        view = pattern.callback.cls  # type: ignore[attr-defined]
        assert issubclass(view, ApiView)
        assert view.initial is ApiView.initial
        assert view.authentication_classes == ApiView.authentication_classes != []
        assert view.permission_classes == ApiView.permission_classes != []


def test_the_table_says_what_the_views_do() -> None:
    for route in ROUTES:
        view = VIEWS[route.name]
        methods = {name.upper() for name in view.http_method_names if hasattr(view, name)}
        assert methods | ({"HEAD"} if "GET" in methods else set()) == set(route.methods)
    assert {VIEWS[route.name] for route in ROUTES if route.is_open} == {HealthView, ReadyView}
