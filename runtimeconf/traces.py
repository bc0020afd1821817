"""`runtime.traces`: the collector that traces are sent to."""

import re
from typing import Any
from urllib.parse import urlsplit

from runtimeconf.addresses import parse_host
from runtimeconf.connector import Package
from runtimeconf.fields import DurationField, Field, InvalidValueError, ParsedField, Section, Setting
from runtimeconf.model import TracesConfig
from runtimeconf.network import parse_headers
from runtimeconf.secret_stores import holds_reference
from runtimeconf.validation import YamlPath, shown_name
from runtimeconf.yaml_nodes import Mapping, Node, Scalar

#: The library that exports traces. It is imported only in the process that exports them.
EXPORTER = Package("opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http~=1.45")

_SECRET_NAMES = re.compile(r"auth|cookie|key|pass|secret|token", re.IGNORECASE)


def _parse_endpoint(text: str) -> str:
    if not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidValueError
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidValueError from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise InvalidValueError
    if "@" in parts.netloc:
        raise InvalidValueError("remove the user and password: use headers")
    if "?" in text or "#" in text:
        raise InvalidValueError("remove the query")
    if parts.path.rstrip("/").endswith("/v1/traces"):
        raise InvalidValueError("remove /v1/traces")
    parse_host(parts.hostname)
    return text.rstrip("/")


def _parse_share(text: str) -> float:
    if re.fullmatch(r"1(\.0{1,9})?|0(\.[0-9]{1,9})?", text) is None:
        raise InvalidValueError
    return float(text)


#: An invalid URL may contain a password.
_ENDPOINT = ParsedField("the base URL of a collector, such as http://127.0.0.1:4318", _parse_endpoint, is_hidden=True)


class _HeadersField(Field[dict[str, str]]):
    """Header names and values. Secret references in values are resolved, and no error shows a value."""

    expected = "a mapping of header names to values"
    is_hidden = True

    def read(self, node: Node, path: YamlPath) -> dict[str, str] | None:
        if not isinstance(node, Mapping):
            self.refuse(node, path)
            return None
        headers: dict[str, str] = {}
        for entry in node.entries:
            where, value = path.field(shown_name(entry.name)), entry.value
            if not isinstance(value, Scalar) or value.is_null:
                where.fault(entry.line, "must be a string or a secret reference such as ${ secrets:name }")
                continue
            if _SECRET_NAMES.search(entry.name) and not holds_reference(value.text):
                where.warn(entry.line, "is in plain text: use a secret reference to keep it out of this file")
            text = where.resolve(value)
            if text is None:
                continue
            try:
                ((name, content),) = parse_headers(f"{entry.name}: {text}")
            except (InvalidValueError, ValueError):
                where.fault(
                    entry.line, "is not a valid header: use a name that can be set, and one line of printable ASCII"
                )
                continue
            if name.lower() in {known.lower() for known in headers}:
                where.fault(entry.line, "is given twice")
            headers[name] = content
        return headers


def _build(values: dict[str, Any], node: Mapping, path: YamlPath) -> TracesConfig:
    if path.validation.needs_libraries and not EXPORTER.is_installed:
        path.fault(node.line, f"needs the OpenTelemetry exporter: {EXPORTER.install_command}")
    return TracesConfig(**values)


#: `runtime.traces`
TRACES = Section[TracesConfig](
    _build,
    Setting("endpoint", _ENDPOINT, is_required=True),
    Setting("headers", _HeadersField()),
    Setting("sample", ParsedField("a number from 0 to 1, such as 0.1", _parse_share)),
    Setting("timeout", DurationField("100ms", "1m"), attribute="timeout_s"),
    may_be_empty=False,
)
