"""The local server of the console, by real requests, in front of a fake runtime."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from runtimeclient.console.assets import Asset
from runtimeclient.console.server import SESSION_HEADER, ConsoleServer
from tests.runtimeclient.console.console_thread import serving
from tests.runtimeclient.remote import API_KEY, Remote, Reply, Request, problem, serve
from tests.system.harness import NO_ROOTS, wait_for

PAGE = {
    "/index.html": Asset(b"<p>{{nonce}}</p>", "text/html; charset=utf-8"),
    "/main.js": Asset(b"1", "text/javascript"),
}
ARROW = "application/vnd.apache.arrow.stream"


class Page:
    """A browser's side: requests as the page of this console sends them."""

    def __init__(self, server: ConsoleServer) -> None:
        self.server = server
        self.origin = f"http://127.0.0.1:{server.port}"
        self.session = ""

    def request(self, method: str, path: str, **headers: str | None) -> httpx.Response:
        content = headers.pop("content", None)
        sent: dict[str, str | None] = {SESSION_HEADER: self.session, "Sec-Fetch-Site": "same-origin"}
        if method == "POST":
            sent["Origin"] = self.origin
            content = content or ""
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        given = {name: value for name, value in sent.items() if value is not None}
        with httpx.Client(trust_env=False, timeout=30, verify=NO_ROOTS) as client:
            return client.request(method, self.origin + path, headers=given, content=content)

    def get(self, path: str, **headers: str | None) -> httpx.Response:
        return self.request("GET", path, **headers)

    def post(self, path: str, content: str = "", **headers: str | None) -> httpx.Response:
        return self.request("POST", path, content=content, **headers)

    def open(self) -> "Page":
        token = self.server.make_link().partition("#token=")[2]
        self.session = self.post("/session", token).json()["session"]
        return self


@pytest.fixture
def server(remote: Remote) -> Iterator[ConsoleServer]:
    with serving(remote.url, API_KEY, PAGE) as running:
        yield running


@pytest.fixture
def page(server: ConsoleServer) -> Page:
    return Page(server).open()


def headers_of(response: bytes) -> dict[str, str]:
    lines = response.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines)


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def raw(server: ConsoleServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_request_is_passed_on_with_the_key_and_its_response_streams_back(remote: Remote, page: Page) -> None:
    remote.on_sql(Reply(body=b'[{"a":1}]', headers={"X-Query-Id": "q-1", "X-Request-Id": "r-1", "Set-Cookie": "a=b"}))

    response = page.post("/v1/sql?format=json", "SELECT 'ä' AS a", Accept="application/json", Cookie="c=d")

    sent = remote.requests[-1]
    assert (response.status_code, response.text) == (200, '[{"a":1}]')
    assert (sent.path, sent.body.decode()) == ("/v1/sql?format=json", "SELECT 'ä' AS a")
    assert (sent.headers["X-API-Key"], sent.headers["Accept"]) == (API_KEY, "application/json")
    assert {SESSION_HEADER, "Cookie", "Origin"}.isdisjoint(sent.headers)
    assert (response.headers["X-Query-Id"], response.headers["X-Request-Id"]) == ("q-1", "r-1")
    assert "Set-Cookie" not in response.headers


def test_nothing_is_sent_without_a_session(remote: Remote, server: ConsoleServer) -> None:
    stranger = Page(server)

    refused = [
        code_of(stranger.request(method, path, **{SESSION_HEADER: session}))
        for method, path in [("GET", "/v1/datasets"), ("POST", "/v1/sql"), ("GET", "/session"), ("GET", "/nowhere")]
        for session in [None, "", "guess", API_KEY]
    ]

    assert set(refused) == {(401, "console_session")}
    assert remote.requests == []


def test_a_session_is_opened_by_a_short_body(server: ConsoleServer) -> None:
    """Strangers on this machine must not fill the memory of the console."""
    assert code_of(Page(server).post("/session", "x" * 129)) == (413, "body_too_large")


def test_a_token_opens_one_session(server: ConsoleServer) -> None:
    token = server.make_link().partition("#token=")[2]
    page = Page(server)

    first, second, wrong = (page.post("/session", text) for text in (token, token, "x" + token[1:]))

    assert first.status_code == 200
    assert code_of(second) == code_of(wrong) == (403, "console_token")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "localhost:{port}", "evil.example:{port}", "127.0.0.1:{port}.evil.example", ""],
)
def test_another_host_is_refused_for_every_path(remote: Remote, page: Page, host: str) -> None:
    name = host.format(port=page.server.port)

    answers = [page.get(path, Host=name) for path in ("/", "/main.js", "/session", "/v1/datasets")]

    assert [code_of(answer) for answer in answers] == [(403, "console_host")] * 4
    assert remote.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"Origin": "http://evil.example"}, id="another origin"),
        pytest.param({"Origin": "null"}, id="an opaque origin"),
        pytest.param({"Origin": "http://127.0.0.1:1"}, id="another port"),
        pytest.param({"Sec_Fetch_Site": "cross-site"}, id="cross-site"),
        pytest.param({"Sec_Fetch_Site": "same-site"}, id="same-site: another port of this machine"),
        pytest.param({"Sec_Fetch_Site": "none"}, id="typed into the address bar"),
    ],
)
def test_other_pages_are_refused_even_with_the_session(remote: Remote, page: Page, headers: dict[str, str]) -> None:
    token = page.server.make_link().partition("#token=")[2]

    answers = [page.get("/v1/datasets", **headers), page.post("/v1/sql", "SELECT 1", **headers)]
    answers.append(page.post("/session", token, **headers))

    assert [code_of(answer) for answer in answers] == [(403, "console_origin")] * 3
    assert remote.requests == []
    assert page.post("/session", token).status_code == 200, "the token was not used up"


def test_a_post_without_an_origin_is_refused(page: Page) -> None:
    assert code_of(page.post("/v1/sql", "SELECT 1", Origin=None)) == (403, "console_origin")


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../admin",
        "/v1/%2e%2e/admin",
        "/v1/a/%2E",
        "/v1/sql\\..",
        "/v1/sql#a",
        "/v1/a;b",
        "/v1/%00%0d%0aX: y",
        "/v1//x?@",
    ],
)
def test_only_plain_paths_of_the_api_are_passed_on(remote: Remote, page: Page, target: str) -> None:
    request = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{page.server.port}\r\n{SESSION_HEADER}: {page.session}\r\n\r\n"

    answer = raw(page.server, request.encode())

    assert answer.split(b" ", 2)[1] in {b"400", b"404"}
    assert remote.requests == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "CONNECT", "HEAD", "TRACE"])
def test_other_methods_are_refused(remote: Remote, page: Page, method: str) -> None:
    assert page.request(method, "/v1/sql").status_code == 501
    assert remote.requests == []


def test_every_response_forbids_scripts_and_frames(remote: Remote, page: Page) -> None:
    remote.on_sql(Reply(body=b"<script>", content_type="text/html", headers={"Content-Security-Policy": "*"}))

    answers = [
        page.get("/"),
        page.get("/main.js"),
        page.get("/nowhere"),
        page.get("/session"),
        page.post("/v1/sql", "x"),
        page.request("PUT", "/<script>"),
        httpx.Response(400, headers=headers_of(raw(page.server, b"GET / HTTP/x\r\n\r\n"))),
    ]

    for answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_the_nonce_of_the_page_is_new_each_time(page: Page) -> None:
    first, second = page.get("/"), page.get("/")

    assert first.text != second.text
    nonce = first.text.removeprefix("<p>").removesuffix("</p>")
    assert f"style-src 'self' 'nonce-{nonce}'" in first.headers["Content-Security-Policy"]


def test_errors_of_the_runtime_arrive_without_the_key(remote: Remote, page: Page) -> None:
    reply = problem(429, "rate_limited", f"Too many requests by {API_KEY}.")
    remote.on_sql(Reply(429, reply.body, reply.content_type, {"Retry-After": "7", "X-Request-Id": API_KEY}))

    answer = page.post("/v1/sql", "SELECT 1")

    assert code_of(answer) == (429, "rate_limited")
    assert answer.headers["Retry-After"] == "7"
    assert API_KEY not in answer.text + str(answer.headers)


@pytest.mark.parametrize("status", [101, 204, 205, 304])
def test_a_response_that_has_no_body_is_refused(remote: Remote, page: Page, status: int) -> None:
    """The last chunk of a body would be taken for the next response."""
    remote.on_sql(Reply(status))

    assert code_of(page.post("/v1/sql", "SELECT 1")) == (502, "console_no_runtime")


def test_a_server_that_repeats_what_it_was_sent_does_not_give_the_key_away(remote: Remote, page: Page) -> None:
    remote.on("GET", "/v1/datasets", lambda request: Reply(body=str(request.headers).encode()))

    answer = page.get("/v1/datasets")

    assert answer.status_code == 200
    assert "<secret>" in answer.text
    assert API_KEY not in answer.text


def test_a_response_that_is_cut_does_not_look_complete(remote: Remote, page: Page) -> None:
    remote.on_sql(Reply(body=b'[{"a":1},', is_cut=True))

    with pytest.raises(httpx.RemoteProtocolError):
        page.post("/v1/sql", "SELECT 1")


def test_a_runtime_that_is_gone_is_named(page: Page, remote: Remote) -> None:
    with serve(Remote()) as other:
        pass
    with serving(other.url, API_KEY, PAGE) as server:
        stopped = Page(server).open()
        answer = stopped.get("/v1/datasets")

    assert code_of(answer) == (502, "console_no_runtime")
    assert answer.json()["detail"] == f"The connection to {other.url} was refused: is the runtime running?"


def test_a_browser_that_leaves_ends_the_request_to_the_runtime() -> None:
    with socket.create_server(("127.0.0.1", 0)) as runtime:
        remote = Remote(f"http://127.0.0.1:{runtime.getsockname()[1]}")
        with serving(remote.url, API_KEY, PAGE) as server:
            page = Page(server).open()
            with socket.create_connection(("127.0.0.1", server.port)) as browser:
                browser.sendall(post(page, "Content-Length: 8\r\n"))
                connection, _ = runtime.accept()
                connection.settimeout(30)
                received = connection.recv(65536)
            with connection:
                # The runtime stops a statement when its connection ends.
                while connection.recv(65536):
                    pass

    assert received.startswith(b"POST /v1/sql")


def post(page: Page, headers: str) -> bytes:
    """A statement of eight bytes, as the page sends it but for *headers*."""
    return (
        f"POST /v1/sql HTTP/1.1\r\nHost: 127.0.0.1:{page.server.port}\r\nOrigin: {page.origin}\r\n"
        f"{SESSION_HEADER}: {page.session}\r\n{headers}\r\nSELECT 1"
    ).encode()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param("Content-Length: 99999999\r\n", 413, id="too long"),
        pytest.param("Content-Length: 8\r\nContent-Length: 9\r\n", 411, id="two lengths"),
        pytest.param("Content-Length: -1\r\n", 411, id="negative"),
        pytest.param("Transfer-Encoding: chunked\r\n", 411, id="chunked"),
        pytest.param("Content-Length: 8\r\nTransfer-Encoding: chunked\r\n", 411, id="both"),
    ],
)
def test_a_body_needs_one_length(remote: Remote, page: Page, headers: str, status: int) -> None:
    answer = raw(page.server, post(page, headers))

    assert int(answer.split(b" ", 2)[1]) == status
    assert answer.count(b"HTTP/1.1") == 1, "the body is not taken for a request"
    assert remote.requests == []


def test_a_header_of_the_runtime_stays_one_header(remote: Remote, page: Page) -> None:
    remote.on_sql(Reply(body=b"[]", content_type="text/plain\x85X-Evil: 1"))

    assert "X-Evil" not in page.post("/v1/sql", "SELECT 1").headers


def test_what_the_page_is_told_contains_no_key(page: Page, remote: Remote) -> None:
    assert page.get("/session").json() == {"endpoint": remote.url, "profile": None, "has_key": True, "version": ""}
    assert API_KEY not in json.dumps(page.get("/session").json())


def test_a_console_without_a_key_sends_none(remote: Remote) -> None:
    with serving(remote.url, None, PAGE) as server:
        Page(server).open().get("/v1/datasets")

    assert "X-API-Key" not in remote.requests[-1].headers


def test_connections_without_a_session_are_bounded_and_keep_nobody_out(remote: Remote, page: Page) -> None:
    over = threading.Event()

    def reply(_: Request) -> Reply:
        assert over.wait(30)
        return Reply(body=b"[]")

    remote.on_sql(reply)
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        running = pool.submit(page.post, "/v1/sql", "SELECT 1")
        wait_for(lambda: remote.requests, "the statement to run")
        strangers = []
        for _ in range(100):
            strangers.append(stack.enter_context(socket.create_connection(("127.0.0.1", page.server.port), timeout=30)))
            assert page.get("/session").status_code == 200

        assert strangers[0].recv(1) == b"", "the oldest is closed"
        over.set()

        assert running.result().status_code == 200


def test_a_body_that_is_not_read_is_not_the_next_request(remote: Remote, page: Page) -> None:
    body = f"GET /v1/datasets HTTP/1.1\r\nHost: {page.server.host}\r\n{SESSION_HEADER}: {page.session}\r\n\r\n"
    request = f"GET /main.js HTTP/1.1\r\nHost: {page.server.host}\r\nContent-Length: {len(body)}\r\n\r\n{body}"

    assert raw(page.server, request.encode()).count(b"HTTP/1.1") == 1
    assert remote.requests == []
