"""Calls the WSGI application as a server does, with any headers, path and input."""

import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes
from wsgiref.util import setup_testing_defaults

import pytest

from sqlapi.errors import AnswerCutError
from sqlapi.urls import Route
from sqlapi.wsgi_handler import ApiHandler
from tests.system.harness import K1

Header = tuple[str, str | bytes]
WITH_KEY: Header = ("X-API-Key", K1)


@dataclass
class Answer:
    """What a client gets. `is_cut` if the application truncated the answer."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    is_cut: bool = False
    environ: dict[str, Any] = field(default_factory=dict)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a problem document, after a check of its shape."""
        assert self.headers["Content-Type"] == "application/problem+json", self.body
        document = self.json()
        assert list(document) == ["type", "title", "status", "detail", "code", "request_id"]
        assert document["status"] == self.status
        assert document["request_id"] == self.headers["X-Request-Id"]
        assert "Traceback" not in document["detail"]
        return str(document["code"])

    def without_request_id(self) -> bytes:
        return self.body.replace(self.headers["X-Request-Id"].encode(), b"")


def environ_of(method: str, target: str, headers: Iterable[Header], body: bytes) -> dict[str, Any]:
    """Return an environ like gunicorn's: header names in upper case, repeated values joined with a comma."""
    path, _, query = target.partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_HOST": "localhost:8090",
        "wsgi.input": io.BytesIO(body),
        "wsgi.input_terminated": True,
    }
    setup_testing_defaults(environ)
    if body:
        environ["CONTENT_LENGTH"] = str(len(body))
    given: dict[str, str] = {}
    for name, value in headers:
        key = name.upper().replace("-", "_")
        key = key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        given[key] = f"{given[key]},{text}" if key in given else text
    return environ | given


def methods_of(route: Route) -> tuple[str, ...]:
    """Return the methods that the view of *route* handles, sorted."""
    handled = {name.upper() for name in route.view.http_method_names if hasattr(route.view, name)}
    return tuple(sorted(handled | ({"HEAD"} if "GET" in handled else set())))


_application = ApiHandler()


def _write(data: bytes) -> None:
    raise AssertionError("PEP 3333: new applications do not write")


def begin(environ: dict[str, Any]) -> tuple[Answer, Any]:
    """Send a request; return the answer without a body, and the pieces of the body, which the caller closes."""
    answer = Answer(0, {}, environ=environ)

    def start_response(
        status: str, fields: list[tuple[str, str]], exc_info: object = None, /
    ) -> Callable[[bytes], Any]:
        answer.status = int(status.split(" ", 1)[0])
        answer.headers = dict(fields)
        assert len(answer.headers) == len(fields)
        assert exc_info is None
        return _write

    return answer, _application(environ, start_response)


def call(
    method: str,
    target: str,
    *headers: Header,
    body: bytes = b"",
    environ: Mapping[str, Any] | None = None,
    chunks: int | None = None,
) -> Answer:
    """Send a request and read the answer, or only its first *chunks* pieces, and close it as a server does."""
    answer, pieces = begin({**environ_of(method, target, headers, body), **(environ or {})})
    try:
        for count, piece in enumerate(pieces):
            if count == chunks:
                break
            answer.body += piece
    except AnswerCutError:
        answer.is_cut = True
    finally:
        pieces.close()
    return answer


def sql(statement: str | bytes, *headers: Header, key: str | None = K1, **options: Any) -> Answer:
    """POST a statement."""
    given: list[Header] = [] if key is None else [("X-API-Key", key)]
    body = statement.encode() if isinstance(statement, str) else statement
    return call("POST", "/v1/sql", *given, *headers, body=body, **options)


def logged(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    """Return the fields of each line of the logger *name*."""
    return [record.fields for record in caplog.records if record.name == name]  # type: ignore[attr-defined]
