from __future__ import annotations

import gzip
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import trustme

from runtimeclient.client import RuntimeClient, Timeouts
from runtimeclient.errors import (
    AnswerCutError,
    ConnectionFailedError,
    NotARuntimeError,
    NotAuthorisedError,
    RefreshFailedError,
    RequestRefusedError,
    UsageError,
)
from runtimeclient.http.answers import CSV, JSON_WITH_SCHEMA
from runtimeclient.http.resources import ComponentStatus, DatasetStatus, RefreshRun
from tests.runtimeclient.remote import API_KEY, VND, Remote, Reply, problem, refuse_other_keys, serve, with_schema

IMPATIENT = Timeouts(connect_s=0.2, silence_s=0.2)


@pytest.fixture
def client(remote: Remote) -> Iterator[RuntimeClient]:
    with RuntimeClient(remote.url, API_KEY) as client:
        yield client


def test_a_statement_is_sent_as_it_is_with_the_key(remote: Remote, client: RuntimeClient) -> None:
    remote.on_sql(refuse_other_keys(Reply(body='[{"a":1,"ä":"x"},{"a":2.50,"ä":null}]'.encode())))

    with client.sql("SELECT 'ä' ;\n") as answer:
        rows = list(answer.rows())

    assert [row.values for row in rows] == [{"a": "1", "ä": "x"}, {"a": "2.50", "ä": None}]
    assert rows[1].text == '{"a":2.50,"ä":null}'
    assert answer.columns == ("a", "ä")
    [request] = remote.requests
    assert request.body == "SELECT 'ä' ;\n".encode()
    assert request.headers["X-API-Key"] == API_KEY
    assert "Authorization" not in request.headers


def test_without_a_key_no_key_is_sent(remote: Remote) -> None:
    remote.on_sql(Reply(body=b"[]", content_type="text/plain; charset=utf-8"))

    with RuntimeClient(remote.url) as client, client.sql("SELECT 1") as answer:
        assert list(answer.rows()) == []

    assert "X-API-Key" not in remote.requests[0].headers


def test_the_columns_of_an_empty_answer_come_from_its_schema(remote: Remote, client: RuntimeClient) -> None:
    remote.on_sql(with_schema("[]", "a", "b"))

    with client.sql("SELECT", JSON_WITH_SCHEMA) as answer:
        assert list(answer.rows()) == []

    assert answer.columns == ("a", "b")


@pytest.mark.parametrize("schema", ["null", "{}", '{"fields":7}', '{"fields":[7]}', '{"fields":[]}'])
def test_a_schema_of_another_shape_gives_no_columns(remote: Remote, client: RuntimeClient, schema: str) -> None:
    remote.on_sql(Reply(body=b'{"schema":%s,"data":[]}' % schema.encode(), content_type=VND))

    with client.sql("SELECT", JSON_WITH_SCHEMA) as answer:
        assert list(answer.rows()) == []

    assert answer.columns == ()


def test_rows_are_told_apart_when_the_schema_is_not(remote: Remote, client: RuntimeClient) -> None:
    remote.on_sql(with_schema('[{"a":1,"a_1":2}]', "a", "a"))

    with client.sql("SELECT", JSON_WITH_SCHEMA) as answer:
        assert next(answer.rows()).values == {"a": "1", "a_1": "2"}
        assert answer.columns == ("a", "a_1")


def test_csv_comes_as_it_is(remote: Remote, client: RuntimeClient) -> None:
    remote.on_sql(Reply(body="a\ré\n".encode(), content_type="text/csv; charset=utf-8"))

    with client.sql("SELECT", CSV) as answer:
        assert "".join(answer.pieces()) == "a\ré\n"


@pytest.mark.parametrize("media_type", ["application/json", VND, "text/csv"])
@pytest.mark.parametrize("body", [b"", b'[{"a":1},', b'[{"a":1}]', b'{"schema":{},"data":[{"a":1}]}'])
def test_a_cut_answer_never_looks_complete(remote: Remote, client: RuntimeClient, media_type: str, body: bytes) -> None:
    remote.on_sql(Reply(body=body, content_type=media_type, is_cut=True))

    with client.sql("SELECT", media_type) as answer, pytest.raises(AnswerCutError):
        list(answer.pieces() if media_type == CSV else answer.rows())


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b'[{"a":1}', b'[{"a":[{"b":1}]', b'[{"a":1}]]', b"[1]", b"7", b"\xff", b'[{"a":"\xc3"}]', b"[{}]\xc3"],
)
def test_what_is_not_rows_never_looks_complete(remote: Remote, client: RuntimeClient, body: bytes) -> None:
    remote.on_sql(Reply(body=body))

    with client.sql("SELECT") as answer, pytest.raises(AnswerCutError):
        list(answer.rows())


def test_an_answer_whose_end_does_not_show_is_not_trusted(remote: Remote, client: RuntimeClient) -> None:
    remote.on_sql(Reply(body=b"a\n1\n", content_type="text/csv", has_end=False))

    with client.sql("SELECT", CSV) as answer, pytest.raises(AnswerCutError, match="may have been cut"):
        list(answer.pieces())


def test_an_answer_that_falls_silent_is_cut(remote: Remote) -> None:
    with (
        silent_after(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
        ) as url,
        # Long enough for the server to be given a processor for the first half of its answer.
        RuntimeClient(url, timeouts=Timeouts(silence_s=2.0)) as client,
        client.sql("SELECT", CSV) as answer,
        pytest.raises(AnswerCutError, match=r"nothing arrived for 2 s"),
    ):
        list(answer.pieces())


def test_closing_an_answer_early_ends_the_connection(remote: Remote) -> None:
    ended = threading.Event()
    body = b"[" + b'{"a":1},' * 4_000_000

    class Endless(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in the base class)
            """Keep quiet."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(10 * len(body)))
            self.end_headers()
            try:
                while True:
                    self.wfile.write(body)
            except ConnectionError:
                self.close_connection = True
                ended.set()

    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with RuntimeClient(f"http://127.0.0.1:{server.server_port}") as client, client.sql("SELECT") as answer:
            assert next(answer.rows()).values == {"a": "1"}
        assert ended.wait(60)
        server.shutdown()
        thread.join()


def test_a_refusal_says_what_the_runtime_said(remote: Remote, client: RuntimeClient) -> None:
    remote.on_sql(problem(400, "sql_error", "Table absent does not exist."))

    with pytest.raises(RequestRefusedError, match=r"^Table absent does not exist\. \[sql_error\]$") as caught:
        client.sql("SELECT * FROM absent")

    assert (caught.value.status, caught.value.code, caught.value.request_id) == (400, "sql_error", "r-1")


def test_a_failure_of_the_runtime_names_the_request(remote: Remote, client: RuntimeClient) -> None:
    remote.on_sql(problem(500, "internal_error", "The engine died."))

    with pytest.raises(RequestRefusedError, match=r"\[internal_error, request r-1\]"):
        client.sql("SELECT 1")


@pytest.mark.parametrize("api_key", [None, "wrong"])
def test_x03_a_wrong_key_and_no_key_are_told_apart(remote: Remote, api_key: str | None) -> None:
    remote.on("GET", "/v1/status", refuse_other_keys(Reply(body=b"[]")))

    with RuntimeClient(remote.url, api_key) as client, pytest.raises(NotAuthorisedError) as caught:
        client.status()

    assert ("requires an API key" if api_key is None else "refused the API key") in str(caught.value)
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(404, b"<html>", "text/html"), id="HTML 404"),
        pytest.param(Reply(200, b"<html>", "text/html"), id="HTML 200"),
        pytest.param(Reply(204), id="no content"),
        pytest.param(Reply(502, b"bad gateway", "text/plain"), id="a gateway"),
        pytest.param(Reply(500, b"{", "application/problem+json"), id="a broken problem"),
        pytest.param(Reply(500, b"[]", "application/problem+json"), id="a problem that is a list"),
        pytest.param(Reply(500, b'{"code":7,"detail":"x"}', "application/problem+json"), id="a code that is a number"),
        pytest.param(Reply(500, b"{}", "application/problem+json"), id="an empty problem"),
        pytest.param(Reply(headers={"Content-Encoding": "gzip"}, body=gzip.compress(b"[]")), id="compressed"),
    ],
)
def test_another_server_is_not_taken_for_a_runtime(remote: Remote, client: RuntimeClient, reply: Reply) -> None:
    remote.on_sql(reply)
    remote.on("GET", "/v1/status", reply)

    for call in (lambda: client.sql("SELECT 1"), client.status):
        with pytest.raises(NotARuntimeError, match="is this the right endpoint"):
            call()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"7",
        b"{}",
        b"[7]",
        b'[{"name":1}]',
        b'[{"name":"http"}]',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_list_of_another_shape_is_not_taken_for_a_runtime(remote: Remote, client: RuntimeClient, body: bytes) -> None:
    for path in ("/v1/status", "/v1/datasets"):
        remote.on("GET", path, Reply(body=body))

    for call in (client.status, client.datasets):
        with pytest.raises(NotARuntimeError):
            call()


def test_an_endless_list_is_given_up(remote: Remote, client: RuntimeClient) -> None:
    remote.on("GET", "/v1/status", Reply(body=b" " * (5 << 20)))

    with pytest.raises(NotARuntimeError):
        client.status()


def test_a_cut_list_is_no_list(remote: Remote, client: RuntimeClient) -> None:
    remote.on("GET", "/v1/status", Reply(body=b"[]", is_cut=True))

    with pytest.raises(ConnectionFailedError, match="before a complete response"):
        client.status()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_the_key_stays(remote: Remote, client: RuntimeClient, status: int) -> None:
    with serve(Remote()) as other:
        for origin in (other.url, remote.url, ""):
            redirect = Reply(status, b"", "text/html", {"Location": f"{origin}/elsewhere"})
            remote.on_sql(redirect)
            remote.on("GET", "/v1/status", redirect)

            for call in (lambda: client.sql("SELECT 1"), client.status):
                with pytest.raises(NotARuntimeError, match="redirect"):
                    call()

        assert other.requests == []
    assert {request.path for request in remote.requests} == {"/v1/sql", "/v1/status"}


def test_a_path_prefix_is_kept(remote: Remote) -> None:
    remote.on("GET", "/inner/v1/status", Reply(body=b"[]"))

    with RuntimeClient(f"{remote.url}/inner/") as client:
        assert client.status() == ()


def test_the_status_of_the_components(remote: Remote, client: RuntimeClient) -> None:
    items = [{"name": "http", "endpoint": "127.0.0.1:8090", "status": "Ready", "new": 1}]
    remote.on("GET", "/v1/status", Reply(body=json.dumps(items).encode()))

    assert client.status() == (ComponentStatus(name="http", endpoint="127.0.0.1:8090", status="Ready"),)


def test_the_datasets(remote: Remote, client: RuntimeClient) -> None:
    item = {
        "from": "file:a",
        "name": "a",
        "acceleration_enabled": False,
        "status": "Error",
        "rows": None,
        "error": "no",
    }
    remote.on("GET", "/v1/datasets", Reply(body=json.dumps([item]).encode()))

    assert client.datasets() == (
        DatasetStatus(
            from_="file:a",
            name="a",
            acceleration_enabled=False,
            status="Error",
            rows=None,
            refreshed_at=None,
            snapshot=None,
            error="no",
        ),
    )


def run_of(status: str, **fields: object) -> dict[str, object]:
    return {"id": "7", "status": status} | fields


def test_a_refresh_is_asked_for_and_waited_for(remote: Remote, client: RuntimeClient) -> None:
    remote.on_refreshes(
        "flights", run_of("queued"), run_of("running"), run_of("succeeded", rows=336_776, duration_ms=1234)
    )
    seen: list[RefreshRun] = []

    request = client.request_refresh("flights")
    run = client.wait_for_refresh("flights", request.id, seen.append)

    assert request.message == "Dataset refresh triggered for flights."
    assert (run.rows, run.duration_ms) == (336_776, 1234)
    assert [look.status for look in seen] == ["queued", "running", "succeeded"]
    assert [request.method for request in remote.requests] == ["POST", "GET", "GET", "GET"]
    assert remote.requests[0].body == b""


def test_a_refresh_takes_its_own_sql_mode_and_jitter(remote: Remote, client: RuntimeClient) -> None:
    remote.on_refreshes("flights")

    client.request_refresh("flights", "SELECT 'ä'", refresh_mode="append", refresh_jitter_max="9s")

    [request] = remote.requests
    assert list(json.loads(request.body).values()) == ["SELECT 'ä'", "append", "9s"]
    assert request.headers["Content-Type"] == "application/json"


def test_a_failed_refresh_says_why(remote: Remote, client: RuntimeClient) -> None:
    remote.on_refreshes("flights", run_of("failed", error="The file is gone."), run_of("interrupted"))

    with pytest.raises(RefreshFailedError, match="flights failed: The file is gone"):
        client.wait_for_refresh("flights", "7")
    with pytest.raises(RefreshFailedError, match="flights interrupted: the runtime gave no reason"):
        client.wait_for_refresh("flights", "7")


def test_a_refresh_that_is_not_listed_any_more_is_not_waited_for(remote: Remote, client: RuntimeClient) -> None:
    remote.on_refreshes("flights", run_of("queued"))

    with pytest.raises(RefreshFailedError, match="no longer lists refresh 8"):
        client.wait_for_refresh("flights", "8")


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b'{"refresh":{"id":"7","status":"queued"}}', b'{"message":"x","refresh":{}}']
)
def test_an_answer_that_names_no_refresh_is_not_one_of_a_runtime(
    remote: Remote, client: RuntimeClient, body: bytes
) -> None:
    remote.on("POST", "/v1/datasets/a/acceleration/refresh", Reply(201, body))

    with pytest.raises(NotARuntimeError):
        client.request_refresh("a")


@pytest.mark.parametrize(
    ("name", "path"),
    [("..", "%2E%2E"), ("a/b", "a%2Fb"), ("a?b#c", "a%3Fb%23c"), ("ä b", "%C3%A4%20b"), ("%2F", "%252F")],
)
def test_a_dataset_name_stays_one_part_of_the_path(remote: Remote, client: RuntimeClient, name: str, path: str) -> None:
    remote.on("GET", f"/v1/datasets/{path}/acceleration/refresh", Reply(body=b"[]"))

    assert client.refreshes(name) == ()


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.request_refresh(""),
        lambda c: c.request_refresh("a", "\udcff"),
        lambda c: c.refreshes("\udcff"),
        lambda c: c.sql("\udcff"),
        lambda c: c.sql("SELECT '\ud800'"),
    ],
)
def test_what_cannot_be_sent_is_a_usage_error(
    remote: Remote, client: RuntimeClient, call: Callable[[RuntimeClient], object]
) -> None:
    with pytest.raises(UsageError):
        call(client)

    assert remote.requests == []


@pytest.mark.parametrize("key", ["", "sesame\n", "sesame\r\nX-Evil: 1", "sesamé", " sesame"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        RuntimeClient("http://127.0.0.1:8090", key)

    assert "sesam" not in str(caught.value)


# No connection


@contextmanager
def silent_after(answer: bytes) -> Iterator[str]:
    """A server that takes one request, sends *answer* and says no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def work() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                while connection.recv(65536):
                    pass

        thread = threading.Thread(target=work)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_x09_a_server_that_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    with RuntimeClient(f"http://127.0.0.1:{port}", API_KEY) as client:
        for call in (client.ping, client.status, lambda: client.sql("SELECT 1")):
            with pytest.raises(ConnectionFailedError, match="is the runtime running"):
                call()


def test_x09_a_server_that_accepts_and_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with RuntimeClient(url, API_KEY, timeouts=IMPATIENT) as client:
            for call in (client.ping, client.status, lambda: client.sql("SELECT 1")):
                with pytest.raises(ConnectionFailedError, match=r"did not answer within 0\.2 s"):
                    call()


def test_x09_a_server_that_drops_packets() -> None:
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        # A full backlog: Linux ignores whoever comes next, like a firewall that drops packets.
        first.connect(server.getsockname())
        second.setblocking(False)
        second.connect_ex(server.getsockname())
        with (
            RuntimeClient(f"http://127.0.0.1:{server.getsockname()[1]}", timeouts=IMPATIENT) as client,
            pytest.raises(ConnectionFailedError, match=r"No connection to .* within 0\.2 s"),
        ):
            client.ping()


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.9\r\n", b"HTTP/1.1 200", b"\x15\x03\x01\x00\x02\x02\x46"])
def test_x09_a_server_that_speaks_something_else(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def work() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=work)
        thread.start()
        with (
            RuntimeClient(f"http://127.0.0.1:{server.getsockname()[1]}") as client,
            pytest.raises(ConnectionFailedError, match="does it speak https"),
        ):
            client.status()
        thread.join()


def test_x09_a_host_that_is_not_known() -> None:
    with (
        RuntimeClient("http://absent.invalid:8090") as client,
        pytest.raises(ConnectionFailedError, match="cannot be resolved"),
    ):
        client.ping()


def test_any_transport_will_do() -> None:
    def application(environ: dict[str, object], start_response: Callable[..., object]) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/csv")])
        return [b"a\n", b"1\n"]

    transport = httpx.WSGITransport(application)

    with (
        RuntimeClient("http://testserver", API_KEY, transport=transport) as client,
        client.sql("SELECT", CSV) as answer,
    ):
        assert "".join(answer.pieces()) == "a\n1\n"


# Proxies


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_no_proxy_sees_what_is_meant_for_this_machine(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with serve(Remote()) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        remote.on("GET", "/v1/status", Reply(body=b"[]"))

        with RuntimeClient(remote.url, API_KEY) as client:
            client.status()

        assert proxy.requests == []


def test_a_proxy_of_the_environment_serves_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(Remote()) as proxy:
        proxy.on("GET", "http://runtime.example:8090/v1/status", Reply(body=b"[]"))
        monkeypatch.setenv("HTTP_PROXY", proxy.url)

        with RuntimeClient("http://runtime.example:8090", API_KEY) as client:
            assert client.status() == ()


def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(Remote()) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)

        with (
            RuntimeClient("https://runtime.example:8090", API_KEY) as client,
            pytest.raises(ConnectionFailedError, match="proxy"),
        ):
            client.status()


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "gopher://127.0.0.1:1", "http://127.0.0.1:x"])
def test_a_proxy_that_cannot_be_used_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)

    with pytest.raises(UsageError, match="proxy"):
        RuntimeClient("http://runtime.example:8090", API_KEY)


# TLS


@contextmanager
def serve_tls(certificate: trustme.LeafCert) -> Iterator[Remote]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)

    class Server(ThreadingHTTPServer):
        def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
            connection, address = super().get_request()
            # The handshake is left to the thread of the connection.
            return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

        def handle_error(self, request: object, client_address: object) -> None:
            """Keep quiet: clients that do not trust the certificate go away."""

    with serve(Remote("https"), Server(("127.0.0.1", 0), BaseHTTPRequestHandler)) as remote:
        remote.on("GET", "/v1/status", Reply(body=b"[]"))
        yield remote


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def root_file(authority: trustme.CA, tmp_path: Path) -> Path:
    file = tmp_path / "root.pem"
    authority.cert_pem.write_to_path(str(file))
    return file


def test_x08_a_certificate_of_the_named_root_is_trusted(authority: trustme.CA, root_file: Path) -> None:
    with (
        serve_tls(authority.issue_cert("127.0.0.1")) as remote,
        RuntimeClient(remote.url, API_KEY, tls_root_certificate_file=root_file) as client,
    ):
        assert client.status() == ()

    assert remote.requests[0].headers["X-API-Key"] == API_KEY


def test_x08_a_root_may_come_from_the_environment(
    authority: trustme.CA, root_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(root_file))

    with serve_tls(authority.issue_cert("127.0.0.1")) as remote, RuntimeClient(remote.url) as client:
        assert client.status() == ()


def test_x08_an_unknown_root_is_not_trusted(authority: trustme.CA) -> None:
    with (
        serve_tls(authority.issue_cert("127.0.0.1")) as remote,
        RuntimeClient(remote.url, API_KEY) as client,
        pytest.raises(ConnectionFailedError) as caught,
    ):
        client.status()

    assert "--tls-root-certificate-file" in str(caught.value)
    assert remote.requests == []


def test_x08_a_named_root_is_the_only_one(authority: trustme.CA, tmp_path: Path) -> None:
    file = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(file))

    with (
        serve_tls(authority.issue_cert("127.0.0.1")) as remote,
        RuntimeClient(remote.url, API_KEY, tls_root_certificate_file=file) as client,
        pytest.raises(ConnectionFailedError, match="cannot be trusted"),
    ):
        client.status()

    assert remote.requests == []


@pytest.mark.parametrize(
    ("host", "days", "reason"),
    [
        pytest.param("127.0.0.2", 1, "IP address mismatch", id="X08 wrong address"),
        pytest.param("localhost", 1, "IP address mismatch", id="X08 a name where an address is asked for"),
        pytest.param("127.0.0.1", -1, "certificate has expired", id="X08 expired"),
    ],
)
def test_x08_a_certificate_that_does_not_hold_is_refused(
    authority: trustme.CA, root_file: Path, host: str, days: int, reason: str
) -> None:
    until = datetime.now(UTC) + timedelta(days=days)
    certificate = authority.issue_cert(host, not_before=until - timedelta(days=3), not_after=until)

    with (
        serve_tls(certificate) as remote,
        RuntimeClient(remote.url, API_KEY, tls_root_certificate_file=root_file) as client,
        pytest.raises(ConnectionFailedError, match=f"cannot be trusted: .*{reason}"),
    ):
        client.status()

    assert remote.requests == []


def test_https_to_a_server_without_tls(remote: Remote) -> None:
    with (
        RuntimeClient(remote.url.replace("http", "https"), API_KEY) as client,
        pytest.raises(ConnectionFailedError, match="does it speak plain http"),
    ):
        client.status()


@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_a_root_file_that_cannot_be_used_is_a_usage_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "root.pem"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(UsageError, match=r"root certificate file .*root\.pem cannot be used"):
        RuntimeClient("https://127.0.0.1:8090", tls_root_certificate_file=file)
