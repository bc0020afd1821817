"""
Checks A01 to A48 over real sockets, in the three server modes.

What each server makes of the bytes of a request is tested here in full; what the application decides, in
tests/sqlapi/test_authentication.py, and here by samples.
"""

import base64
import json
import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.system.harness import K1, K2, PATIENCE_S, WRONG, Server, free_port, raw_request, status_of, wait_for

Header = tuple[str, str | bytes]


def post(*headers: Header, path: str = "/v1/sql", method: str = "POST") -> bytes:
    """Return a request with a statement as its body."""
    return raw_request(method, path, list(headers), b"SELECT 1")


def key(value: str | bytes) -> Header:
    return "X-API-Key", value


def authorization(value: str | bytes) -> Header:
    return "Authorization", value


def cases(table: dict[str, list[bytes]]) -> list[object]:
    return [
        pytest.param(request, id=f"{name} {n}")
        for name, requests in table.items()
        for n, request in enumerate(requests)
    ]


def without_request_id(answer: httpx.Response) -> dict[str, object]:
    body = answer.json()
    body.pop("request_id")
    return dict(body)


ACCEPTED = {
    "A02 any configured key": [post(key(K1)), post(key(K2))],
    "A03 names in any case": [post((name, K1)) for name in ("x-api-key", "X-API-KEY", "x-Api-keY")],
    "A04 schemes in any case": [
        post(authorization(f"{scheme} {K1}")) for scheme in ("Bearer", "bearer", "BEARER", "bEaReR")
    ],
    "A09 outer white space": [post(key(f" \t{K1} \t"))],
    "A16 X-API-Key decides alone unless empty": [
        post(key(first), authorization(f"Bearer {second}")) for first, second in ((K1, WRONG), ("", K1), (K1, K2))
    ],
    "A34 open paths": [
        raw_request(method, path, [])
        for method in ("GET", "HEAD")
        for path in ("/health", "/health?x=1", "/v1/ready", "/v1/ready?verbose=true")
    ],
}


@pytest.mark.parametrize("request_bytes", cases(ACCEPTED))
def test_accepted(server: Server, request_bytes: bytes) -> None:
    assert status_of(server.raw(request_bytes)) == 200


TWICE = [(K1, WRONG), (WRONG, K1), (K1, K1), (K1, ""), ("", K1)]
REFUSED = {
    "A07 an empty key": [post(key("")), post(key("   "))],
    "A09 inner white space": [post(key(f"{K1[:4]} {K1[4:]}"))],
    "A10 bytes beyond ASCII": [
        post(header)
        for value in (b"\xe9", "kéy".encode(), K1.encode() + b"\xff", b"\xf0\x9f\x94\x91")
        for header in (key(value), authorization(b"Bearer " + value))
    ],
    "A10 white space of Unicode": [
        post(*headers)
        for space in (b"\xa0", b"\x85")
        for headers in ([key(space + K1.encode() + space)], [key(space), authorization(f"Bearer {K1}")])
    ],
    "A12 long keys": [post(key(K1.ljust(size, "x"))) for size in (7_000, 64_000, 1_000_000)],
    "A13 repeated keys": [post(key(first), key(second)) for first, second in TWICE],
    "A15 repeated bearers": [
        post(authorization(f"Bearer {first}"), authorization(f"Bearer {second}")) for first, second in TWICE
    ],
    "A16 X-API-Key decides alone": [
        post(key(first), authorization(f"Bearer {second}")) for first, second in ((WRONG, K1), ("", WRONG))
    ],
    "A18 other schemes": [
        post(authorization(value))
        for value in (
            *(K1, f"Token {K1}", f"ApiKey {K1}", "Digest x", "Bearer", "Bearer ", f"Bearer{K1}", f"Bearer {K1} {K1}"),
            *("Basic " + base64.b64encode(text.encode()).decode() for text in (f":{K1}", f"{K1}:")),
            f"Negotiate {K1}",
        )
    ],
    "A20 query strings": [
        post(path=f"/v1/sql?{name}={K1}") for name in ("api_key", "access_token", "X-API-Key", "key", "apikey")
    ],
    "A20 cookies and bodies": [
        post(("Cookie", f"X-API-Key={K1}; api_key={K1}")),
        raw_request("POST", "/v1/sql", [], f"api_key={K1}".encode()),
    ],
    "A22 underscores": [post(("X_API_Key", K1)), post(key(WRONG), ("X_API_Key", K1))],
    "A27 every method": [
        raw_request(method, "/v1/sql", [("X-Marker", "echo-me")])
        for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "FOO", "GET", "PROPFIND")
    ],
    "A27 odd methods": [raw_request(method, "/v1/sql", []) for method in ("CONNECT", "get", "G\x01T")],
    "A31 headers that reroute": [
        post((name, "/health"))
        for name in ("X-Original-URL", "X-Rewrite-URL", "X-HTTP-Method-Override", "X-Forwarded-Prefix", "Script-Name")
    ],
    "A32 spellings of a path": [
        post(path=path)
        for path in (
            *("/v1/ready/../sql", "/health/../v1/sql", "/v1/ready/%2e%2e/sql", "/v1/ready%2f..%2fsql", "//v1/sql"),
            *("/v1//sql", "/v1/./sql", "/v1/sql/", "/V1/SQL", "/v1/%73ql", "/v1%2fsql", "/v1/sql%00", "/v1/sql%20"),
            *("/v1/sql%0a", "/v1/sql%23/health", "/v1/sql?/health", "/v1/sql;/health", "/health;/v1/sql", "/health%0a"),
            *("http://localhost/v1/sql", "/%ff%fe"),
        )
    ],
    "A34 only the exact paths are open": [
        raw_request("GET", path, [])
        for path in (
            *("/healthz", "/health/", "/healthx", "/HEALTH", "/v1/ready/", "/v1/readyx", "/v1/Ready", "/v1/ready%20"),
            *("/health%00", "//health", "/v1/ready%0a", "/v1/health", "/ready"),
        )
    ],
}


@pytest.mark.parametrize("request_bytes", cases(REFUSED))
def test_refused(server: Server, request_bytes: bytes) -> None:
    answer = server.raw(request_bytes)

    # A server may refuse or drop a header of a million bytes before it is read.
    assert status_of(answer) in ({400, 401} if len(request_bytes) < 8_000 else {0, 400, 401, 413, 431})
    assert b"echo-me" not in answer
    if request_bytes.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")
    assert K1 not in server.output()


def test_a12_a_long_key_leaves_the_server_working(server: Server) -> None:
    assert server.rows("SELECT 1 AS a") == [{"a": 1}]


def test_a01_no_key_is_challenged(server: Server) -> None:
    answer = server.sql("SELECT 1", None)

    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="querykeep"'
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert len(answer.content) <= 1024


def test_a05_a07_a_wrong_key_looks_like_none_but_for_the_error(server: Server) -> None:
    absent, wrong = server.sql("SELECT 1", None), server.sql("SELECT 1", WRONG)

    assert wrong.status_code == 401
    assert wrong.headers["WWW-Authenticate"] == 'Bearer realm="querykeep", error="invalid_token"'
    assert WRONG[:8] not in wrong.text
    for part in ("type", "title", "status"):
        assert without_request_id(absent)[part] == without_request_id(wrong)[part]
    for value in ("", "   "):
        assert b"error=" not in server.raw(post(key(value)))


def test_a24_a25_paths_without_a_key_give_the_same_401_and_with_one_404(server: Server) -> None:
    reference = server.sql("SELECT 1", None)

    for path in ("/", "/v1/nope", "/admin/", "/static/x", "/favicon.ico", "/.git/config", "/metrics", "/v1/status"):
        answer = server.get(path)
        assert answer.status_code == 401, path
        assert without_request_id(answer) == without_request_id(reference)
        assert set(answer.headers) == set(reference.headers)
        if path != "/v1/status":
            found = server.get(path, headers={"X-API-Key": K1})
            assert (found.status_code, found.json()["code"]) == (404, "not_found")


def test_a27_a34_wrong_methods_are_405(server: Server) -> None:
    for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "GET"):
        answer = server.raw(raw_request(method, "/v1/sql", [key(K1)]))
        assert status_of(answer) == 405
        assert re.search(rb"\r\n[Aa]llow: POST", answer)
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        for path in ("/health", "/v1/ready"):
            answer = server.raw(raw_request(method, path, [key(WRONG)]))
            assert status_of(answer) == 405
            assert b"\r\nallow: get, head\r\n" in answer.lower()


def test_a29_no_cors(server: Server) -> None:
    headers: list[Header] = [
        ("Origin", "https://evil.test"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "x-api-key"),
    ]

    for more in ([], [key(K1)]):
        assert b"access-control" not in server.raw(raw_request("OPTIONS", "/v1/sql", [*headers, *more])).lower()


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
def test_a31_headers_do_not_reroute(server: Server, header: Header) -> None:
    health = server.raw(raw_request("GET", "/health?_method=POST", [header]))

    assert status_of(health) == 200
    assert health.endswith(b"\r\n\r\nok\n")


@pytest.mark.parametrize(("path", "body"), [("/health", "ok\n"), ("/v1/ready", "ready")])
def test_a35_open_answers_say_nothing(server: Server, path: str, body: str) -> None:
    without, with_key = server.get(path), server.get(path, headers={"X-API-Key": K1})

    assert without.text == with_key.text == body
    assert not re.search(r"\d", without.headers.get("Server", ""))


def test_a36_no_redirects(server: Server) -> None:
    assert status_of(server.raw(post(key(K1), path="/v1/sql/"))) == 404


@pytest.mark.parametrize("host", ["a@b", "localhost:99999", "x" * 5000, "a b", "", "[::1", "local host", "a,b"])
def test_a38_malformed_hosts_are_refused(server: Server, host: str) -> None:
    answer = server.raw(post(("Host", host), key(K1)))

    assert status_of(answer) in {400, 431}
    assert b":99999" not in answer


def test_a38_two_hosts_are_refused(server: Server) -> None:
    assert status_of(server.raw(post(("Host", "localhost"), ("Host", "evil.test"), key(K1)))) == 400


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    text = f'runtime:\n  http: {{bind: "127.0.0.1:{port}"}}\n  flight: {{enabled: false}}\n'
    with Server(tmp_path_factory.mktemp("open"), text=text, port=port) as server:
        yield server


@pytest.mark.parametrize(
    "header",
    [
        *(("Host", f"{host}attacker.test") for host in ("", "localhost.", "127.0.0.1.")),
        ("Host", "attacker.test:8090"),
        ("Origin", "https://attacker.test"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ],
)
def test_a39_a40_while_authentication_is_off_other_sites_are_refused(open_server: Server, header: Header) -> None:
    answer = open_server.raw(post(header))

    assert status_of(answer) == (400 if header[0] == "Host" else 403)
    assert b"attacker" not in answer
    assert status_of(open_server.raw(post())) == 200


@pytest.mark.parametrize(
    ("body", "more"),
    [
        pytest.param(b'{"sql":"SELECT 1"}', "; charset=utf-99", id="charset"),
        pytest.param(b"[" * 100_000, "", id="deep"),
        pytest.param(b'{"sql":"SELECT \xff"}', "", id="not UTF-8"),
        pytest.param(b"{}", "", id="no sql"),
    ],
)
def test_a41_hostile_bodies_are_4xx_problems(server: Server, body: bytes, more: str) -> None:
    """Every such body is refused alike in process: see tests/sqlapi/test_request_bodies.py."""
    answer = server.raw(raw_request("POST", "/v1/sql", [key(K1), ("Content-Type", f"application/json{more}")], body))

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
    for secret in (K1, K2, WRONG):
        assert secret not in server.output()
        assert secret[:5] not in server.output()


@pytest.mark.parametrize(("sent", "kept"), [("abc-123", True), ("x" * 200, False), ("a b", False), ("é", False)])
def test_request_id_comes_back_when_it_is_well_formed(server: Server, sent: str, kept: bool) -> None:
    answer = server.get("/health", headers={"X-Request-Id": sent.encode()})

    assert (answer.headers["X-Request-Id"] == sent) is kept
    assert json.dumps(answer.headers["X-Request-Id"])
