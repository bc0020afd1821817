"""The route table: the URL patterns, a catch-all pattern for all other paths, and the route names in the access log."""

import re

from django.urls import ResolverMatch, URLPattern, path, re_path
from msgspec import Struct

from sqlapi import datasets, mcp, statements, status
from sqlapi.api_view import ApiView, UnknownView


class Route(Struct, frozen=True):
    """A path with parameters in braces, and its view. The audit log shows the name, the access log the template."""

    name: str
    template: str
    view: type[ApiView]

    @property
    def pattern(self) -> str:
        """The path in Django's syntax."""
        return re.sub(r"{(\w+)}", r"<str:\1>", self.template).removeprefix("/")


ROUTES = (
    Route("health", "/health", status.HealthView),
    Route("ready", "/v1/ready", status.ReadyView),
    Route("sql", "/v1/sql", statements.SqlView),
    Route("active", "/v1/sql/active", statements.ActiveView),
    Route("history", "/v1/sql/history", statements.HistoryView),
    Route("statistics", "/v1/sql/statistics", statements.StatisticsView),
    Route("cancel", "/v1/sql/{query_id}/cancel", statements.CancelView),
    Route("status", "/v1/status", status.StatusView),
    Route("datasets", "/v1/datasets", datasets.DatasetsView),
    Route("refresh", "/v1/datasets/{name}/acceleration/refresh", datasets.RefreshView),
    Route("key", "/v1/key", status.KeyView),
    Route("catalogs", "/v1/catalogs", datasets.CatalogsView),
    Route("mcp", "/v1/mcp", mcp.McpView),
    Route("openapi", "/v1/openapi.json", status.OpenApiView),
)

#: The name of the catch-all pattern.
UNKNOWN = "unknown"

_TEMPLATES = {route.name: route.template for route in ROUTES}

urlpatterns: list[URLPattern] = [
    *(path(route.pattern, route.view.as_view(), name=route.name) for route in ROUTES),
    re_path("", UnknownView.as_view(), name=UNKNOWN),
]


def route_name(match: ResolverMatch | None) -> str:
    """Return the name of a request's route in the access log."""
    return _TEMPLATES.get(match.url_name or "", UNKNOWN) if match else UNKNOWN
