"""The differences between our WSGI handler and Django's: fixed paths, and requests that are freed at once."""

import gc

import pytest
from django.http import HttpRequest
from django.test import RequestFactory, override_settings
from django.urls import get_resolver, include
from django.urls import path as django_path

from sqlapi.urls import ROUTES
from sqlapi.wsgi_handler import ApiHandler
from tests.sqlapi.harness import call, sql

pytestmark = pytest.mark.usefixtures("idle")

PATHS = [f"/{route.pattern}".replace("<str:name>", "a").replace("<str:query_id>", "b") for route in ROUTES]


@pytest.mark.parametrize("path", [*PATHS, *(f"{path}/" for path in PATHS), "/", "/V1/sql", "//v1/sql", "/nope"])
def test_every_path_resolves_as_in_the_url_patterns(path: str) -> None:
    request = RequestFactory().get("/")
    request.path_info = path

    found = ApiHandler().resolve_request(request)

    expected = get_resolver().resolve(path)
    for name in ("func", "args", "kwargs", "url_name"):
        assert getattr(found, name) == getattr(expected, name)
    assert request.resolver_match is found


def test_a_project_may_have_the_routes_elsewhere() -> None:
    request = RequestFactory().get("/data/v1/sql")

    with override_settings(ROOT_URLCONF=(django_path("data/", include("sqlapi.urls")),)):
        found = ApiHandler().resolve_request(request)

    assert found.url_name == "sql"


def requests_in_memory() -> list[HttpRequest]:
    return [kept for kept in gc.get_objects() if issubclass(type(kept), HttpRequest)]


def test_requests_are_freed_without_the_garbage_collector() -> None:
    sql("SELECT 1")  # Creates whatever is created once.
    gc.collect()
    before = requests_in_memory()  # Other tests may still hold some.
    gc.disable()
    try:
        sql("SELECT 1")
        call("POST", "/v1/sql", body=b"SELECT 1")
        assert set(map(id, requests_in_memory())) <= set(map(id, before))
    finally:
        gc.enable()
