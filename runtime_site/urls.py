"""Every route of the runtime."""

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [path("", include("sqlapi.urls"))]

# Django's own refusals also get problem bodies. There is no handler404 because one pattern matches every path.
handler400 = "sqlapi.problems.bad_request"
handler500 = "sqlapi.problems.server_error"
