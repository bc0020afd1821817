"""Every route of the runtime."""

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [path("", include("sqlapi.urls"))]

# What Django itself refuses has the shape of every other refusal. A 404 of Django's cannot be: one pattern takes all.
handler400 = "sqlapi.handlers.bad_request"
handler500 = "sqlapi.handlers.server_error"
