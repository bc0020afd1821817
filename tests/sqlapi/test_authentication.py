"""Authentication over HTTP: checks A01 to A36 and A48, through the whole WSGI application."""

import io
import logging
import string
from itertools import product
from types import SimpleNamespace

import pytest
from django.test import RequestFactory
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rest_framework.request import Request

import authkeys.state
import runtimeconf.state
from authkeys.access import build
from authkeys.authentication import ApiKeyAuthentication
from runtimeconf.model import AuthConfig, RuntimeConfig
from runtimeconf.secret import Secret
from sqlapi.request_bodies import must_close
from sqlapi.urls import ROUTES, Route
from tests.corpus import each
from tests.sqlapi.harness import WITH_KEY, Answer, Header, begin, call, environ_of, logged, methods_of, sql
from tests.system.harness import K1, K2, WRONG

pytestmark = pytest.mark.usefixtures("idle")

#: Without an engine, a statement of an authenticated caller is 503.
IN = 503


def is_denied(answer: Answer, code: str = "missing_key") -> bool:
    assert answer.status == 401
    assert answer.headers["Cache-Control"] == "no-store"
    assert len(answer.body) <= 1024
    error = "" if code == "missing_key" else ', error="invalid_token"'
    assert answer.headers["WWW-Authenticate"] == f'Bearer realm="querykeep"{error}'
    return answer.code == code


def x_api_key(value: str | bytes) -> Header:
    return ("X-API-Key", value)


def authorization(value: str | bytes) -> Header:
    return ("Authorization", value)


OTHER_HEADERS = ("X-ApiKey", "Api-Key", "X-API-Key-2", "X-Auth-Token", "Proxy-Authorization", "Key")
ODD_BYTES = (b"\xa0" + K1.encode(), b"\xe9", "kéy".encode(), b"\x00", b"\xff\xfe", "🔑".encode(), K1.encode() + b"\x80")
REPEATED = ((K1, WRONG), (WRONG, K1), (K1, K1), (K1, ""), ("", K1), (K1, WRONG, K2))

# tests/authkeys/test_credentials.py covers every form of the two headers; here are samples, and what WSGI adds.
ACCEPTED: list[tuple[Header, ...]] = [
    *((x_api_key(key),) for key in (K1, K2, f" \t{K1} \t")),
    *(((name, K1),) for name in ("x-api-key", "X-API-KEY", "x-Api-keY")),
    *((authorization(f"{scheme} {K1}"),) for scheme in ("Bearer", "bEARER")),
    (x_api_key(K1), authorization(f"Bearer {WRONG}")),
    (x_api_key(" "), authorization(f"Bearer {K1}")),
]
ABSENT: list[tuple[Header, ...]] = [
    (),
    (x_api_key(" \t"),),
    (authorization("Bearer "),),
    *(((name, f"Bearer {K1}"), (name.lower(), K1)) for name in OTHER_HEADERS),
]
INVALID: list[tuple[Header, ...]] = [
    *((x_api_key(value),) for value in ODD_BYTES),
    *((x_api_key(value),) for value in (WRONG, *(K1.ljust(kib * 1024, "x") for kib in (7, 64, 1024)))),
    *((authorization(prefix + value),) for value in ODD_BYTES for prefix in (b"", b"Bearer ")),
    *(tuple(x_api_key(value) for value in values) for values in REPEATED),
    *(tuple(authorization(f"Bearer {value}") for value in values) for values in REPEATED),
    (x_api_key(WRONG), authorization(f"Bearer {K1}")),
    (authorization(f"Token {K1}"),),
]


@each("headers", ACCEPTED)
def test_a02_a17_headers_that_authenticate(headers: tuple[Header, ...]) -> None:
    assert sql("SELECT 1", *headers, key=None).status == IN


@each(("headers", "code"), [*((one, "missing_key") for one in ABSENT), *((one, "invalid_key") for one in INVALID)])
def test_a01_a22_headers_that_do_not(headers: tuple[Header, ...], code: str) -> None:
    assert is_denied(sql("SELECT 1", *headers, key=None), code)


def test_a05_wrong_key_looks_like_no_key_but_for_code_and_detail() -> None:
    absent, wrong = sql("SELECT 1", key=None), sql("SELECT 1", key=WRONG)

    assert WRONG[:4] not in wrong.body.decode() + str(wrong.headers)
    different = {name for name in wrong.json() if wrong.json()[name] != absent.json()[name]}
    assert different == {"code", "detail", "request_id"}
    assert set(wrong.headers) == set(absent.headers)


@pytest.mark.parametrize("name", ["api_key", "access_token", "X-API-Key", "key", "apikey", "Authorization", "token"])
def test_a20_query_cookie_and_body_do_not_authenticate(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert is_denied(call("POST", f"/v1/sql?{name}={K1}", body=b"SELECT 1"))
        assert is_denied(call("POST", "/v1/sql", ("Cookie", f"{name}={K1}"), body=b"SELECT 1"))
        assert is_denied(call("POST", "/v1/sql", body=f"{name}={K1}".encode()))
        assert is_denied(call("GET", f"/{K1}"))

    # Django's own loggers print nothing (runtime_site.logs).
    ours = [record for record in caplog.records if not record.name.startswith("django.")]
    assert len(ours) == 8
    assert K1 not in "".join(f"{record.getMessage()} {getattr(record, 'fields', '')}" for record in ours)


#: Anyone may call them. Methods other than GET and HEAD are 405 for anyone.
OPEN_PATHS = ("/health", "/v1/ready")

UNKNOWN_PATHS = [
    *("/", "/v1", "/v1/nope", "/nope", "/%ff%fe", "/%00", "/" + "a" * 4000),
    *("/admin/", "/static/x", "/favicon.ico", "/.git/config", "/__debug__/"),
    *("/metrics", "/openapi.json", "/docs", "/schema"),
]
PATHS = [route.template.replace("{name}", "orders") for route in ROUTES if route.template not in OPEN_PATHS]
PATHS += UNKNOWN_PATHS


METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT")
ODD_METHODS = ("FOO", "PROPFIND", "get", "post", "Post", "M-SEARCH", "X" * 100)


@each("path", PATHS)
@each("method", [*METHODS, *ODD_METHODS])
def test_a24_a25_a27_every_path_and_method_gives_the_same_401(method: str, path: str) -> None:
    reference = sql("SELECT 1", key=None)

    answer = call(method, path, ("X-Marker", "echo me"))

    assert answer.status == 401
    assert set(answer.headers) == set(reference.headers)
    assert answer.headers["Content-Length"] == reference.headers["Content-Length"]
    if method == "HEAD":
        assert answer.body == b""
    else:
        assert answer.without_request_id() == reference.without_request_id()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a24_a27_wrong_methods_are_405_with_a_key_and_on_open_routes_for_anyone(route: Route) -> None:
    path = route.template.replace("{name}", "orders")
    anyone: list[tuple[Header, ...]] = [(WITH_KEY,), (), (x_api_key(WRONG),)]

    wrong = {*METHODS, *ODD_METHODS, "head"} - set(methods_of(route))
    for method, headers in product(wrong, anyone if path in OPEN_PATHS else anyone[:1]):
        answer = call(method, path, *headers, body=b"SELECT 1")
        assert method.upper() == "HEAD" or answer.code == "method_not_allowed"
        assert (answer.status, answer.headers["Allow"]) == (405, ", ".join(methods_of(route)))
    for method in methods_of(route):
        assert "Allow" not in call(method, path, WITH_KEY).headers


@each("headers", [(), (WITH_KEY,)])
@each("path", ["/v1/sql", "/health", "/nope"])
def test_a29_no_cors(path: str, headers: tuple[Header, ...]) -> None:
    preflight: tuple[Header, ...] = (
        ("Origin", "https://evil.test"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "x-api-key"),
    )
    for method in ("OPTIONS", "GET", "POST"):
        assert "access-control" not in str(call(method, path, *preflight, *headers).headers).lower()


@each(
    "name",
    ["Original-URL", "Rewrite-URL", "HTTP-Method-Override", "Method-Override", "Forwarded-Prefix", "Forwarded-Host"],
)
def test_a31_headers_do_not_reroute(name: str) -> None:
    for value in ("/v1/sql", "/v1", "POST", "evil.test"):
        assert call("GET", "/health?_method=POST", (f"X-{name}", value)).body == b"ok\n"
    for value in ("/health", "GET"):
        assert is_denied(sql("SELECT 1", (f"X-{name}", value), key=None))


ODD_SPELLINGS = [
    *(
        "/v1/ready/../sql",
        "/health/../v1/sql",
        "/v1/ready/%2e%2e/sql",
        "/v1/ready%2f..%2fsql",
        "/v1/./sql",
        "/./health",
    ),
    *("/v1/sql/", "//v1/sql", "/v1//sql", "/v1/./sql", "/health/", "//health", "/v1/ready/"),
    *("/v1/sql/active/", "/v1/sql//cancel"),
    *("/V1/SQL", "/HEALTH", "/Health", "/v1/Ready"),
    *("/v1/sql%00", "/v1/sql%0a", "/v1/sql%0d%0a", "/v1/sql%20", "/v1/s%C7%ABl", "/v1/sql%ff"),
    *("/health%20", "/health%0a", "/health%00", "/v1/ready%20", "/v1/ready%0a"),
    *("/v1/sql%23/health", "/v1/sql;/health", "/health;x"),
    *("/healthz", "/healthx", "/v1/readyx", "/v1/health", "/ready", "v1/sql", "*", ""),
]


@each("path", [*UNKNOWN_PATHS, *ODD_SPELLINGS])
def test_a25_a32_a34_a36_only_exact_paths_are_routes_and_nothing_redirects(path: str) -> None:
    for method, query in (("POST", ""), ("GET", ""), ("GET", "?x=1"), ("FOO", ""), ("OPTIONS", "")):
        assert is_denied(call(method, path + query, body=b"SELECT 1"))
        assert call(method, path + query, WITH_KEY, body=b"SELECT 1").code == "not_found"


@each("path", ["/v1/%73ql", "/v1%2fsql", "/v1/sql?/health"])
def test_a32_encoded_spellings_are_the_same_route(path: str) -> None:
    assert is_denied(call("POST", path, body=b"SELECT 1"))
    assert call("POST", path, WITH_KEY, body=b"SELECT 1").status == IN


@each("path", ["/health", "/health?x=1", "/v1/ready", "/v1/ready?verbose=true", "/%68ealth"])
@each("headers", [(), (("X-API-Key", WRONG),), (("Authorization", "Basic x"),), (WITH_KEY,)])
@each("method", ["GET", "HEAD"])
def test_a34_a35_open_paths_answer_the_same_with_any_key(method: str, headers: tuple[Header, ...], path: str) -> None:
    reference = call(method, path)

    answer = call(method, path, *headers)

    assert (answer.status, answer.body) == (reference.status, reference.body)
    assert set(answer.headers) == set(reference.headers)
    assert len(answer.body) <= 64
    assert "Server" not in answer.headers


def test_a43_the_body_of_a_refused_request_is_not_read() -> None:
    unread = SimpleNamespace(read=pytest.fail, readline=pytest.fail)

    answer = call("POST", "/v1/sql", ("Content-Length", "10000000000"), environ={"wsgi.input": unread})

    assert is_denied(answer)
    assert must_close(answer.environ)


@each("accept", ["text/html", "application/xml;q=1", "*/*;q=0"])
def test_authentication_precedes_content_negotiation(accept: str) -> None:
    assert is_denied(sql("SELECT 1", ("Accept", accept), key=None))
    assert sql("SELECT 1", ("Accept", accept)).code == "not_acceptable"
    assert call("GET", "/v1/catalogs", ("Accept", accept), WITH_KEY).status == 200
    assert call("GET", "/health", ("Accept", accept)).status == 200


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        pytest.param((), "missing_key", id="A01 none"),
        pytest.param((x_api_key(" "),), "missing_key", id="A07 blank"),
        pytest.param((x_api_key(WRONG),), "unknown_key", id="A05 wrong"),
        pytest.param((x_api_key(K1), x_api_key(K1)), "repeated_header", id="A13 twice"),
        pytest.param((authorization(f"Basic {K1}"),), "unknown_scheme", id="A18 Basic"),
    ],
)
def test_a48_each_failure_is_logged(headers: tuple[Header, ...], reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        call("GET", "/v1/catalogs?x=secret", *headers, ("X-Request-Id", "failing"))

    audit, access = logged(caplog, "authkeys.audit"), logged(caplog, "sqlapi.access")
    common = {"peer": "127.0.0.1", "method": "GET", "status": 401, "request_id": "failing"}
    assert audit == [common | {"route": "catalogs", "reason": reason}]
    assert access[0].items() >= (common | {"fingerprint": ""}).items()
    for text in ("secret", K1[:6]):
        assert text not in str(audit + access)


def test_a48_each_success_is_logged_with_the_fingerprint_of_its_key(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for key in (K1, K2, K1):
            call("GET", "/v1/catalogs", x_api_key(key))

    first, second, again = (line["fingerprint"] for line in logged(caplog, "sqlapi.access"))
    assert first == again != second
    assert not [text for text in (first, second) if text[:5] in K1 + K2]


def test_without_a_credential_the_permission_decides(caplog: pytest.LogCaptureFixture) -> None:
    assert ApiKeyAuthentication().authenticate(Request(RequestFactory().get("/"))) is None
    assert caplog.records == []


def test_compatibility_1_10_accepts_only_x_api_key(config: RuntimeConfig) -> None:
    old = replace(config, compatibility="1.10")
    runtimeconf.state.set_config(old)
    authkeys.state.set_access(build(old))

    assert sql("SELECT 1").status == IN
    bearer = sql("SELECT 1", ("Authorization", f"Bearer {K1}"), key=None)
    assert bearer.status == 401
    assert bearer.headers["WWW-Authenticate"] == 'ApiKey realm="querykeep"'
    assert bearer.code == "missing_key"
    assert b"Bearer" not in bearer.body
    wrong = sql("SELECT 1", ("Authorization", f"Bearer {K1}"), key=WRONG)
    assert wrong.headers["WWW-Authenticate"] == 'ApiKey realm="querykeep", error="invalid_token"'


@pytest.mark.parametrize("path", ["/v1/sql", "/v1/catalogs", "/nope"])
@pytest.mark.parametrize("headers", [(), (WITH_KEY,)])
def test_a_runtime_without_a_key_set_refuses_every_call(path: str, headers: tuple[Header, ...]) -> None:
    authkeys.state.set_access(None)

    answer = call("POST", path, *headers, body=b"SELECT 1")

    assert answer.status == 503
    assert answer.code == "authentication_unavailable"
    assert call("GET", "/health").status == 200


FEW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
latin_1 = st.text(alphabet=st.characters(codec="latin-1"))
KNOWN_NAMES = (
    "Host Accept Content-Type Content-Length Content-Encoding Transfer-Encoding X-API-Key Authorization Cookie Origin "
    "X-Request-Id Range If-None-Match Expect Connection Sec-Fetch-Site X-Forwarded-For Forwarded"
)
names = st.text(alphabet=string.ascii_letters + string.digits + "-", min_size=1) | st.sampled_from(KNOWN_NAMES.split())
values = latin_1 | st.sampled_from(
    ["text/plain; charset*=utf-99'en'x", "a/b; charset=\x00", "a/b;charset=..", "a/b; x*0=1; x*1=2", "chunked", "-1"]
)


@FEW
@given(headers=st.lists(st.tuples(names, values), max_size=4))
@example(headers=[("Content-Type", "text/plain; charset*=utf-99'en'x")])
@example(headers=[("Content-Type", "text/plain; charset=\x00")])
@example(headers=[("Cookie", "a=\xff;;==")])
def test_no_header_gives_a_500(headers: list[tuple[str, str]]) -> None:
    for method, path, key in (("POST", "/v1/sql", None), ("POST", "/v1/sql", K1), ("GET", "/v1/catalogs", K1)):
        given_key: list[Header] = [] if key is None else [("X-API-Key", key)]
        answer = call(method, path, *given_key, *headers, body=b"SELECT 1")
        assert answer.status in {200, 400, 401, 406, 411, 413, 415, IN}
        assert answer.status != IN or answer.code == "engine_unavailable"


@FEW
@given(path=latin_1, query=latin_1)
def test_no_path_or_query_gives_a_500(path: str, query: str) -> None:
    environ = environ_of("GET", "/", [], b"") | {"PATH_INFO": f"/{path}", "QUERY_STRING": query}

    answer = call("GET", "/", environ=environ)
    with_key = call("GET", "/", environ=environ | {"HTTP_X_API_KEY": K1})

    assert answer.status == 401 or path in {"health", "v1/ready"}
    assert with_key.status in {200, 404, 405, 503}


def test_a_key_that_is_removed_while_the_body_arrives_is_refused(config: RuntimeConfig) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            authkeys.state.set_access(build(replace(config, auth=AuthConfig(enabled=True, keys=(Secret(K2),)))))
            return super().read(size)

    for path, body in (("/v1/sql", b'{"sql": "SELECT 1"}'), ("/v1/datasets/orders/acceleration/refresh", b"{}")):
        authkeys.state.set_access(build(config))
        environ = environ_of("POST", path, [WITH_KEY, ("Content-Type", "application/json")], body)
        environ["wsgi.input"] = Slow(body)
        assert begin(environ)[0].status == 401
