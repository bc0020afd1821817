"""The URL patterns: one for each of `sqlapi.routes`, and one for every other path."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from sqlapi import views
from sqlapi.routes import ROUTES, UNKNOWN

VIEWS: dict[str, type[views.ApiView]] = {
    "health": views.HealthView,
    "ready": views.ReadyView,
    "sql": views.SqlView,
    "active": views.ActiveView,
    "cancel": views.CancelView,
    "status": views.StatusView,
    "datasets": views.DatasetsView,
    "refresh": views.RefreshView,
    "catalogs": views.CatalogsView,
}

urlpatterns: list[URLPattern] = [
    *(path(route.pattern, VIEWS[route.name].as_view(), name=route.name) for route in ROUTES),
    re_path("", views.UnknownView.as_view(), name=UNKNOWN),
]
