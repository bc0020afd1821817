"""The table of routes, used by the URL patterns, the access log and a test of the documentation."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import ResolverMatch

READ_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path and its methods: `pattern` for Django, `template` for the documentation and the access log."""

    name: str
    pattern: str
    template: str
    methods: tuple[str, ...]


ROUTES = (
    Route(name="health", pattern="health", template="/health", methods=READ_METHODS),
    Route(name="ready", pattern="v1/ready", template="/v1/ready", methods=READ_METHODS),
    Route(name="sql", pattern="v1/sql", template="/v1/sql", methods=("POST",)),
    Route(name="active", pattern="v1/sql/active", template="/v1/sql/active", methods=READ_METHODS),
    Route(
        name="cancel", pattern="v1/sql/<str:query_id>/cancel", template="/v1/sql/{query_id}/cancel", methods=("POST",)
    ),
    Route(name="status", pattern="v1/status", template="/v1/status", methods=READ_METHODS),
    Route(name="datasets", pattern="v1/datasets", template="/v1/datasets", methods=READ_METHODS),
    Route(
        name="refresh",
        pattern="v1/datasets/<str:name>/acceleration/refresh",
        template="/v1/datasets/{name}/acceleration/refresh",
        methods=("GET", "HEAD", "POST"),
    ),
    Route(name="catalogs", pattern="v1/catalogs", template="/v1/catalogs", methods=READ_METHODS),
)

#: The name of the pattern for every other path.
UNKNOWN = "unknown"

_BY_NAME = {route.name: route for route in ROUTES}


def route_name(match: ResolverMatch | None) -> str:
    """Return the name of a request's route in the access log."""
    route = _BY_NAME.get(match.url_name or "") if match else None
    return route.template if route else UNKNOWN
