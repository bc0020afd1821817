"""The smallest program that responds to a POST on the same web server: a WSGI application with one function."""

from collections.abc import Callable, Iterable
from typing import Any


def application(
    environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    """Read the body and answer a constant."""
    environ["wsgi.input"].read()
    body = b'[{"1":1}]'
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
