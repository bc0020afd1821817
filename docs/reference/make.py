"""Write `openapi.json`, from it the page `http-api.md`, and `datafusion.md`: `make reference` runs this."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django

REFERENCE = Path(__file__).parent
Node = dict[str, Any]

_HEAD = """\
# HTTP API reference

`make reference` made this page from [`openapi.json`](openapi.json), which a runtime serves as `GET /v1/openapi.json`.
[HTTP API](../http.md) explains what is only listed here.
"""

#: Headers that every route reads.
_READ_ALWAYS = ("X-Request-Id", "traceparent")

#: How the page names the schemas that have no table of fields.
_WORDS = {
    "ErrorCode": "an [error code](#error-codes)",
    "OpenApi": "an OpenAPI 3.1 document",
    "Rows": "an array with one object per row",
}


def openapi_json(document: Node) -> str:
    """Return the text of `openapi.json`."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def page(document: Node) -> str:
    """Return the text of `http-api.md`."""
    return "\n".join(_lines(document))


def _lines(document: Node) -> Iterator[str]:
    components = document["components"]
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    yield _HEAD
    for tag in document["tags"]:
        yield f"**{tag['name']}.** {tag['description']}\n"
        yield "| Route | Purpose |\n|---|---|"
        for path, method, operation in operations:
            if tag["name"] in operation["tags"]:
                yield f"| [`{method.upper()} {path}`](#{_anchor(method, path)}) | {operation['summary']} |"
        yield ""
    open_codes = set.intersection(*(set(error_codes(document, operation)) for _, _, operation in operations))
    keyed = [operation for _, _, operation in operations if operation.get("security") != []]
    keyed_codes = set.intersection(*(set(error_codes(document, operation)) for operation in keyed))
    for path, method, operation in operations:
        yield from _operation(document, f"{method.upper()} {path}", operation, keyed_codes)
    yield "## Headers of requests\n"
    yield f"Every route reads {' and '.join(f'`{name}`' for name in _READ_ALWAYS)}.\n"
    yield "| Header | Meaning |\n|---|---|"
    for name, parameter in components["parameters"].items():
        yield f"| `{name}` | {parameter['description']} |"
    yield "\n## Headers of responses\n"
    yield "| Header | Meaning |\n|---|---|"
    for name, header in components["headers"].items():
        yield f"| `{name}` | {header['description']} |"
    yield "\n## Objects\n"
    for name, schema in components["schemas"].items():
        if "properties" in schema and name != "OpenApi":
            yield from _object(name, schema)
    yield "## Error codes\n"
    yield "Every route may send those marked with *, and every route that needs a key those marked with +.\n"
    yield "| `code` | Status | When |\n|---|---|---|"
    statuses = {
        code: status for _, _, operation in operations for code, status in error_codes(document, operation).items()
    }
    for listed in components["schemas"]["ErrorCode"]["oneOf"]:
        code = listed["const"]
        mark = " *" if code in open_codes else " +" if code in keyed_codes else ""
        yield f"| `{code}`{mark} | {statuses[code]} | {listed['description']} |"
    yield ""


def _operation(document: Node, heading: str, operation: Node, common: set[str]) -> Iterator[str]:
    yield f"## {heading}\n"
    key = "" if operation.get("security") != [] else " Needs no key."
    text = operation.get("description", "")
    yield f"{operation['summary']}.{' ' if text else ''}{text}{key}\n"
    yield "| | | |\n|---|---|---|"
    for parameter in (resolved(document, parameter) for parameter in operation["parameters"]):
        place = {"path": "path", "query": "query string", "header": "header"}[parameter["in"]]
        if parameter["name"] not in _READ_ALWAYS:
            yield f"| {place} | `{parameter['name']}`{_values(parameter['schema'])} | {parameter['description']} |"
    body = operation.get("requestBody", {"content": {}})
    for media_type, content in body["content"].items():
        yield f"| body | `{media_type}` | {_shape(content['schema'])} |"
    for status, response in operation["responses"].items():
        for media_type, content in response.get("content", {}).items():
            if media_type != "application/problem+json":
                yield f"| {status} | `{media_type}` | {_shape(content.get('schema', {}))} |"
    own = {code: status for code, status in error_codes(document, operation).items() if code not in common}
    for status in sorted(set(own.values())):
        yield f"| {status} | error | {', '.join(f'`{code}`' for code in own if own[code] == status)} |"
    yield ""


def _object(name: str, schema: Node) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{schema['description']}\n"
    yield "| Field | Type | Meaning |\n|---|---|---|"
    for field, described in schema["properties"].items():
        optional = "" if field in schema.get("required", ()) else ", optional"
        yield f"| `{field}` | {_type(described)}{optional} | {described.get('description', '')} |"
    yield ""


def _type(schema: Node) -> str:
    if "$ref" in schema:
        return _shape(schema)
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"array of {_type(schema['items'])}" if "items" in schema else "array"
    if "properties" in schema:
        return "object: " + ", ".join(f"`{name}`" for name in schema["properties"])
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return " or ".join(names) + (", time" if schema.get("format") == "date-time" else "")


def _values(schema: Node) -> str:
    return f": {', '.join(f'`{value}`' for value in schema['enum'])}" if "enum" in schema else ""


def _shape(schema: Node) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _WORDS.get(name, f"[{name}](#{name.lower()})")
    if schema.get("type") == "array":
        return f"an array of {_shape(schema['items'])}"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    return str(schema.get("description", "an Arrow IPC stream"))


def error_codes(document: Node, operation: Node) -> dict[str, str]:
    """Return the error codes of an operation with their statuses."""
    found = {}
    for status, response in operation["responses"].items():
        content = resolved(document, response)["content"].get("application/problem+json")
        for code in content["schema"]["allOf"][1]["properties"]["code"]["enum"] if content else ():
            found[code] = status
    return found


def resolved(document: Node, node: Node) -> Node:
    """Return *node*, or what it refers to."""
    if "$ref" not in node:
        return node
    found: Any = document
    for name in node["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return dict(found)


def _anchor(method: str, path: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return f"{method}-{''.join(c for c in path if c.isalnum() or c in '_-')}"


def main() -> None:
    """Write the files."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "runtime_site.settings")
    django.setup()
    from docs.reference.datafusion import page as datafusion  # noqa: PLC0415
    from sqlapi.openapi.document import document  # noqa: PLC0415 (after Django is set up)

    REFERENCE.joinpath("openapi.json").write_text(openapi_json(document()))
    REFERENCE.joinpath("http-api.md").write_text(page(document()))
    datafusion.PAGE.write_text(datafusion.page())


if __name__ == "__main__":
    main()
