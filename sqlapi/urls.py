"""The table of routes: the URL patterns, one more for every other path, and the names in the access log."""

import re
from dataclasses import dataclass

from django.urls import ResolverMatch, URLPattern, path, re_path

from sqlapi import views


@dataclass(frozen=True, slots=True)
class Route:
    """A path, whose parameters are in braces, and its view. The audit log has the name, the access log the template."""

    name: str
    template: str
    view: type[views.ApiView]

    @property
    def pattern(self) -> str:
        """The path as Django writes it."""
        return re.sub(r"{(\w+)}", r"<str:\1>", self.template).removeprefix("/")


ROUTES = (
    Route("health", "/health", views.HealthView),
    Route("ready", "/v1/ready", views.ReadyView),
    Route("sql", "/v1/sql", views.SqlView),
    Route("active", "/v1/sql/active", views.ActiveView),
    Route("history", "/v1/sql/history", views.HistoryView),
    Route("statistics", "/v1/sql/statistics", views.StatisticsView),
    Route("cancel", "/v1/sql/{query_id}/cancel", views.CancelView),
    Route("status", "/v1/status", views.StatusView),
    Route("datasets", "/v1/datasets", views.DatasetsView),
    Route("refresh", "/v1/datasets/{name}/acceleration/refresh", views.RefreshView),
    Route("key", "/v1/key", views.KeyView),
    Route("catalogs", "/v1/catalogs", views.CatalogsView),
    Route("openapi", "/v1/openapi.json", views.OpenApiView),
)

#: The name of the pattern for every other path.
UNKNOWN = "unknown"

_TEMPLATES = {route.name: route.template for route in ROUTES}

urlpatterns: list[URLPattern] = [
    *(path(route.pattern, route.view.as_view(), name=route.name) for route in ROUTES),
    re_path("", views.UnknownView.as_view(), name=UNKNOWN),
]


def route_name(match: ResolverMatch | None) -> str:
    """Return the name of a request's route in the access log."""
    return _TEMPLATES.get(match.url_name or "", UNKNOWN) if match else UNKNOWN
