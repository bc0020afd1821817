from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from runtimeclient.client import RuntimeClient
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


@pytest.fixture
def client(remote: Remote) -> Iterator[RuntimeClient]:
    with RuntimeClient(remote.url, API_KEY) as client:
        yield client


def test_a_statement_is_sent_unchanged_with_the_key(remote: Remote, client: RuntimeClient) -> None:
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
def test_an_unexpected_schema_gives_no_columns(remote: Remote, client: RuntimeClient, schema: str) -> None:
    remote.on_sql(Reply(body=b'{"schema":%s,"data":[]}' % schema.encode(), content_type=VND))

    with client.sql("SELECT", JSON_WITH_SCHEMA) as answer:
        assert list(answer.rows()) == []

    assert answer.columns == ()


def test_duplicate_columns_get_the_distinct_names_of_the_rows(remote: Remote, client: RuntimeClient) -> None:
    remote.on_sql(with_schema('[{"a":1,"a_1":2}]', "a", "a"))

    with client.sql("SELECT", JSON_WITH_SCHEMA) as answer:
        assert next(answer.rows()).values == {"a": "1", "a_1": "2"}
        assert answer.columns == ("a", "a_1")


def test_csv_is_unchanged(remote: Remote, client: RuntimeClient) -> None:
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
def test_an_answer_that_is_not_rows_is_an_error(remote: Remote, client: RuntimeClient, body: bytes) -> None:
    remote.on_sql(Reply(body=body))

    with client.sql("SELECT") as answer, pytest.raises(AnswerCutError):
        list(answer.rows())


def test_an_answer_of_unknown_length_is_not_trusted(remote: Remote, client: RuntimeClient) -> None:
    remote.on_sql(Reply(body=b"a\n1\n", content_type="text/csv", has_end=False))

    with client.sql("SELECT", CSV) as answer, pytest.raises(AnswerCutError, match="may have been cut"):
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


def test_a_refusal_has_the_message_of_the_runtime(remote: Remote, client: RuntimeClient) -> None:
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
def test_another_server_is_not_a_runtime(remote: Remote, client: RuntimeClient, reply: Reply) -> None:
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
def test_an_unexpected_list_is_not_from_a_runtime(remote: Remote, client: RuntimeClient, body: bytes) -> None:
    for path in ("/v1/status", "/v1/datasets"):
        remote.on("GET", path, Reply(body=body))

    for call in (client.status, client.datasets):
        with pytest.raises(NotARuntimeError):
            call()


def test_an_endless_list_is_an_error(remote: Remote, client: RuntimeClient) -> None:
    remote.on("GET", "/v1/status", Reply(body=b" " * (5 << 20)))

    with pytest.raises(NotARuntimeError):
        client.status()


def test_a_cut_list_is_an_error(remote: Remote, client: RuntimeClient) -> None:
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


def test_a_refresh_is_requested_and_polled(remote: Remote, client: RuntimeClient) -> None:
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


def test_a_refresh_that_is_no_longer_listed_is_an_error(remote: Remote, client: RuntimeClient) -> None:
    remote.on_refreshes("flights", run_of("queued"))

    with pytest.raises(RefreshFailedError, match="no longer lists refresh 8"):
        client.wait_for_refresh("flights", "8")


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b'{"refresh":{"id":"7","status":"queued"}}', b'{"message":"x","refresh":{}}']
)
def test_an_answer_without_a_refresh_is_not_from_a_runtime(remote: Remote, client: RuntimeClient, body: bytes) -> None:
    remote.on("POST", "/v1/datasets/a/acceleration/refresh", Reply(201, body))

    with pytest.raises(NotARuntimeError):
        client.request_refresh("a")


@pytest.mark.parametrize(
    ("name", "path"),
    [("..", "%2E%2E"), ("a/b", "a%2Fb"), ("a?b#c", "a%3Fb%23c"), ("ä b", "%C3%A4%20b"), ("%2F", "%252F")],
)
def test_a_dataset_name_is_one_segment_of_the_path(remote: Remote, client: RuntimeClient, name: str, path: str) -> None:
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
def test_text_that_cannot_be_encoded_is_a_usage_error(
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
