"""Checks A01 to A48 over real sockets, in the three server modes."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.system.harness import K1, K2, PATIENCE_S, WRONG, Server, free_port, raw_request, status_of, wait_for

CREDENTIALS_NOWHERE = (
    "/v1/nope",
    "/nope",
    "/admin/",
    "/static/x",
    "/favicon.ico",
    "/.git/config",
    "/__debug__/",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/schema",
    "/v1/status",
    "/v1/datasets",
    "/v1/catalogs",
    "/v1/datasets/orders/acceleration/refresh",
    "/v1/sql/active",
)


def without_request_id(answer: httpx.Response) -> dict[str, object]:
    body = answer.json()
    body.pop("request_id")
    return dict(body)


def test_a01_no_key_is_challenged(server: Server) -> None:
    answer = server.sql("SELECT 1", None)

    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="querykeep"'
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert len(answer.content) <= 1024


@pytest.mark.parametrize("key", [K1, K2], ids=["first", "second"])
def test_a02_any_configured_key_works(server: Server, key: str) -> None:
    assert server.rows("SELECT 1 AS a", key) == [{"a": 1}]


@pytest.mark.parametrize("name", ["x-api-key", "X-API-KEY", "x-Api-keY"])
def test_a03_header_names_are_case_insensitive(server: Server, name: str) -> None:
    assert status_of(server.raw(raw_request("POST", "/v1/sql", [(name, K1)], b"SELECT 1"))) == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_a04_bearer_scheme_is_case_insensitive(server: Server, scheme: str) -> None:
    assert server.sql("SELECT 1", None, Authorization=f"{scheme} {K1}").status_code == 200


def test_a05_wrong_key_looks_like_none_but_for_the_error(server: Server) -> None:
    absent, wrong = server.sql("SELECT 1", None), server.sql("SELECT 1", WRONG)

    assert wrong.status_code == 401
    assert wrong.headers["WWW-Authenticate"] == 'Bearer realm="querykeep", error="invalid_token"'
    assert WRONG[:8] not in wrong.text
    for part in ("type", "title", "status"):
        assert without_request_id(absent)[part] == without_request_id(wrong)[part]


@pytest.mark.parametrize("value", ["", "   "])
def test_a07_empty_key_is_no_key(server: Server, value: str) -> None:
    answer = server.raw(raw_request("POST", "/v1/sql", [("X-API-Key", value)], b"SELECT 1"))

    assert status_of(answer) == 401
    assert b"error=" not in answer


def test_a09_outer_white_space_is_not_part_of_a_key(server: Server) -> None:
    outer = raw_request("POST", "/v1/sql", [("X-API-Key", f" \t{K1} \t")], b"SELECT 1")
    inner = raw_request("POST", "/v1/sql", [("X-API-Key", f"{K1[:4]} {K1[4:]}")], b"SELECT 1")

    assert status_of(server.raw(outer)) == 200
    assert status_of(server.raw(inner)) == 401


@pytest.mark.parametrize("value", [b"\xe9", "kéy".encode(), K1.encode() + b"\xff", b"\xf0\x9f\x94\x91"])
@pytest.mark.parametrize("header", ["X-API-Key", "Authorization"])
def test_a10_bytes_beyond_ascii_are_a_wrong_key(server: Server, header: str, value: bytes) -> None:
    sent = value if header == "X-API-Key" else b"Bearer " + value

    assert status_of(server.raw(raw_request("POST", "/v1/sql", [(header, sent)], b"SELECT 1"))) == 401


@pytest.mark.parametrize("size", [7_000, 64_000, 1_000_000])
def test_a12_long_key_is_refused(server: Server, size: int) -> None:
    answer = server.raw(raw_request("POST", "/v1/sql", [("X-API-Key", K1.ljust(size, "x"))], b"SELECT 1"))

    assert status_of(answer) in {0, 400, 401, 413, 431}
    assert server.rows("SELECT 1 AS a") == [{"a": 1}]


@pytest.mark.parametrize("values", [(K1, WRONG), (WRONG, K1), (K1, K1), (K1, ""), ("", K1)])
@pytest.mark.parametrize(("header", "prefix"), [("X-API-Key", ""), ("Authorization", "Bearer ")])
def test_a13_a15_repeated_header_is_refused(server: Server, header: str, prefix: str, values: tuple[str, str]) -> None:
    lines: list[tuple[str, str | bytes]] = [(header, prefix + value) for value in values]

    assert status_of(server.raw(raw_request("POST", "/v1/sql", lines, b"SELECT 1"))) in {400, 401}


@pytest.mark.parametrize(
    ("x_api_key", "bearer", "status"),
    [(WRONG, K1, 401), (K1, WRONG, 200), ("", K1, 200), ("", WRONG, 401), (K1, K2, 200)],
)
def test_a16_x_api_key_decides_alone_unless_empty(server: Server, x_api_key: str, bearer: str, status: int) -> None:
    lines: list[tuple[str, str | bytes]] = [("X-API-Key", x_api_key), ("Authorization", f"Bearer {bearer}")]

    assert status_of(server.raw(raw_request("POST", "/v1/sql", lines, b"SELECT 1"))) == status


@pytest.mark.parametrize(
    "value",
    [
        K1,
        f"Token {K1}",
        f"ApiKey {K1}",
        "Basic " + base64.b64encode(f":{K1}".encode()).decode(),
        "Basic " + base64.b64encode(f"{K1}:".encode()).decode(),
        "Digest x",
        "Bearer",
        "Bearer ",
        f"Bearer{K1}",
        f"Bearer {K1} {K1}",
        f"Negotiate {K1}",
    ],
)
def test_a18_other_schemes_do_not_authenticate(server: Server, value: str) -> None:
    assert status_of(server.raw(raw_request("POST", "/v1/sql", [("Authorization", value)], b"SELECT 1"))) == 401


@pytest.mark.parametrize("name", ["api_key", "access_token", "X-API-Key", "key", "apikey"])
def test_a20_query_strings_do_not_authenticate_and_are_not_logged(server: Server, name: str) -> None:
    answer = server.raw(raw_request("POST", f"/v1/sql?{name}={K1}", [], b"SELECT 1"))

    assert status_of(answer) == 401
    assert K1 not in server.output()


def test_a20_cookies_and_bodies_do_not_authenticate(server: Server) -> None:
    assert server.sql("SELECT 1", None, Cookie=f"X-API-Key={K1}; api_key={K1}").status_code == 401
    assert server.sql(f"api_key={K1}", None).status_code == 401


def test_a22_underscores_are_not_dashes(server: Server) -> None:
    alone = raw_request("POST", "/v1/sql", [("X_API_Key", K1)], b"SELECT 1")
    beside = raw_request("POST", "/v1/sql", [("X-API-Key", WRONG), ("X_API_Key", K1)], b"SELECT 1")

    assert status_of(server.raw(alone)) in {400, 401}
    assert status_of(server.raw(beside)) in {400, 401}


@pytest.mark.parametrize("path", CREDENTIALS_NOWHERE)
def test_a24_a25_every_path_without_a_key_gives_the_same_401(server: Server, path: str) -> None:
    reference = server.sql("SELECT 1", None)

    answer = server.get(path)

    assert answer.status_code == 401
    assert without_request_id(answer) == without_request_id(reference)
    assert set(answer.headers) == set(reference.headers)


@pytest.mark.parametrize("path", ["/v1/nope", "/nope", "/admin/", "/metrics", "/docs", "/"])
def test_a25_unknown_path_with_a_key_is_404(server: Server, path: str) -> None:
    answer = server.get(path, headers={"X-API-Key": K1})

    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "FOO", "GET", "PROPFIND"])
def test_a27_every_method_needs_the_key(server: Server, method: str) -> None:
    answer = server.raw(raw_request(method, "/v1/sql", [("X-Marker", "echo-me")]))

    assert status_of(answer) == 401
    assert b"echo-me" not in answer
    if method == "HEAD":
        assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("method", ["CONNECT", "get", "G\x01T"])
def test_a27_odd_methods_are_refused(server: Server, method: str) -> None:
    assert status_of(server.raw(raw_request(method, "/v1/sql", []))) in {400, 401}


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "GET"])
def test_a27_wrong_method_with_a_key_is_405(server: Server, method: str) -> None:
    answer = server.raw(raw_request(method, "/v1/sql", [("X-API-Key", K1)]))

    assert status_of(answer) == 405
    assert re.search(rb"\r\n[Aa]llow: POST", answer)


def test_a29_no_cors(server: Server) -> None:
    headers: list[tuple[str, str | bytes]] = [
        ("Origin", "https://evil.test"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "x-api-key"),
    ]

    for key in ([], [("X-API-Key", K1)]):
        answer = server.raw(raw_request("OPTIONS", "/v1/sql", [*headers, *key]))
        assert b"access-control" not in answer.lower()


@pytest.mark.parametrize(
    "header",
    [
        ("X-Original-URL", "/v1/sql"),
        ("X-Rewrite-URL", "/v1/sql"),
        ("X-HTTP-Method-Override", "POST"),
        ("X-Forwarded-Prefix", "/v1"),
        ("Script-Name", "/x"),
    ],
)
def test_a31_headers_do_not_reroute(server: Server, header: tuple[str, str]) -> None:
    health = server.raw(raw_request("GET", "/health?_method=POST", [header]))
    sql = server.raw(raw_request("POST", "/v1/sql", [(header[0], "/health")], b"SELECT 1"))

    assert status_of(health) == 200
    assert health.endswith(b"\r\n\r\nok\n")
    assert status_of(sql) == 401


@pytest.mark.parametrize(
    "path",
    [
        "/v1/ready/../sql",
        "/health/../v1/sql",
        "/v1/ready/%2e%2e/sql",
        "/v1/ready%2f..%2fsql",
        "//v1/sql",
        "/v1//sql",
        "/v1/./sql",
        "/v1/sql/",
        "/V1/SQL",
        "/v1/%73ql",
        "/v1%2fsql",
        "/v1/sql%00",
        "/v1/sql%20",
        "/v1/sql%0a",
        "/v1/sql%23/health",
        "/v1/sql?/health",
        "/v1/sql;/health",
        "/health;/v1/sql",
        "/health%0a",
        "http://localhost/v1/sql",
        "/%ff%fe",
    ],
)
def test_a32_no_spelling_of_a_path_opens_it(server: Server, path: str) -> None:
    assert status_of(server.raw(raw_request("POST", path, [], b"SELECT 1"))) in {400, 401}


@pytest.mark.parametrize(
    "path",
    [
        "/healthz",
        "/health/",
        "/healthx",
        "/HEALTH",
        "/v1/ready/",
        "/v1/readyx",
        "/v1/Ready",
        "/v1/ready%20",
        "/health%00",
        "//health",
        "/v1/ready%0a",
        "/v1/health",
        "/ready",
    ],
)
def test_a34_only_the_exact_open_paths_are_open(server: Server, path: str) -> None:
    assert status_of(server.raw(raw_request("GET", path, []))) in {400, 401}


@pytest.mark.parametrize("path", ["/health", "/health?x=1", "/v1/ready", "/v1/ready?verbose=true"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a34_open_paths_are_open(server: Server, method: str, path: str) -> None:
    assert status_of(server.raw(raw_request(method, path, []))) == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", ["/health", "/v1/ready"])
def test_a34_other_methods_of_open_paths_are_405_for_everybody(server: Server, method: str, path: str) -> None:
    for key in ("", K1, WRONG):
        answer = server.raw(raw_request(method, path, [("X-API-Key", key)]))
        assert status_of(answer) == 405
        assert b"\r\nallow: get, head\r\n" in answer.lower()


@pytest.mark.parametrize(("path", "body"), [("/health", "ok\n"), ("/v1/ready", "ready")])
def test_a35_open_answers_say_nothing(server: Server, path: str, body: str) -> None:
    without, with_key = server.get(path), server.get(path, headers={"X-API-Key": K1})

    assert without.text == with_key.text == body
    assert not re.search(r"\d", without.headers.get("Server", ""))


def test_a36_no_redirects(server: Server) -> None:
    assert status_of(server.raw(raw_request("POST", "/v1/sql/", [], b"SELECT 1"))) == 401
    assert status_of(server.raw(raw_request("POST", "/v1/sql/", [("X-API-Key", K1)], b"SELECT 1"))) == 404


@pytest.mark.parametrize("host", ["a@b", "localhost:99999", "x" * 5000, "a b", "", "[::1", "local host", "a,b"])
def test_a38_malformed_host_is_400_or_401(server: Server, host: str) -> None:
    answer = server.raw(raw_request("POST", "/v1/sql", [("Host", host), ("X-API-Key", K1)], b"SELECT 1"))

    assert status_of(answer) in {400, 431}
    assert b"99999" not in answer


def test_a38_two_hosts_are_refused(server: Server) -> None:
    lines: list[tuple[str, str | bytes]] = [("Host", "localhost"), ("Host", "evil.test"), ("X-API-Key", K1)]

    assert status_of(server.raw(raw_request("POST", "/v1/sql", lines, b"SELECT 1"))) == 400


@pytest.mark.parametrize("host", ["attacker.test", "attacker.test:8090", "127.0.0.1.nip.test", "localhost.evil.test"])
def test_a39_rebinding_is_refused_when_authentication_is_off(open_server: Server, host: str) -> None:
    answer = open_server.raw(raw_request("POST", "/v1/sql", [("Host", host)], b"SELECT 1"))

    assert status_of(answer) in {400, 403}
    assert b"attacker" not in answer


@pytest.mark.parametrize(
    "header",
    [
        ("Origin", "https://evil.test"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ],
)
def test_a40_cross_site_requests_are_refused_when_authentication_is_off(
    open_server: Server, header: tuple[str, str]
) -> None:
    assert status_of(open_server.raw(raw_request("POST", "/v1/sql", [header], b"SELECT 1"))) == 403
    assert status_of(open_server.raw(raw_request("POST", "/v1/sql", [], b"SELECT 1"))) == 200


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("open")
    port = free_port()
    text = f'runtime:\n  http: {{bind: "127.0.0.1:{port}"}}\n  flight: {{enabled: false}}\n'
    server = Server(directory, text=text, port=port)
    with server:
        yield server


def json_request(body: bytes, content_type: str = "application/json", **headers: str) -> bytes:
    lines: list[tuple[str, str | bytes]] = [("X-API-Key", K1), ("Content-Type", content_type)]
    lines += [(name.replace("_", "-"), value) for name, value in headers.items()]
    return raw_request("POST", "/v1/sql", lines, body)


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(json_request(b'{"sql":"SELECT 1"}', "application/json; charset=utf-99"), id="charset"),
        pytest.param(json_request(b"[" * 100_000), id="deep"),
        pytest.param(json_request(b'{"sql":' + b'{"a":' * 50_000), id="deep-objects"),
        pytest.param(json_request(b'{"sql":"SELECT ?","parameters":[' + b"9" * 5000 + b"]}"), id="long-int"),
        pytest.param(json_request(b'{"sql":"SELECT ?","parameters":[NaN]}'), id="nan"),
        pytest.param(json_request(b'{"sql":"SELECT 1 \\ud800"}'), id="surrogate"),
        pytest.param(json_request(b'{"sql":"SELECT \xff"}'), id="invalid-utf8"),
        pytest.param(json_request(b"\x1f\x8b\x00garbage", Content_Encoding="gzip"), id="gzip"),
        pytest.param(json_request(b'"SELECT 1"'), id="not-an-object"),
        pytest.param(json_request(b'{"sql":1}'), id="sql-not-a-string"),
        pytest.param(json_request(b"{}"), id="no-sql"),
        pytest.param(json_request(b'{"sql":"SELECT 1","x":1}'), id="unknown-field"),
    ],
)
def test_a41_hostile_bodies_are_4xx_problems(server: Server, request_bytes: bytes) -> None:
    answer = server.raw(request_bytes)

    assert status_of(answer) in {400, 415}
    assert b"application/problem+json" in answer
    assert b"<html" not in answer.lower()
    assert b"Traceback" not in answer


def test_a43_a_refused_request_does_not_wait_for_its_body(server: Server) -> None:
    request = raw_request("POST", "/v1/sql", [("Content-Length", "10000000000")], length=False)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S / 2) as connection:
        connection.sendall(request)
        assert status_of(connection.recv(65536)) == 401

        if server.mode != "runserver":  # Django's server keeps the connection until the body has come.
            while connection.recv(65536):
                pass


def test_a48_every_decision_leaves_a_line(server: Server) -> None:
    server.sql("SELECT 1", WRONG, X_Request_Id="check-a48-wrong")
    server.sql("SELECT 1", K1, X_Request_Id="check-a48-first")
    server.sql("SELECT 1", K2, X_Request_Id="check-a48-second")

    def lines(request_id: str) -> str:
        return "\n".join(line for line in server.output().splitlines() if request_id in line)

    wait_for(lambda: lines("check-a48-second"), "the access log line")
    first = re.search(r"fingerprint=(\w+)", lines("check-a48-first"))
    second = re.search(r"fingerprint=(\w+)", lines("check-a48-second"))
    assert first
    assert second
    assert first[1] != second[1]
    assert "127.0.0.1" in lines("check-a48-wrong")
    assert "401" in lines("check-a48-wrong")
    for key in (K1, K2, WRONG):
        assert key not in server.output()
        assert key[:5] not in server.output()


@pytest.mark.parametrize(("sent", "kept"), [("abc-123", True), ("x" * 200, False), ("a b", False), ("é", False)])
def test_request_id_comes_back_when_it_is_well_formed(server: Server, sent: str, kept: bool) -> None:
    answer = server.get("/health", headers={"X-Request-Id": sent.encode()})

    assert (answer.headers["X-Request-Id"] == sent) is kept
    assert json.dumps(answer.headers["X-Request-Id"])
