"""
Checks A01 to A43 over real sockets, in the three server modes.

What each server makes of the bytes of a request is tested here in full; what the application decides, in
tests/sqlapi/test_authentication.py, and here by samples.
"""

import base64
import re
import socket

from tests.corpus import each
from tests.system.harness import K1, K2, PATIENCE_S, WRONG, Server, raw_request, status_of

Header = tuple[str, str | bytes]


def post(*headers: Header, path: str = "/v1/sql", method: str = "POST") -> bytes:
    """Return a request with a statement as its body."""
    return raw_request(method, path, list(headers), b"SELECT 1")


def key(value: str | bytes) -> Header:
    return "X-API-Key", value


def authorization(value: str | bytes) -> Header:
    return "Authorization", value


def cases(table: dict[str, list[bytes]]) -> list[tuple[str, bytes]]:
    return [(name, request) for name, requests in table.items() for request in requests]


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
    "A31 headers that reroute": [
        raw_request("GET", "/health?_method=POST", [header])
        for header in (
            ("X-Original-URL", "/v1/sql"),
            ("X-Rewrite-URL", "/v1/sql"),
            ("X-HTTP-Method-Override", "POST"),
            ("X-Forwarded-Prefix", "/v1"),
            ("Script-Name", "/x"),
        )
    ],
}


@each("check, request_bytes", cases(ACCEPTED))
def test_accepted(server: Server, check: str, request_bytes: bytes) -> None:
    answer = server.raw(request_bytes)

    assert status_of(answer) == 200, check
    if request_bytes.startswith(b"GET /health"):
        assert answer.endswith(b"\r\n\r\nok\n")


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


@each("check, request_bytes", cases(REFUSED))
def test_refused(server: Server, check: str, request_bytes: bytes) -> None:
    answer = server.raw(request_bytes)

    # A server may refuse or drop a header of a million bytes before it is read.
    assert status_of(answer) in ({400, 401} if len(request_bytes) < 8_000 else {0, 400, 401, 413, 431}), check
    assert b"echo-me" not in answer
    if request_bytes.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")
    assert K1 not in server.output()


def test_a01_a05_a24_a25_a_refusal_is_the_same_for_every_path_and_for_a_wrong_key(server: Server) -> None:
    """Of every path, method and key: see tests/sqlapi/test_authentication.py."""
    refusals = [server.sql("SELECT 1", None), server.get("/.git/config"), server.sql("SELECT 1", WRONG)]
    absent, elsewhere, wrong = ({**answer.json(), "request_id": ""} for answer in refusals)

    assert [answer.status_code for answer in refusals] == [401, 401, 401]
    assert absent == elsewhere
    assert {name for name in absent if absent[name] != wrong[name]} == {"code", "detail"}
    for answer in refusals:
        assert set(answer.headers) == set(refusals[0].headers)
        error = ', error="invalid_token"' if answer is refusals[2] else ""
        assert answer.headers["WWW-Authenticate"] == f'Bearer realm="querykeep"{error}'
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert len(answer.content) <= 1024
        assert not re.search(r"\d", answer.headers.get("Server", ""))
    found = server.get("/.git/config", headers={"X-API-Key": K1})
    assert (found.status_code, found.json()["code"]) == (404, "not_found")


@each(
    "hosts",
    [("x" * 5000,), ("a b",), ("",), ("[::1",), ("a,b",), ("a@b",), ("localhost:99999",), ("localhost", "evil.test")],
)
def test_a38_malformed_and_repeated_hosts_are_refused(server: Server, hosts: tuple[str, ...]) -> None:
    answer = server.raw(post(*(("Host", host) for host in hosts), key(K1)))

    assert status_of(answer) in ({400, 431} if len(hosts[0]) > 1000 else {400})
    assert b":99999" not in answer


def test_a43_a_refused_request_does_not_wait_for_its_body(server: Server) -> None:
    request = raw_request("POST", "/v1/sql", [("Content-Length", "10000000000")], length=False)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S / 2) as connection:
        connection.sendall(request)
        assert status_of(connection.recv(65536)) == 401

        if server.mode != "runserver":  # Django's server keeps the connection until the body has come.
            while connection.recv(65536):
                pass
