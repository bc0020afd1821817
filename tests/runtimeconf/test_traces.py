"""`runtime.traces` and `runtime.query.slow`."""

import pytest

from runtimeconf import handover
from runtimeconf.connector import Package
from runtimeconf.errors import ConfigError
from runtimeconf.model import TracesConfig
from tests.runtimeconf.configurations import Load

SECRET = "token-Zq8vT3mN6bX9cL2pR5sW7yD0fG4h"


def of(text: str) -> str:
    return f"runtime: {{traces: {text}}}"


def test_all_fields(load_text: Load) -> None:
    text = of(
        '{endpoint: "https://c.example:4318/otlp/", headers: {x-token: "Bearer ${ env:T }"}, sample: 0.25, timeout: 2s}'
    )

    traces = load_text(text, {"T": SECRET}).traces

    headers = {"x-token": f"Bearer {SECRET}"}
    expected = TracesConfig(endpoint="https://c.example:4318/otlp", headers=headers, sample=0.25, timeout_s=2.0)
    assert traces == expected
    assert SECRET not in repr(traces)
    assert handover.rebuilt(TracesConfig, handover.plain(traces)) == traces


def test_the_defaults(load_text: Load) -> None:
    assert load_text("{}").traces is None
    assert load_text(of('{endpoint: "http://127.0.0.1:4318"}')).traces == TracesConfig(endpoint="http://127.0.0.1:4318")
    assert load_text("runtime: {query: {slow: 1s}}").query.slow_s == 1.0
    assert load_text("{}").query.slow_s is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "runtime.traces: is empty"),
        ("{sample: 1}", "lacks the field endpoint"),
        ('{endpoint: "127.0.0.1:4318"}', "runtime.traces.endpoint: must be"),
        ('{endpoint: "grpc://127.0.0.1:4317"}', "runtime.traces.endpoint: must be"),
        ('{endpoint: "http://"}', "runtime.traces.endpoint: must be"),
        ('{endpoint: "http://[::1"}', "runtime.traces.endpoint: must be"),
        ('{endpoint: "http://a:99999"}', "runtime.traces.endpoint: must be"),
        ('{endpoint: "http://a b"}', "runtime.traces.endpoint: must be"),
        ('{endpoint: "http://a/?x=1"}', "remove the query"),
        ('{endpoint: "http://a/v1/traces"}', "remove /v1/traces"),
        ('{endpoint: "http://a", sample: 1.5}', "runtime.traces.sample: must be"),
        ('{endpoint: "http://a", sample: -1}', "runtime.traces.sample: must be"),
        ('{endpoint: "http://a", timeout: 1h}', "runtime.traces.timeout: must be"),
        ('{endpoint: "http://a", headers: [a]}', "runtime.traces.headers: must be a mapping"),
        ('{endpoint: "http://a", headers: {a: [b]}}', "runtime.traces.headers.a: must be a string"),
        ('{endpoint: "http://a", headers: {a: b, A: c}}', "runtime.traces.headers.A: is given twice"),
        ('{endpoint: "http://a", headers: {host: b}}', "runtime.traces.headers.host: is not a valid header"),
        ('{endpoint: "http://a", protocol: grpc}', "runtime.traces.protocol: unknown field"),
    ],
)
def test_faults(load_text: Load, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_text(of(text))

    assert expected in str(raised.value)


def test_no_fault_shows_a_secret(load_text: Load) -> None:
    texts = [
        f'{{endpoint: "http://user:{SECRET}@a"}}',
        f'{{endpoint: "http://a", headers: {{x-token: "{SECRET}\\n{SECRET}"}}}}',
        '{endpoint: "http://a", headers: {x-token: "${ env:T }"}}',
        f'{{endpoint: "http://a", headers: "{SECRET}"}}',
        f'{{endpoint: "http://a", headers: ["{SECRET}"]}}',
    ]

    for text in texts:
        with pytest.raises(ConfigError) as raised:
            load_text(of(text), {"T": f"{SECRET}\n{SECRET}"})
        assert SECRET not in str(raised.value)


def test_a_literal_secret_is_a_warning(load_text: Load) -> None:
    config = load_text(of(f'{{endpoint: "http://a", headers: {{x-api-key: {SECRET}, x-scope: b}}}}'))

    (warning,) = config.warnings
    assert "runtime.traces.headers.x-api-key: is in plain text" in warning
    assert SECRET not in warning


def test_without_the_library_the_start_names_it(load_text: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Package, "is_installed", False)

    with pytest.raises(
        ConfigError,
        match="needs the OpenTelemetry exporter: python -m pip install 'opentelemetry-exporter-otlp-proto-http",
    ):
        load_text(of('{endpoint: "http://a"}'))


def test_a_package_in_a_package_that_is_missing_is_not_installed() -> None:
    assert not Package("no_such_package.module", "none").is_installed
