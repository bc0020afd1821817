"""Builds the document from the routes and what describes them."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from rest_framework.permissions import AllowAny

from sqlapi.openapi.error_codes import by_status
from sqlapi.openapi.headers import (
    RATE_LIMIT,
    READ_ALWAYS,
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    SENT_ALWAYS,
    headers_of_error,
)
from sqlapi.openapi.operations import (
    KEYED_CODES,
    OPEN_CODES,
    OPERATIONS,
    PATH_PARAMETERS,
    TAGS,
    Operation,
    Success,
)
from sqlapi.openapi.schemas import SCHEMAS, reference
from sqlapi.problems import CONTENT_TYPE, title
from sqlapi.urls import ROUTES, Route

Node = dict[str, Any]

_ABOUT = """\
SQL over HTTP, behind API keys. HEAD returns what GET returns, without a body, on each of these paths.

While authentication is on, every path but `/health` and `/v1/ready` needs a key. While it is off, none does. Without a
valid key, every other path and method gets the same 401. Routes and fields may be added: ignore those you do not know.
"""

_SECURITY_SCHEMES: Mapping[str, Node] = {
    "ApiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "If it is present and not empty, it alone decides.",
    },
    "Bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": 'The same key. Not with `runtime.compatibility: "1.10"`.',
    },
}


@cache
def document() -> Node:
    """
    Return the document. Do not change it.

    Raises:
        KeyError: A route, an error code or a field has no description.
    """
    paths: Node = {}
    for route in ROUTES:
        for method in ("get", "post"):
            if hasattr(route.view, method):
                paths.setdefault(route.template, {})[method] = _operation(route, OPERATIONS[route.name, method.upper()])
    shared = {
        _name(status): _problem(status, codes, (), needs_key=True) for status, codes in by_status(KEYED_CODES).items()
    }
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "Querykeep",
            "summary": "SQL over HTTP, behind API keys",
            "description": _ABOUT,
            "version": "1",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{name: []} for name in _SECURITY_SCHEMES],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "responses": shared,
            "parameters": {name: _header_parameter(name) for name in REQUEST_HEADERS},
            "headers": {name: _header(name) for name in RESPONSE_HEADERS},
            "securitySchemes": dict(_SECURITY_SCHEMES),
        },
    }


def _operation(route: Route, operation: Operation) -> Node:
    needs_key = AllowAny not in route.view.permission_classes
    described: Node = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.description,
        "security": [] if not needs_key else None,
        "parameters": [
            *(_path_parameter(name) for name in re.findall(r"{(\w+)}", route.template)),
            *(
                {"name": read.name, "in": "query", "description": read.description, "schema": dict(read.schema)}
                for read in operation.query
            ),
            *({"$ref": f"#/components/parameters/{name}"} for name in (*READ_ALWAYS, *operation.headers)),
        ],
        "requestBody": operation.body and {"required": operation.body_required, "content": dict(operation.body)},
        "responses": _responses(operation, needs_key=needs_key),
    }
    return {name: value for name, value in described.items() if value not in (None, "")}


def _responses(operation: Operation, *, needs_key: bool) -> Node:
    found: Node = {str(success.status): _success(success, needs_key=needs_key) for success in operation.successes}
    common = by_status(KEYED_CODES if needs_key else OPEN_CODES)
    for status, codes in by_status((*(KEYED_CODES if needs_key else OPEN_CODES), *operation.codes)).items():
        is_shared = needs_key and codes == common.get(status)
        problem = {"$ref": f"#/components/responses/{_name(status)}"} if is_shared else None
        found[str(status)] = problem or _problem(status, codes, operation.error_headers, needs_key=needs_key)
    return dict(sorted(found.items()))


def _success(success: Success, *, needs_key: bool) -> Node:
    return {
        "description": success.description,
        "headers": _headers(success.headers, (*success.optional_headers, *(RATE_LIMIT if needs_key else ()))),
        "content": dict(success.content),
    }


def _problem(status: int, codes: list[str], optional_headers: Iterable[str], *, needs_key: bool) -> Node:
    always, sometimes = headers_of_error(status, codes)
    sometimes = (*sometimes, *optional_headers)
    narrowed = {"properties": {"status": {"const": status}, "code": {"enum": codes}}}
    return {
        "description": f"{title(status)}: {', '.join(f'`{code}`' for code in codes)}",
        "headers": _headers(always, (*sometimes, *(RATE_LIMIT if needs_key and status != 401 else ()))),
        "content": {CONTENT_TYPE: {"schema": {"allOf": [reference("Problem"), narrowed]}}},
    }


def _name(status: int) -> str:
    return re.sub(r"\W", "", title(status).title())


def _headers(always: Iterable[str], sometimes: Iterable[str]) -> Node:
    described = {name: {"$ref": f"#/components/headers/{name}"} for name in (*SENT_ALWAYS, *sometimes)}
    return described | {name: {**_header(name), "required": True} for name in always}


def _header(name: str) -> Node:
    header = RESPONSE_HEADERS[name]
    described = {"description": header.description, "schema": dict(header.schema)}
    return described | {"required": True} if name in SENT_ALWAYS else described


def _header_parameter(name: str) -> Node:
    header = REQUEST_HEADERS[name]
    return {"name": name, "in": "header", "description": header.description, "schema": dict(header.schema)}


def _path_parameter(name: str) -> Node:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": PATH_PARAMETERS[name],
        "schema": {"type": "string"},
    }
