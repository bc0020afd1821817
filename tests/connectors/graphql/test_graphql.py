"""`graphql:` sources against a server that runs graphql-core, and one that answers byte for byte."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from graphql import build_schema, graphql_sync

from tests.datasources.sources import loads
from tests.datasources.sources.loads import build, declared, time_out_repeatedly
from tests.web_server import File, WebServer, serving

TOKEN = "canary-3bZ"

SCHEMA = build_schema(
    """
    type Query { people(first: Int, last: Int, after: String, before: String): People }
    type Mutation { forget: Boolean }
    type People { edges: [Edge] nodes: [Person] pageInfo: PageInfo }
    type Edge { cursor: String node: Person }
    type Person { id: Int name: String height: Float friends: [Person] address: Address }
    type Address { id: Int city: String }
    type PageInfo { endCursor: String hasNextPage: Boolean startCursor: String hasPreviousPage: Boolean }
    """
)
PEOPLE = [
    {
        "id": number,
        "name": f'é "{number}"\n',
        "height": number + 0.1 if number else None,
        "friends": [{"id": other} for other in range(number)],
        "address": {"id": 7, "city": "x"},
    }
    for number in range(5)
]


class Root:
    def people(self, _info: Any, first: int = 99, last: int = 0, after: str = "", before: str = "") -> dict[str, Any]:
        numbers = list(range(int(after) + 1 if after else 0, int(before) if before else len(PEOPLE)))
        kept = numbers[-last:] if last else numbers[:first]
        return {
            "edges": [{"cursor": str(number), "node": PEOPLE[number]} for number in kept],
            "nodes": [PEOPLE[number] for number in kept],
            "pageInfo": {
                "endCursor": str(kept[-1]),
                "hasNextPage": kept[-1] < len(PEOPLE) - 1,
                "startCursor": str(kept[0]),
                "hasPreviousPage": kept[0] > 0,
            },
        }


@pytest.fixture
def server() -> Iterator[str]:
    """A server that wants a token. It refuses what its schema does not have."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            found = graphql_sync(SCHEMA, body["query"], Root())
            answer = json.dumps(found.formatted).encode()
            self.send_response(200 if is_known else 401)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/graphql"
        running.shutdown()


def params(query: str, pointer: str = "/data/people/nodes", **more: str) -> dict[str, str]:
    return {"graphql_query": query, "json_pointer": pointer, "graphql_auth_token": TOKEN, **more}


def load(directory: Path, url: str, query: str, pointer: str = "/data/people/nodes", **more: str) -> list[Any]:
    return loads.loaded(directory, f"graphql:{url}", **params(query, pointer, **more))


def test_fields_arrive_as_they_are(server: str, tmp_path: Path) -> None:
    dataset = declared(
        tmp_path, f"graphql:{server}", params("{ people { nodes { id name height friends { id } address { city } } } }")
    )

    types = {column.name: column.type for column in build(tmp_path, dataset).columns}
    assert types == {
        "id": "BIGINT",
        "name": "VARCHAR",
        "height": "DOUBLE",
        "friends": "STRUCT(id BIGINT)[]",
        "address": "STRUCT(city VARCHAR)",
    }
    assert sorted(loads.load(tmp_path, dataset)) == [
        (one["id"], one["name"], one["height"], one["friends"], {"city": "x"}) for one in PEOPLE
    ]


@pytest.mark.parametrize(
    "query",
    [
        "{ people(first: 2) { nodes { id } pageInfo { endCursor hasNextPage } } }",
        'query All { people(first: 1, after: "0") { nodes { id } pageInfo { hasNextPage endCursor startCursor } } }',
        "{ people(last: 2) { nodes { id } pageInfo { startCursor hasPreviousPage } } }",
        "{ people { nodes { id } pageInfo { endCursor hasNextPage } } }",
    ],
)
def test_all_pages_are_read(server: str, tmp_path: Path, query: str) -> None:
    first = 1 if "after" in query else 0

    assert sorted(load(tmp_path, server, query)) == [(number,) for number in range(first, 5)]


def test_the_page_of_an_alias_is_found(server: str, tmp_path: Path) -> None:
    query = "{ all: people(first: 3) { edges { node { id } } pageInfo { endCursor hasNextPage } } }"

    rows = load(tmp_path, server, query, "/data/all/edges", unnest_depth="1")
    assert sorted(rows) == [(number,) for number in range(5)]
    assert load(tmp_path, server, query, "/data/all/edges/1/node") == [(1,), (4,)]


def test_objects_are_unnested(server: str, tmp_path: Path) -> None:
    aliased = "{ people(first: 1) { edges { node { id address { place: id city } } } } }"
    twice = "{ people(first: 1) { edges { node { id address { id } } } } }"

    assert load(tmp_path, server, aliased, "/data/people/edges", unnest_depth="2") == [(0, 7, "x")]
    assert load(tmp_path, server, aliased, "/data/people/edges", unnest_depth="1") == [(0, {"place": 7, "city": "x"})]
    sentence = refused(tmp_path, server, twice, "/data/people/edges", unnest_depth="2")
    assert "two fields are named 'id' after objects are unnested" in sentence


def refused(directory: Path, url: str, query: str, pointer: str = "/data/people/nodes", **more: str) -> str:
    sentence = loads.refused(directory, f"graphql:{url}", **params(query, pointer, **more))
    assert TOKEN not in sentence
    return sentence


@pytest.mark.parametrize(
    ("query", "pointer", "reason"),
    [
        ("{ people { nodes { id } }", "/data", "params.graphql_query, line 1: it is not GraphQL"),
        ("mutation { forget }", "/data", "it must be a single query"),
        (
            "query A { people { nodes { id } } } query B { people { nodes { id } } }",
            "/data",
            "it must be a single query",
        ),
        ("{ people { nodes { nothing } } }", "/data/people/nodes", "the server rejected params.graphql_query"),
        ("{ people { nodes { id } } }", "/data/people/edges", "has nothing at /data/people/edges"),
        ("{ people { nodes { id } } }", "/data/people/nodes/9", "has nothing at /data/people/nodes/9"),
        ("{ people { nodes { friends { id } } } }", "/data/people/nodes/1/friends/0/id", "is not a list of objects"),
        ("{ people { nodes { friends { id } } } }", "/data/people/nodes/0/friends", "is empty, so it has no columns"),
        ("{ people { pageInfo { endCursor } nodes { id } } }", "/data", "pageInfo needs endCursor and hasNextPage"),
        (
            "{ people { ...P nodes { id } } } fragment P on People { pageInfo { endCursor } }",
            "/data",
            "or be in a fragment",
        ),
        ("{ people { page: pageInfo { endCursor } nodes { id } } }", "/data", "pageInfo must not have an alias"),
    ],
)
def test_what_cannot_be_read_is_refused(server: str, tmp_path: Path, query: str, pointer: str, reason: str) -> None:
    assert reason in refused(tmp_path, server, query, pointer)


def test_limits_and_credentials(server: str, tmp_path: Path) -> None:
    query = "{ people(first: 1) { nodes { id } pageInfo { endCursor hasNextPage } } }"

    assert "larger than params.max_download_size allows" in refused(tmp_path, server, query, max_download_size="20")
    assert "rejected the credentials (status 401)" in refused(tmp_path, server, query, graphql_auth_token="other")


# --- what a real server never does ------------------------------------------------------------------------------------

PAGED = "{ people { nodes { id } pageInfo { endCursor hasNextPage } } }"


@contextmanager
def answering(*answers: bytes, **more: Any) -> Iterator[WebServer]:
    with serving() as web:
        web.otherwise = File(answers[0], tag=None, **more)
        yield web


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"<html>", "does not respond with JSON (status 200)"),
        (b'{"data": {"people": {"nodes": [{"id": "\\ud83d"}]}}}', "invalid Unicode"),
        (b'{"data": {"people": {"nodes": [{"id": NaN}]}}}', "does not respond with JSON"),
        (b'{"data": {"people": {"nodes": [{"id": 1, "id": 2}]}}}', "has the same name twice"),
        (b"[" * 100_000, "does not respond with JSON"),
        (b"[]", "rejected params.graphql_query"),
        (b'{"data": {"people": {"nodes": []}}, "errors": [{"message": "canary-3bZ"}]}', "part of it failed"),
        (b'{"data": {"people": {"nodes": [{"id": 1}]}}}', "lacks pageInfo.hasNextPage"),
        (
            b'{"data": {"people": {"nodes": [{"id": 1}], "pageInfo": {"hasNextPage": true, "endCursor": null}}}}',
            "lacks pageInfo.endCursor",
        ),
        (
            b'{"data": {"people": {"nodes": [{"id": 1}], "pageInfo": {"hasNextPage": true, "endCursor": "x"}}}}',
            "keeps returning the same page",
        ),
        (b" " * (16 * 1024 * 1024 + 1), "a response has more than 16 MiB"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_an_answer_of_another_kind_is_refused(tmp_path: Path, answer: bytes, reason: str) -> None:
    with answering(answer) as web:
        assert reason in refused(tmp_path, f"{web.url}/graphql", PAGED)


def test_numbers_and_times_keep_their_digits(tmp_path: Path) -> None:
    nodes = (
        b'{"id": 1000000000000000000001, "height": 0.1234567890123456789, "at": "2024-03-01T10:00:00.123456789Z"},'
        b'{"id": 1, "height": 1e400, "at": null}'
    )
    with answering(b'{"data": {"people": {"nodes": [' + nodes + b"]}}}") as web:
        source = f"graphql:{web.url}/graphql"
        dataset = declared(tmp_path, source, params("{ people { nodes { id height at } } }", "/data/people/nodes"))
        found = loads.load(tmp_path, dataset, "SELECT COLUMNS(*)::VARCHAR FROM d")

    assert found[0] == ("1000000000000000000001", "0.1234567890123456789", "2024-03-01 10:00:00.123456789+00")
    assert found[1][1].lower() == "1e+400"


def test_credentials_go_to_no_other_server(tmp_path: Path) -> None:
    with answering(b"", status=302, headers={"Location": "http://127.0.0.1:9/"}) as web:
        assert "the server redirects to another server" in refused(tmp_path, f"{web.url}/graphql", PAGED)


def test_basic_authentication(tmp_path: Path) -> None:
    with answering(b'{"data": [{"a": 1}]}') as web:
        given = {"graphql_query": "{ a }", "json_pointer": "/data"}
        rows = loads.loaded(
            tmp_path, f"graphql:{web.url}", **given, graphql_auth_user="ü", graphql_auth_pass="canary:3bZ"
        )

        assert rows == [(1,)]
        assert web.requests[0]["Authorization"] == "Basic w7w6Y2FuYXJ5OjNiWg=="
        assert web.bodies == [b'{"query": "{\\n  a\\n}"}']


def test_a_server_that_hangs_is_left_at_the_deadline(tmp_path: Path) -> None:
    def wait(connection: socket.socket) -> None:
        connection.recv(1)

    with answering(b"", take_over=wait) as web:
        time_out_repeatedly(tmp_path, declared(tmp_path, f"graphql:{web.url}", params(PAGED)), rounds=4)
