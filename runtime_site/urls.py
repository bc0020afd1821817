"""Every route of the runtime."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
