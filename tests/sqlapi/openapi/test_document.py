"""The document describes everything that exists, and nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from django.urls import include
from django.urls import path as django_path
from openapi_spec_validator import OpenAPIV31SpecValidator
from rest_framework.test import APIClient

import authkeys
import sqlapi.errors
from docs.reference import make
from httpserver.refusals import REFUSALS
from sqlapi.error_table import INTERNAL_CODE, STATUSES
from sqlapi.openapi.document import document
from sqlapi.openapi.error_codes import LOG_ONLY, STATUS_OF, WHEN
from sqlapi.openapi.headers import REQUEST_HEADERS, RESPONSE_HEADERS
from sqlapi.openapi.operations import OPERATIONS, PATH_PARAMETERS
from sqlapi.problems import COMMON_HEADERS
from sqlapi.query_parameters import QueryParameter
from sqlapi.urls import ROUTES
from telemetry import history, statistics
from tests.sqlapi.harness import WITH_KEY, call, methods_of

DOCS = Path(__file__).resolve().parents[3] / "docs"
EXPLANATIONS = (DOCS / "http.md").read_text()
OPERATION_IDS = {operation.id: key for key, operation in OPERATIONS.items()}

#: Headers that describe the connection, the body, the credential or the accepted formats: OpenAPI has other places for
#: these, or none.
NO_PARAMETERS = {
    "Accept",
    "Authorization",
    "Content-Encoding",
    "Host",
    "Origin",
    "Sec-Fetch-Site",
    "Transfer-Encoding",
    "X-API-Key",
    "X-Forwarded-For",
}


def described() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, method and description of each operation in the document."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def target_of(path: str) -> str:
    return re.sub(r"{\w+}", "Orders", path)


def test_it_is_valid_openapi() -> None:
    assert list(OpenAPIV31SpecValidator(document()).iter_errors()) == []


@pytest.mark.usefixtures("idle")
def test_it_is_served_with_a_key_and_committed_with_its_page() -> None:
    answer = call("GET", "/v1/openapi.json", WITH_KEY)

    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.json() == document()
    assert call("GET", "/v1/openapi.json").code == "missing_key"
    # `make reference` writes both.
    assert (DOCS / "reference" / "openapi.json").read_text() == make.openapi_json(document())
    assert (DOCS / "reference" / "http-api.md").read_text() == make.page(document())


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("prefix", "script_name", "url"),
    [
        ("", "", "/"),
        ("data/", "", "/data"),
        ("a b/d{x}/", "", "/a%20b/d%7Bx%7D"),
        ("data/", "/shop", "/shop/data"),
    ],
)
def test_it_names_the_prefix_under_which_a_project_includes_the_routes(prefix: str, script_name: str, url: str) -> None:
    with override_settings(ROOT_URLCONF=(django_path(prefix, include("sqlapi.urls")),)):
        answer = APIClient().get(f"/{prefix}v1/openapi.json", headers=dict([WITH_KEY]), SCRIPT_NAME=script_name)

    described = answer.json()
    assert described["servers"] == [{"url": url}]
    assert described == json.loads(json.dumps(document())) | {"servers": [{"url": url}]}
    assert list(OpenAPIV31SpecValidator(described).iter_errors()) == []


def test_every_route_and_method_is_described() -> None:
    routes = {(route.template, method) for route in ROUTES for method in methods_of(route) if method != "HEAD"}

    assert {(path, method) for path, method, _ in described()} == routes
    assert set(OPERATIONS) == {
        (route.name, method) for route in ROUTES for path, method in routes if path == route.template
    }
    assert len(OPERATION_IDS) == len(OPERATIONS)


def test_every_error_code_is_described_and_sent_by_some_route() -> None:
    ours = {kind.code: status for kind, status in STATUSES.items()}  # type: ignore[attr-defined]
    servers = {code: status for _, status, code, _ in REFUSALS}
    sent = {code for _, _, operation in described() for code in make.error_codes(document(), operation)}

    assert set(WHEN) == set(STATUS_OF)
    assert {**ours, **servers, "missing_key": 401, "invalid_key": 401, INTERNAL_CODE: 500} == STATUS_OF
    assert sent == set(WHEN) - LOG_ONLY


def test_the_explanations_say_the_same_about_each_error_code() -> None:
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \| (.*) \|$", EXPLANATIONS, re.MULTILINE)

    plain = {code: (int(status), re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", when)) for status, code, when in rows}
    assert plain == {code: (STATUS_OF[code], when) for code, when in WHEN.items()}


def test_every_request_header_that_is_read_is_described() -> None:
    folders = [Path(package.__path__[0]) for package in (sqlapi, authkeys)]
    source = "".join(file.read_text() for folder in folders for file in folder.rglob("*.py"))
    read = {name.replace("_", "-").lower() for name in re.findall(r"\bHTTP_([A-Z_]+)\b", source)}

    assert read == {name.lower() for name in NO_PARAMETERS | set(REQUEST_HEADERS)}


def test_every_response_header_is_described() -> None:
    page = EXPLANATIONS.partition("\n## Headers\n")[2].partition("\n## Errors\n")[0]

    explained = {name for row in re.findall(r"^\|(.*?)\|", page, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)}
    assert explained == set(RESPONSE_HEADERS)
    assert set(COMMON_HEADERS) < set(RESPONSE_HEADERS)


def test_no_module_but_the_one_that_declares_parameters_reads_a_query_string() -> None:
    readers = {
        file.name
        for file in Path(sqlapi.__path__[0]).rglob("*.py")
        if re.search(r"QUERY_STRING|parse_qs|query_params|request\.GET", file.read_text())
    }

    assert readers == {"query_parameters.py"}
    assert set(PATH_PARAMETERS) == {name for route in ROUTES for name in re.findall(r"{(\w+)}", route.template)}


@pytest.mark.usefixtures("memory")
def test_each_operation_reads_the_parameters_that_are_described() -> None:
    declared = {parameter.name for operation in OPERATIONS.values() for parameter in operation.query}

    for path, method, operation in described():
        names = {parameter["name"] for parameter in operation["parameters"] if parameter.get("in") == "query"}
        for name in declared:
            answers = [call(method, f"{target_of(path)}?{name}={value}", WITH_KEY) for value in ("%00", "")]
            refused = [answer.status == 400 and answer.code == "invalid_parameter" for answer in answers]
            assert refused == [name in names] * 2, path


def test_the_fields_of_what_is_remembered_are_described() -> None:
    schemas = document()["components"]["schemas"]

    assert tuple(schemas["EndedStatement"]["properties"]) == history.COLUMNS
    assert tuple(schemas["AlikeStatements"]["properties"]) == statistics.COLUMNS


@pytest.mark.usefixtures("memory")
def test_the_fields_of_a_body_are_those_that_are_described() -> None:
    for path, method, operation in described():
        json_body = operation.get("requestBody", {"content": {}})["content"].get("application/json")
        if json_body is not None:
            schema = make.resolved(document(), json_body["schema"])
            headers = (WITH_KEY, ("Content-Type", "application/json"))
            answer = call(method, target_of(path), *headers, body=json.dumps({"": 1}).encode())
            fields = answer.json()["detail"].partition("the fields are ")[2]
            assert re.findall(r'"(\w+)"', fields) == list(schema["properties"])


def test_a_query_parameter_sent_twice_or_among_too_many_is_refused() -> None:
    described = QueryParameter(name="n", description="", schema={}, parse=int, refusal="One number.")

    assert described.read({"QUERY_STRING": "m=x&n=7"}) == 7
    assert described.read({"QUERY_STRING": "m=x"}) is described.read({}) is None
    for text in ("n=1&n=1", "n=x", "n=1&" + "&".join("a" * 100)):
        with pytest.raises(sqlapi.errors.InvalidParameterError):
            described.read({"QUERY_STRING": text})
