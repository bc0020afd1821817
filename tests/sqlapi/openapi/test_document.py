"""The document describes everything that exists, and nothing else."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from django.test import override_settings
from django.urls import include
from django.urls import path as django_path
from rest_framework.permissions import AllowAny
from rest_framework.test import APIClient

import authkeys
import sqlapi
from authkeys.errors import AuthKeysError, NotPermittedError
from datasources.control import DatasetState, RefreshRun
from datasources.errors import DatasetError, DatasetsUnavailableError, UnknownDatasetError
from httpserver.http_requests import REFUSALS
from queryengine.engine import ActiveQuery
from queryengine.errors import EngineBusyError, EngineUnavailableError, ParameterError, QueryError, RateLimitError
from runtimeconf.errors import RuntimeConfError
from sqlapi import errors as api
from sqlapi.error_table import INTERNAL_CODE, STATUSES
from sqlapi.negotiation import OFFERS, QueryParameter
from sqlapi.problems import COMMON_HEADERS
from sqlapi.status import OPENAPI
from sqlapi.urls import ROUTES
from system.errors import StateDirectoryError
from telemetry import history, statistics
from telemetry.errors import TelemetryError
from tests.sqlapi.harness import WITH_KEY, call, methods_of

DOCUMENT: dict[str, Any] = json.loads(OPENAPI.read_text())
SCHEMAS = DOCUMENT["components"]["schemas"]
EXPLANATIONS = Path(__file__).parents[3].joinpath("docs", "http.md").read_text()

#: Headers that describe the connection, the body, the credential or the accepted formats: OpenAPI has other places for
#: these, or none.
NO_PARAMETERS = {
    *("Accept", "Authorization", "Content-Encoding", "Host", "Origin", "Sec-Fetch-Site", "Transfer-Encoding"),
    *("X-API-Key", "X-Forwarded-For"),
}

#: The status of each code.
STATUS_OF = {
    **{kind.code: status for kind, status in STATUSES.items()},  # type: ignore[attr-defined]
    **{code: status for _, status, code, _ in REFUSALS},
    "missing_key": 401,
    "invalid_key": 401,
    INTERNAL_CODE: 500,
}

#: Nobody receives these: the client is gone, or its answer has begun with another status.
LOG_ONLY = {api.ClientGoneError.code, api.AnswerCutError.code}


def codes_of(*bases: type[Exception]) -> set[str]:
    """Return the codes of *bases* and their subclasses."""
    return {kind.code for kind in STATUSES if issubclass(kind, bases)} - LOG_ONLY  # type: ignore[attr-defined]


OF_EVERY_ROUTE = {INTERNAL_CODE, *(code for _, _, code, _ in REFUSALS)} | codes_of(
    api.MethodNotAllowedError, RuntimeConfError, StateDirectoryError
)
OF_ROUTES_WITH_A_KEY = (
    {"missing_key", "invalid_key", api.SqlApiError.code}
    | codes_of(api.InvalidHostError, api.CrossSiteRequestError, api.InvalidParameterError, RateLimitError)
    | codes_of(AuthKeysError)
) - codes_of(NotPermittedError)
OF_STATEMENTS = codes_of(QueryError, NotPermittedError) - codes_of(RateLimitError)
OF_WHAT_IS_REMEMBERED = codes_of(NotPermittedError, api.HistoryDisabledError, TelemetryError)

#: What else the operations may answer.
OF_THE_OPERATION: Mapping[str, set[str]] = {
    "runStatement": OF_STATEMENTS | codes_of(api.BodyError, api.NotAcceptableError),
    "listActiveStatements": {EngineUnavailableError.code},
    "listHistory": OF_WHAT_IS_REMEMBERED,
    "getStatistics": OF_WHAT_IS_REMEMBERED,
    # A parameter of the path that is empty or holds a slash makes another path.
    "cancelStatement": {EngineUnavailableError.code} | codes_of(api.QueryNotFoundError, api.RouteNotFoundError),
    "sendMcpMessage": {EngineUnavailableError.code, EngineBusyError.code, api.RouteNotFoundError.code}
    | codes_of(api.BodyError) - codes_of(api.CharsetError, api.InvalidJsonError),
    "listDatasets": codes_of(DatasetsUnavailableError),
    "listRefreshes": codes_of(DatasetsUnavailableError, UnknownDatasetError, api.RouteNotFoundError),
    "requestRefresh": OF_STATEMENTS - codes_of(ParameterError)
    | codes_of(DatasetError, api.BodyError, api.RouteNotFoundError) - codes_of(api.CharsetError),
}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, method and description of each operation in the document."""
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """Return *node*, or what it refers to."""
    found: Any = DOCUMENT if "$ref" in node else node
    for name in node.get("$ref", "").split("/")[1:]:
        found = found[name]
    return dict(found)


def error_codes(operation: dict[str, Any]) -> dict[str, int]:
    """Return the error codes of an operation with their statuses."""
    found: dict[str, int] = {}
    for status, response in operation["responses"].items():
        problem = resolved(response).get("content", {}).get("application/problem+json")
        if problem is not None:
            narrowed = problem["schema"]["allOf"][1]["properties"]
            assert narrowed["status"] == {"const": int(status)}
            found |= dict.fromkeys(narrowed["code"]["enum"], int(status))
    return found


def target_of(path: str) -> str:
    return re.sub(r"{\w+}", "Orders", path)


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
def test_it_is_served_with_the_prefix_under_which_a_project_includes_the_routes(
    prefix: str, script_name: str, url: str
) -> None:
    with override_settings(ROOT_URLCONF=(django_path(prefix, include("sqlapi.urls")),)):
        answer = APIClient().get(f"/{prefix}v1/openapi.json", headers=dict([WITH_KEY]), SCRIPT_NAME=script_name)

    assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")
    assert answer.json() == DOCUMENT | {"servers": [{"url": url}]}


@pytest.mark.exhaustive
def test_it_is_valid() -> None:
    # It takes four seconds of each process of tests to import.
    from openapi_spec_validator import OpenAPIV31SpecValidator  # noqa: PLC0415

    urls = [{"url": url} for url in ("/", "/data", "/a%20b/d%7Bx%7D")]
    assert list(OpenAPIV31SpecValidator({**DOCUMENT, "servers": urls}).iter_errors()) == []


def test_every_route_and_method_is_described_with_its_need_of_a_key() -> None:
    needs = {
        (route.template, method): AllowAny not in route.view.permission_classes
        for route in ROUTES
        for method in methods_of(route)
        if method != "HEAD"
    }

    assert {(path, method): operation.get("security") != [] for path, method, operation in operations()} == needs
    for path, _, operation in operations():
        in_path = {node["name"] for node in map(resolved, operation["parameters"]) if node["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))


@pytest.mark.parametrize("operation", [pytest.param(each[2], id=each[2]["operationId"]) for each in operations()])
def test_each_operation_lists_its_error_codes(operation: dict[str, Any]) -> None:
    needs_key = operation.get("security") != []
    own = OF_THE_OPERATION.get(operation["operationId"], set())
    expected = OF_EVERY_ROUTE | (OF_ROUTES_WITH_A_KEY if needs_key else set()) | own

    assert error_codes(operation) == {code: STATUS_OF[code] for code in expected}


def test_every_error_code_is_described_and_explained_in_the_same_words() -> None:
    described = {each["const"]: each["description"] for each in SCHEMAS["ErrorCode"]["oneOf"]}
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \| (.*) \|$", EXPLANATIONS, re.MULTILINE)
    explained = {code: re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", when) for _, code, when in rows}

    assert {code: int(status) for status, code, _ in rows} == STATUS_OF
    assert {code: when for code, when in explained.items() if code not in LOG_ONLY} == described
    assert set(described) == {code for _, _, operation in operations() for code in error_codes(operation)}


def test_every_format_of_a_result_is_described() -> None:
    formats = DOCUMENT["paths"]["/v1/sql"]["post"]["responses"]["200"]["content"]

    assert list(formats) == [offer.media_type for offer in OFFERS]


def test_every_request_header_that_is_read_is_described() -> None:
    folders = [Path(package.__path__[0]) for package in (sqlapi, authkeys)]
    source = "".join(file.read_text() for folder in folders for file in folder.rglob("*.py"))
    read = {name.replace("_", "-").lower() for name in re.findall(r"\bHTTP_([A-Z_]+)\b", source)}

    assert read == {name.lower() for name in NO_PARAMETERS | set(DOCUMENT["components"]["parameters"])}


def test_every_response_header_is_described() -> None:
    page = EXPLANATIONS.partition("\n## Headers\n")[2].partition("\n## Errors\n")[0]

    explained = {name for row in re.findall(r"^\|(.*?)\|", page, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)}
    headers = DOCUMENT["components"]["headers"]
    assert explained == set(headers)
    assert {name: headers[name]["schema"]["const"] for name in COMMON_HEADERS} == COMMON_HEADERS


def test_no_module_but_the_one_that_declares_parameters_reads_a_query_string() -> None:
    readers = {
        file.name
        for file in Path(sqlapi.__path__[0]).rglob("*.py")
        if re.search(r"QUERY_STRING|parse_qs|query_params|request\.GET", file.read_text())
    }

    assert readers == {"negotiation.py"}


@pytest.mark.usefixtures("memory")
def test_each_operation_reads_the_parameters_and_values_that_are_described() -> None:
    tried = {
        "format": ["json", "csv", "ndjson", "jsonl", "arrow", "vnd", "JSON", "CSV", "xml"],
        "limit": ["-1", "0", "1", "1000", "1001", "1.0", "ten", "\u0661", "9" * 5000],
    }

    for path, method, operation in operations():
        named = {
            each["name"]: each["schema"] for each in map(resolved, operation["parameters"]) if each["in"] == "query"
        }
        assert set(named) <= set(tried)
        for name, values in tried.items():
            for value in (*values, "%00", ""):
                answer = call(method, f"{target_of(path)}?{name}={value}", WITH_KEY)
                refused = answer.status == 400 and b'"code": "invalid_parameter"' in answer.body
                assert refused == (name in named and not is_described(value, named[name])), (path, name, value)


def is_described(value: str, schema: dict[str, Any]) -> bool:
    if schema["type"] == "integer":
        return (
            value.isascii()
            and value.isdecimal()
            and len(value) < 5
            and schema["minimum"] <= int(value) <= schema["maximum"]
        )
    return value in schema["enum"]


@pytest.mark.parametrize(
    ("name", "kind"), [("Dataset", DatasetState), ("Refresh", RefreshRun), ("ActiveStatement", ActiveQuery)]
)
def test_the_fields_of_a_row_have_the_types_of_its_class(name: str, kind: type) -> None:
    types = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", type(None): "null"}
    properties = SCHEMAS[name]["properties"]

    for hint, described in zip(get_type_hints(kind).values(), properties.values(), strict=True):
        kinds = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
        literals = [value for each in kinds if get_origin(each) is Literal for value in get_args(each)]
        names = {"string" if get_origin(each) is Literal else types[get_origin(each) or each] for each in kinds}
        assert ({described["type"]} if isinstance(described["type"], str) else set(described["type"])) == names
        assert [value for value in described.get("enum", []) if value is not None] == literals
    assert SCHEMAS[name]["required"] == list(properties)


def test_the_fields_of_what_is_remembered_are_described() -> None:
    assert tuple(SCHEMAS["EndedStatement"]["properties"]) == history.COLUMNS
    assert tuple(SCHEMAS["AlikeStatements"]["properties"]) == statistics.COLUMNS


@pytest.mark.usefixtures("memory")
def test_the_fields_of_a_body_are_those_that_are_described() -> None:
    for path, method, operation in operations():
        json_body = operation.get("requestBody", {"content": {}})["content"].get("application/json")
        if json_body is not None and path != "/v1/mcp":  # Its messages have any fields, and it is off here.
            headers = (WITH_KEY, ("Content-Type", "application/json"))
            answer = call(method, target_of(path), *headers, body=json.dumps({"": 1}).encode())
            names = answer.json()["detail"].partition("the fields are ")[2]
            assert re.findall(r'"(\w+)"', names) == list(resolved(json_body["schema"])["properties"])


def test_a_query_parameter_sent_twice_or_among_too_many_is_refused() -> None:
    parameter = QueryParameter(name="n", parse=int, refusal="One number.")

    assert parameter.read({"QUERY_STRING": "m=x&n=7"}) == 7
    assert parameter.read({"QUERY_STRING": "m=x"}) is parameter.read({}) is None
    for text in ("n=1&n=1", "n=x", "n=1&" + "&".join("a" * 100)):
        with pytest.raises(api.InvalidParameterError):
            parameter.read({"QUERY_STRING": text})
