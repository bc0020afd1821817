import gzip
from collections.abc import Callable, Iterator

import pytest

from runtimeclient.client import RuntimeClient
from runtimeclient.errors import (
    ConnectionFailedError,
    IncompleteResultError,
    NotARuntimeError,
    RefreshFailedError,
    RequestRefusedError,
    UsageError,
)
from runtimeclient.http.results import CSV, JSON_WITH_SCHEMA
from tests.corpus import each
from tests.runtimeclient.remote import (
    API_KEY,
    VND,
    Remote,
    Reply,
    problem,
    refuse_other_keys,
    serve,
    with_schema,
)


@pytest.fixture
def client(remote: Remote) -> Iterator[RuntimeClient]:
    with RuntimeClient(remote.url, API_KEY) as client:
        yield client


def test_a_statement_is_sent_unchanged_with_the_key(remote: Remote, client: RuntimeClient) -> None:
    body = '[{"a":1,"ä":"x"},{"a":2.50,"ä":null}]'.encode()
    remote.on_sql(refuse_other_keys(Reply(body=body, content_type="text/plain; charset=utf-8")))

    with client.sql("SELECT 'ä' ;\n") as answer:
        rows = list(answer.rows())

    assert [row.values for row in rows] == [{"a": "1", "ä": "x"}, {"a": "2.50", "ä": None}]
    assert rows[1].text == '{"a":2.50,"ä":null}'
    assert answer.columns == ("a", "ä")
    [request] = remote.requests
    assert request.body == "SELECT 'ä' ;\n".encode()
    assert request.headers["X-API-Key"] == API_KEY
    assert "Authorization" not in request.headers


@each(
    ("schema", "columns"),
    [
        *[(schema, ()) for schema in ("null", "{}", '{"fields":7}', '{"fields":[7]}', '{"fields":[]}')],
        ('{"fields":[{"name":"a"},{"name":"b"}]}', ("a", "b")),
    ],
)
def test_the_columns_of_an_empty_answer_come_from_its_schema(
    remote: Remote, client: RuntimeClient, schema: str, columns: tuple[str, ...]
) -> None:
    remote.on_sql(Reply(body=b'{"schema":%s,"data":[]}' % schema.encode(), content_type=VND))

    with client.sql("SELECT", JSON_WITH_SCHEMA) as answer:
        assert list(answer.rows()) == []

    assert answer.columns == columns


def test_duplicate_columns_get_the_distinct_names_of_the_rows(remote: Remote, client: RuntimeClient) -> None:
    remote.on_sql(with_schema('[{"a":1,"a_1":2}]', "a", "a"))

    with client.sql("SELECT", JSON_WITH_SCHEMA) as answer:
        assert next(answer.rows()).values == {"a": "1", "a_1": "2"}
        assert answer.columns == ("a", "a_1")


@each(
    "body",
    [b"", b"[", b'[{"a":1}', b'[{"a":[{"b":1}]', b'[{"a":1}]]', b"[1]", b"7", b"\xff", b'[{"a":"\xc3"}]', b"[{}]\xc3"],
)
def test_an_answer_that_is_not_rows_is_an_error(remote: Remote, client: RuntimeClient, body: bytes) -> None:
    remote.on_sql(Reply(body=body))

    with client.sql("SELECT") as answer, pytest.raises(IncompleteResultError):
        list(answer.rows())


def test_an_answer_of_unknown_length_is_not_trusted(remote: Remote, client: RuntimeClient) -> None:
    remote.on_sql(Reply(body=b"a\n1\n", content_type="text/csv", has_end=False))

    with client.sql("SELECT", CSV) as answer, pytest.raises(IncompleteResultError, match="may be cut off"):
        list(answer.pieces())


@pytest.mark.parametrize(
    ("status", "shown"), [(400, "No such table. [a_code]"), (500, "No such table. [a_code, request r-1]")]
)
def test_a_refusal_has_the_message_of_the_runtime(
    remote: Remote, client: RuntimeClient, status: int, shown: str
) -> None:
    remote.on_sql(problem(status, "a_code", "No such table."))

    with pytest.raises(RequestRefusedError) as caught:
        client.sql("SELECT * FROM absent")

    assert str(caught.value) == shown
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (status, "a_code", "r-1")


@each(
    "reply",
    [
        pytest.param(Reply(404, b"<html>", "text/html"), id="HTML 404"),
        pytest.param(Reply(200, b"<html>", "text/html"), id="HTML 200"),
        pytest.param(Reply(204), id="no content"),
        pytest.param(Reply(500, b"failure", "text/plain"), id="a failure in plain text"),
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


@each(
    "body",
    [
        *(b"", b"nonsense", b"7", b"{}", b"[7]", b'[{"name":1}]', b'[{"name":"http"}]', b"[" * 100_000, b"\xff"),
        *(b'{"refresh":{"id":"7","status":"queued"}}', b'{"message":"x","refresh":{}}', b'[{"query_id":null}]'),
    ],
)
def test_an_unexpected_body_is_not_from_a_runtime(remote: Remote, client: RuntimeClient, body: bytes) -> None:
    for path in ("/v1/status", "/v1/datasets", "/v1/sql/active"):
        remote.on("GET", path, Reply(body=body))
    remote.on("POST", "/v1/datasets/a/acceleration/refresh", Reply(201, body))

    for call in (client.status, client.datasets, client.active_queries, lambda: client.request_refresh("a")):
        with pytest.raises(NotARuntimeError):
            call()


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


def test_a_failed_refresh_says_why(remote: Remote, client: RuntimeClient) -> None:
    ends: tuple[dict[str, str], ...] = ({"status": "failed", "error": "The file is gone."}, {"status": "interrupted"})
    remote.on_refreshes("flights", *({"id": "7"} | end for end in (*ends, {"status": "queued"})))

    for id_, reason in (
        ("7", "flights failed: The file is gone"),
        ("7", "flights interrupted: the runtime gave no reason"),
        ("8", "no longer lists refresh 8"),
    ):
        with pytest.raises(RefreshFailedError, match=reason):
            client.wait_for_refresh("flights", id_)


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
