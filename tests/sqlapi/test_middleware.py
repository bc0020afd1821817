"""The middleware and the checks before every view: ids, common headers, log, Host, cross-site requests."""

import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import runtimeconf.state
import telemetry.state
from runtimeconf.model import AuthConfig, HttpConfig, RuntimeConfig
from sqlapi.problems import QUERY_ID, REQUEST_ID
from telemetry.events import AuthenticationFailuresEvent, Event, RequestsEvent
from tests.sqlapi.harness import WITH_KEY, Answer, Header, begin, call, environ_of, logged, sql
from tests.system.harness import K1, WRONG

pytestmark = pytest.mark.usefixtures("idle")


def every_kind_of_answer(*headers: Header) -> list[Answer]:
    return [
        call("GET", "/health", *headers),
        call("GET", "/v1/ready", *headers),
        call("GET", "/v1/catalogs", *headers),
        call("GET", "/v1/catalogs", WITH_KEY, *headers),
        call("GET", "/v1/status", WITH_KEY, *headers),
        call("GET", "/nope", WITH_KEY, *headers),
        call("PUT", "/v1/sql", WITH_KEY, *headers),
        sql("SELECT 1", *headers),
        call("GET", "/v1/catalogs", WITH_KEY, ("Host", "a@b"), *headers),
    ]


def test_requests_and_failed_authentications_are_counted_by_route_and_status() -> None:
    events: list[Event] = []
    telemetry.state.deliver_to(events.append, lambda _: None)
    every_kind_of_answer()
    telemetry.state.disconnect()

    counted = {(one.route, one.status): sum(one.buckets) for one in events if isinstance(one, RequestsEvent)}
    assert counted == {
        ("/health", 200): 1,
        ("/v1/ready", 503): 1,
        ("/v1/catalogs", 401): 1,
        ("/v1/catalogs", 200): 1,
        ("/v1/catalogs", 400): 1,
        ("/v1/status", 200): 1,
        ("unknown", 404): 1,
        ("/v1/sql", 405): 1,
        ("/v1/sql", 503): 1,
    }
    failures = {one.reason: one.times for one in events if isinstance(one, AuthenticationFailuresEvent)}
    assert failures == {"missing_key": 1}


def test_every_answer_has_the_common_headers() -> None:
    for answer in every_kind_of_answer():
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Length"] == str(len(answer.body))
        assert len(answer.headers["X-Request-Id"]) == 32
        assert not {"Server", "Vary", "Set-Cookie"} & set(answer.headers)
        assert not answer.headers["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("sent", ["abc-123", "x" * 128, "A.b_c-9"])
def test_a_well_formed_request_id_comes_back(sent: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        answers = every_kind_of_answer(("X-Request-Id", sent))

    assert {answer.headers["X-Request-Id"] for answer in answers} == {sent}
    assert [line["request_id"] for line in logged(caplog, "sqlapi.access")] == [sent] * len(answers)


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "a,b", "\xe9", "<script>", "a\x00"])
def test_a_malformed_request_id_is_replaced(sent: str) -> None:
    answers = every_kind_of_answer(("X-Request-Id", sent))

    assert len({answer.headers["X-Request-Id"] for answer in answers}) == len(answers)
    assert all(sent == "" or sent not in str(answer.headers) for answer in answers)


def test_repeated_request_ids_are_ignored_and_that_of_the_server_is_kept() -> None:
    twice = call("GET", "/health", ("X-Request-Id", "a"), ("X-Request-Id", "b"))
    ours = call("GET", "/health", ("X-Request-Id", "theirs"), environ={REQUEST_ID: "ours"})

    assert len(twice.headers["X-Request-Id"]) == 32
    assert ours.headers["X-Request-Id"] == "ours"


@pytest.mark.parametrize("path", ["/health", "/v1/ready", "/v1/status", "/v1/catalogs"])
def test_head_has_the_headers_of_get_and_no_body(path: str) -> None:
    get, head = call("GET", path, WITH_KEY), call("HEAD", path, WITH_KEY)

    assert (head.body, bool(get.body)) == (b"", True)
    assert head.headers | {"X-Request-Id": ""} == get.headers | {"X-Request-Id": ""}


def test_a48_the_access_log_names_the_route_and_not_the_path(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        call("POST", "/v1/datasets/secret-name/acceleration/refresh?secret=1", body=b"secret")
        call("GET", "/secret/path?secret", WITH_KEY)
        call("FOO", "/health?secret")

    refresh, unknown, health = lines = logged(caplog, "sqlapi.access")
    assert "secret" not in str(lines)
    duration = refresh.pop("duration_ms")
    assert 0 <= duration < 60_000
    assert refresh.pop("request_id")
    assert refresh.pop("bytes") > 100
    assert refresh == {
        "peer": "127.0.0.1",
        "method": "POST",
        "route": "/v1/datasets/{name}/acceleration/refresh",
        "status": 401,
        "complete": True,
        "fingerprint": "",
        "key": None,
        "query_id": None,
    }
    assert (unknown["route"], unknown["status"]) == ("unknown", 404)
    assert (health["route"], health["method"], health["status"]) == ("/health", "FOO", 405)


def test_the_client_behind_a_trusted_proxy_is_the_peer(config: RuntimeConfig, caplog: pytest.LogCaptureFixture) -> None:
    forwarded = ("X-Forwarded-For", "198.51.100.7")

    with caplog.at_level(logging.INFO):
        call("GET", "/v1/catalogs", forwarded)
        runtimeconf.state.set_config(replace(config, http=HttpConfig(trusted_proxies=("127.0.0.1/32",))))
        call("GET", "/v1/catalogs", forwarded)

    for name in ("sqlapi.access", "authkeys.audit"):
        assert [line["peer"] for line in logged(caplog, name)] == ["127.0.0.1", "198.51.100.7"]


def test_a_failure_in_the_middleware_is_a_problem_document(caplog: pytest.LogCaptureFixture) -> None:
    answer = call("GET", "/health", environ={QUERY_ID: "no\nheader"})

    assert answer.status == 500
    assert answer.code == "internal_error"
    assert "BadHeaderError" in caplog.text


def test_a_lost_configuration_is_an_internal_error(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_CONFIG", str(tmp_path / "absent.yaml"))
    runtimeconf.state.set_config(None)

    answer = call("GET", "/v1/catalogs", WITH_KEY)

    assert answer.status == 500
    assert answer.code == "configuration_error"
    assert str(tmp_path) not in answer.body.decode()


# tests/sqlapi/test_hosts.py covers every spelling of hosts and origins; here each rule gets one request.


@pytest.mark.parametrize("path", ["/v1/catalogs", "/v1/sql", "/nope", "/health/"])
def test_a38_a_malformed_host_is_400_with_a_key_and_without(path: str) -> None:
    for headers in ((), (WITH_KEY,)):
        answer = call("GET", path, ("Host", "evil.test/"), *headers)
        assert answer.status == 400
        assert answer.code == "invalid_host"
        assert "evil" not in answer.body.decode()


def test_a38_any_one_well_formed_host_is_accepted_with_authentication() -> None:
    two, environ = (("Host", "localhost"),) * 2, environ_of("GET", "/v1/catalogs", [WITH_KEY], b"")
    del environ["HTTP_HOST"]

    assert call("GET", "/v1/catalogs", WITH_KEY, ("Host", "attacker.test:80")).status == 200
    assert call("GET", "/v1/catalogs", WITH_KEY, *two).code == "invalid_host"
    assert call("GET", "/v1/catalogs", WITH_KEY, environ={"HTTP_HOST": ""}).code == "invalid_host"
    assert begin(environ)[0].status == 400


@pytest.mark.parametrize("host", ["evil.test", "a@b", ""])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_open_routes_accept_any_host(auth_off: RuntimeConfig, method: str, host: str) -> None:
    assert call(method, "/health", ("Host", host)).status == 200
    assert call(method, "/v1/ready", ("Host", host)).status == 503
    assert call("POST", "/health", ("Host", host)).status == 405


def test_a39_only_loopback_names_are_accepted_while_authentication_is_off(auth_off: RuntimeConfig) -> None:
    for host in ("localhost", "[0:0:0:0:0:0:0:1]:8090"):
        assert call("GET", "/v1/catalogs", ("Host", host)).status == 200
    for path in ("/v1/catalogs", "/v1/sql", "/nope"):
        assert call("POST", path, ("Host", "attacker.test")).code == "invalid_host"


@pytest.mark.parametrize("auth", ["on", "off"])
def test_a_list_in_the_yaml_always_applies(auth: str, request: pytest.FixtureRequest) -> None:
    config: RuntimeConfig = request.getfixturevalue("idle" if auth == "on" else "auth_off")
    runtimeconf.state.set_config(replace(config, http=HttpConfig(allowed_hosts=("sql.example", "other.example:99"))))

    for host, status in [("SQL.Example:8090", 200), ("other.example:99", 200), ("localhost", 400)]:
        assert call("GET", "/v1/catalogs", WITH_KEY, ("Host", host)).status == status


CROSS_SITE: list[Header] = [("Origin", "https://evil.test"), ("Sec-Fetch-Site", "cross-site")]


@pytest.mark.parametrize("header", CROSS_SITE)
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/catalogs"), ("POST", "/v1/sql"), ("POST", "/nope")])
def test_a40_pages_of_other_sites_are_refused_while_authentication_is_off(
    auth_off: RuntimeConfig, method: str, path: str, header: Header
) -> None:
    answer = call(method, path, header)

    assert answer.status == 403
    assert answer.code == "cross_site_request"


@pytest.mark.parametrize("header", CROSS_SITE)
def test_a40_with_authentication_the_key_decides(header: Header) -> None:
    assert call("GET", "/v1/catalogs", WITH_KEY, header).status == 200
    assert call("GET", "/v1/catalogs", ("X-API-Key", WRONG), header).status == 401


def test_anyone_may_call_while_authentication_is_off(auth_off: RuntimeConfig) -> None:
    same_origin = (("Origin", "http://localhost:8090"), ("Sec-Fetch-Site", "same-origin"))
    keys = ((("X-API-Key", K1),), (("X-API-Key", "any,thing"),), (("Authorization", "Basic x"),))
    for headers in ((), same_origin, *keys):
        assert call("GET", "/v1/catalogs", *headers).status == 200
    assert call("GET", "/nope").status == 404


def test_nobody_may_call_a_process_that_other_machines_reach_unless_the_yaml_lets_anybody_in(
    auth_off: RuntimeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a WSGI server that is not ours, which binds its port after it has loaded the application."""
    config = replace(auth_off, file=Path("/srv/elsewhere.yaml"))  # The outcome is kept by file.
    with socket.create_server(("0.0.0.0", 0)):
        runtimeconf.state.set_config(config)
        assert call("GET", "/v1/catalogs").status == 500
        assert "or set api-key: {enabled: false} there" in caplog.text

        runtimeconf.state.set_config(replace(config, auth=AuthConfig(allows_anybody=True)))
        assert call("GET", "/v1/catalogs").status == 200
