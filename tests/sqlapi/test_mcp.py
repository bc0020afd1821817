"""`/v1/mcp`: the HTTP transport of MCP, and the statements behind its tools."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import datasources.state
import queryengine.state
import runtimeconf.state
from datasources.refresh.service import DatasetService
from mcpapi.server import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import AuthConfig, DatasetRule, Documentation, KeyLimits, McpConfig, RuntimeConfig, Scope
from runtimeconf.secret import Secret
from tests.sqlapi.conftest import running_on
from tests.sqlapi.harness import WITH_KEY, Answer, Header, call, logged, sql
from tests.sqlapi.test_named_keys import named
from tests.system.harness import K1, K2, wait_for

pytestmark = pytest.mark.usefixtures("runtime")

SLOW = "SELECT count(*) FROM range(100_000_000) a, range(10_000) b WHERE a.range + b.range = 7"
META = "io.modelcontextprotocol/"
FIXED, SOME, LIMITED, REFRESHER, SHORT = (f"mcp-key-{number}-Zq8vT3mN6bX9cL2pR5sW7y" for number in range(5))


@pytest.fixture
def keyed(runtime: RuntimeConfig, service: DatasetService, engine: InProcessEngine) -> Iterator[None]:
    """The runtime with keys that may not do everything."""
    keys = (
        named("fixed-only", FIXED, scope=Scope(relations=frozenset({"fixed"}))),
        named(
            "some",
            SOME,
            scope=Scope(
                relations=frozenset({"orders"}),
                rules=(DatasetRule(dataset="orders", row_filter="id < 2", columns=("id",)),),
            ),
        ),
        named("limited", LIMITED, limits=KeyLimits(requests_per_minute=3)),
        named("short", SHORT, limits=KeyLimits(timeout_s=0.2)),
        named("ops", REFRESHER, rights=frozenset({"refresh"})),
    )
    with running_on(replace(runtime, auth=replace(runtime.auth, named_keys=keys))):
        datasources.state.set_datasets(service)
        queryengine.state.set_engine(engine)
        yield


def request(method: str, params: dict[str, Any] | None = None, request_id: int | str = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method} | ({} if params is None else {"params": params})


def post(message: object, *headers: Header, key: str = K1) -> Answer:
    return call("POST", "/v1/mcp", ("X-API-Key", key), *headers, body=json.dumps(message).encode())


def tool(name: str, key: str = K1, /, **arguments: Any) -> dict[str, Any]:
    answer = post(request("tools/call", {"name": name, "arguments": arguments}), key=key)
    assert answer.status == 200, answer.body
    return dict(answer.json()["result"])


def text_of(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


def stateless(method: str, name: str = "", /, **params: Any) -> Answer:
    """Send a request as 2026-07-28 has it."""
    (version,) = STATELESS_VERSIONS
    meta = {f"{META}protocolVersion": version, f"{META}clientCapabilities": {}}
    headers = [("MCP-Protocol-Version", version), ("Mcp-Method", method), *([("Mcp-Name", name)] if name else [])]
    return post(request(method, {**params, "_meta": meta}), *headers)


def test_without_the_setting_there_is_no_such_route(runtime: RuntimeConfig) -> None:
    runtimeconf.state.set_config(replace(runtime, mcp=McpConfig()))

    absent, answer = call("POST", "/v1/nope", WITH_KEY), post(request("ping"))

    assert (answer.status, answer.code) == (404, "not_found")
    assert answer.without_request_id() == absent.without_request_id()
    assert call("GET", "/v1/mcp", WITH_KEY).code == "not_found"


def test_nobody_gets_in_without_a_key_and_no_page_of_another_site_without_authentication(
    auth_off: RuntimeConfig,
) -> None:
    body = json.dumps(request("ping")).encode()

    assert call("POST", "/v1/mcp", ("Origin", "https://evil.test"), body=body).code == "cross_site_request"
    assert call("POST", "/v1/mcp", ("Host", "evil.test"), body=body).code == "invalid_host"
    assert call("POST", "/v1/mcp", body=body).json()["result"] == {}
    with running_on(replace(auth_off, auth=AuthConfig(enabled=True, keys=(Secret(K1),)))):
        refused = call("POST", "/v1/mcp", body=body)
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, 'Bearer realm="querykeep"')


@pytest.mark.parametrize(
    "header",
    [("Origin", "https://evil.test"), ("Origin", "null"), ("Origin", ""), ("Sec-Fetch-Site", "cross-site")],
)
def test_no_page_of_another_site_gets_in_with_a_key_either(header: Header) -> None:
    for message in (request("ping"), {"jsonrpc": "2.0", "method": "a"}):
        assert (post(message, header).status, post(message, header).code) == (403, "cross_site_request")
        assert post(message, header).json()["detail"] == "Web pages on other origins cannot call this route."
    assert call("POST", "/v1/mcp", header, body=b"{}").status == 401
    assert post(request("ping"), ("Host", "data.test"), ("Origin", "https://data.test")).status == 200


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_a_known_version_is_agreed_on(version: str) -> None:
    answer = post(request("initialize", {"protocolVersion": version, "capabilities": {}}))

    assert answer.json()["result"]["protocolVersion"] == version
    assert len(answer.headers["Mcp-Session-Id"]) == 32


@pytest.mark.parametrize("version", ["1999-01-01", "2026-07-28", ""])
def test_an_unknown_version_is_answered_with_the_newest(version: str) -> None:
    answer = post(request("initialize", {"protocolVersion": version, "capabilities": {}}))

    assert answer.json()["result"]["protocolVersion"] == HANDSHAKE_VERSIONS[-1]


def test_a_header_with_an_unknown_version_is_refused_with_those_that_are_known() -> None:
    for message in (request("ping"), {"jsonrpc": "2.0", "method": "notifications/initialized"}):
        answer = post(message, ("MCP-Protocol-Version", "1999-01-01"))

        assert answer.status == 400
        assert answer.json()["error"]["code"] == -32022
        assert answer.json()["error"]["data"]["supported"] == [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS]


def test_the_version_without_a_handshake() -> None:
    discovered = stateless("server/discover").json()["result"]

    assert discovered["supportedVersions"] == [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS]
    assert discovered["resultType"] == "complete"
    called = stateless("tools/call", "query", name="query", arguments={"sql": "SELECT 1 AS a"}).json()["result"]
    assert (called["resultType"], called["structuredContent"]["rows"]) == ("complete", [[1]])
    assert (stateless("ping").status, stateless("ping").json()["error"]["code"]) == (404, -32601)
    assert (stateless("tools/call", "nope", name="query").status, stateless("initialize").status) == (400, 404)
    encoded = stateless(
        "resources/read", "=?base64?cXVlcnlrZWVwOi8vZGF0YXNldHMvZml4ZWQ=?=", uri="querykeep://datasets/fixed"
    )
    assert encoded.status == 200


@pytest.mark.parametrize(
    ("headers", "params", "code"),
    [
        ({"MCP-Protocol-Version": "2026-07-28"}, {}, -32602),
        ({}, {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}, -32020),
        ({"MCP-Protocol-Version": "2026-07-28"}, {f"{META}protocolVersion": "2026-07-28"}, -32020),
        (
            {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"},
            {f"{META}protocolVersion": "2026-07-28"},
            -32602,
        ),
        (
            {"MCP-Protocol-Version": "2099-01-01", "Mcp-Method": "tools/list"},
            {f"{META}protocolVersion": "2099-01-01", f"{META}clientCapabilities": {}},
            -32022,
        ),
        ({}, {f"{META}protocolVersion": 7}, -32602),
    ],
)
def test_a_message_and_its_headers_must_agree(headers: dict[str, str], params: dict[str, Any], code: int) -> None:
    answer = post(request("tools/list", {"_meta": params} if params else {}), *headers.items())

    assert answer.json()["error"]["code"] == code


def test_notifications_and_responses_are_taken_without_an_answer() -> None:
    for message in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "a", "params": {"_meta": {f"{META}protocolVersion": 7}}},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ):
        answer = post(message)

        assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize("version", [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS])
def test_a_batch_is_refused_as_a_whole(version: str) -> None:
    answer = post([request("ping")], ("MCP-Protocol-Version", version))

    assert (answer.status, answer.json()["error"]["code"]) == (400, -32600)


@pytest.mark.usefixtures("keyed")
def test_each_message_counts_as_a_request() -> None:
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}

    assert [post(message, key=LIMITED).status for message in (request("ping"), 7, cancel, cancel)] == [
        200,
        400,
        202,
        429,
    ]


def test_every_tool_is_read_only_and_its_results_fit_its_schema() -> None:
    described = post(request("tools/list")).json()["result"]["tools"]

    assert [one["name"] for one in described] == ["list_datasets", "describe_dataset", "query"]
    for one in described:
        assert one["annotations"]["readOnlyHint"]
        assert not one["annotations"]["destructiveHint"]
        arguments = {"describe_dataset": {"name": "ORDERS"}, "query": {"sql": "FROM orders"}}.get(one["name"], {})
        found = tool(one["name"], **arguments)["structuredContent"]
        assert set(one["outputSchema"]["required"]) == set(found)


def test_the_datasets_are_listed_described_and_read() -> None:
    listed, described = tool("list_datasets"), tool("describe_dataset", name="orders")
    uris = [one["uri"] for one in post(request("resources/list")).json()["result"]["resources"]]
    (content,) = post(request("resources/read", {"uri": uris[0]})).json()["result"]["contents"]

    assert [one["name"] for one in listed["structuredContent"]["datasets"]] == ["Orders", "fixed"]
    assert "fixed (100 rows, refreshed " in text_of(listed)
    assert "): Never refreshed\n  id BIGINT, name VARCHAR\n" in text_of(listed)
    assert text_of(described).splitlines()[1:] == [
        *("  id BIGINT", "  name VARCHAR", "first rows:"),
        *('[0,"name 0"]', '[1,"name 1"]', '[2,"name 2"]'),
    ]
    assert uris == ["querykeep://datasets/Orders", "querykeep://datasets/fixed"]
    assert json.loads(content["text"]) == described["structuredContent"]
    for uri in ("querykeep://datasets/absent", "file:///etc/passwd", "querykeep://datasets/%FF", ""):
        assert post(request("resources/read", {"uri": uri})).json()["error"]["code"] == -32002


def test_datasets_of_the_same_name_in_two_schemas_are_two(runtime: RuntimeConfig, tmp_path: Path) -> None:
    (other := tmp_path / "other.csv").write_text("x\n1\n")
    first, second = (replace(runtime.datasets[1], name=name) for name in ("fixed", "taxi.fixed"))
    datasets = (first, replace(second, location=str(other), documentation=Documentation()))
    config = replace(runtime, state_dir=tmp_path / "state", datasets=datasets)
    with ExitStack() as running:
        service = DatasetService(config, exclusive=True)
        service.start()
        running.callback(service.stop, 60)
        wait_for(service.is_loaded, "the datasets", 60)
        engine = running.enter_context(closing(InProcessEngine(config)))
        running.enter_context(running_on(config))
        datasources.state.set_datasets(service)
        queryengine.state.set_engine(engine)

        listed = tool("list_datasets")["structuredContent"]["datasets"]
        described = text_of(tool("describe_dataset", name="taxi.fixed"))

    assert [(one["name"], one["rows"], len(one["columns"])) for one in listed] == [
        ("fixed", 100, 2),
        ("taxi.fixed", 1, 1),
    ]
    assert described.splitlines()[1:] == ["  x BIGINT", "first rows:", "[1]"]


@pytest.mark.parametrize("name", ["o'rders", "orders' OR 'a' = 'a", 'a"b', "\0", "x" * 100_000, "", "main.orders"])
def test_a_name_that_is_nowhere_is_only_a_name(name: str) -> None:
    found = tool("describe_dataset", name=name)

    assert found["isError"]
    assert text_of(found).startswith("dataset_not_found: There is no such dataset or view. Nearest names: ")


def test_only_the_first_columns_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpapi.tools.LISTED_COLUMNS", 1)
    monkeypatch.setattr("mcpapi.tools.DESCRIBED_COLUMNS", 1)

    assert "\n  id BIGINT, and 1 more: see describe_dataset\n" in text_of(tool("list_datasets"))
    assert "\n  id BIGINT\n  and 1 more: query information_schema.columns\n" in text_of(
        tool("describe_dataset", name="orders")
    )


def test_a_result_is_cut_with_a_hint_and_counts_as_done(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        found = tool("query", sql="SELECT * FROM range(10_000_000)", max_rows=5)

    assert text_of(found).splitlines()[:2] == ["columns: range BIGINT", "[0]"]
    assert text_of(found).splitlines()[-1].startswith("Cut after 5 rows; there are more. Aggregate")
    assert (found["structuredContent"]["row_count"], found["structuredContent"]["is_cut"]) == (5, True)
    (line,) = logged(caplog, "sqlapi.queries")
    assert (line["outcome"], line["protocol"]) == ("ok", "mcp")
    # To a JSON schema, a number without a fraction is an integer.
    assert tool("query", sql="FROM orders", max_rows=5.0)["structuredContent"]["row_count"] == 5


@pytest.mark.parametrize(
    ("statement", "beginning", "part"),
    [
        ("FROM orderz", "sql_error: ", "Did you mean 'orders'?"),
        ("SELECT idd FROM orders", "sql_error: ", "LINE 1: SELECT idd FROM orders\n               ^^^"),
        ("SELEC 1", "sql_syntax_error: ", "(line 1, column 1)"),
        ("DROP TABLE orders", "statement_not_allowed: ", "this endpoint is read-only"),
        ("FROM read_csv('/etc/passwd')", "statement_not_allowed: ", "it reads files"),
        ("", "empty_statement: ", "send one SQL statement"),
        ("SELECT $1", "invalid_parameters: ", ""),
    ],
)
def test_an_error_is_a_result_that_says_what_to_do(statement: str, beginning: str, part: str) -> None:
    found = tool("query", sql=statement)

    assert found["isError"]
    assert "structuredContent" not in found
    assert text_of(found).startswith(beginning)
    assert part in text_of(found)
    assert sql(statement).json()["detail"] in text_of(found)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"sql": 1},
        {"sql": "", "x": 1},
        *({"sql": "SELECT 1", "max_rows": value} for value in (0, 1001, -1, 1.5, True, "1", None, [1])),
    ],
)
def test_wrong_arguments_are_explained(arguments: dict[str, Any]) -> None:
    found = tool("query", **arguments)

    assert found["isError"]
    assert text_of(found).startswith("invalid_arguments: ")


@pytest.mark.usefixtures("keyed")
def test_what_is_outside_the_scope_of_a_key_does_not_exist() -> None:
    assert [one["name"] for one in tool("list_datasets", FIXED)["structuredContent"]["datasets"]] == ["fixed"]
    outside, absent = (text_of(tool("describe_dataset", FIXED, name=name)) for name in ("orders", "orderz"))
    assert outside == absent == "dataset_not_found: There is no such dataset or view. Nearest names: fixed."
    uris = [one["uri"] for one in post(request("resources/list"), key=FIXED).json()["result"]["resources"]]
    assert uris == ["querykeep://datasets/fixed"]
    ruled = tool("describe_dataset", SOME, name="orders")["structuredContent"]
    assert (ruled["rows"], [one["name"] for one in ruled["columns"]]) == (None, ["id"])
    assert ruled["sample"]["rows"] == [[0], [1]]
    for name, arguments in (("query", {"sql": "SELECT 1"}), ("list_datasets", {})):
        assert text_of(tool(name, REFRESHER, **arguments)).startswith("not_permitted: ")


def test_a_reload_between_two_statements_of_a_call_does_not_change_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [queryengine.state.get_engine()]
    monkeypatch.setattr("sqlapi.mcp.get_engine", engines.pop)

    assert tool("describe_dataset", name="orders")["structuredContent"]["sample"]["row_count"]
    assert engines == []


@pytest.mark.usefixtures("keyed")
def test_a_call_that_runs_too_long_is_stopped() -> None:
    found = text_of(tool("query", SHORT, sql=SLOW))

    assert found.startswith("query_timeout: The query was cancelled after 0.2 s, its time limit.")


@pytest.mark.usefixtures("memory")
def test_each_call_is_in_the_history() -> None:
    tool("query", sql="SELECT 42 AS a")

    newest = call("GET", "/v1/sql/history?limit=1", WITH_KEY).json()[0]

    assert (newest["protocol"], newest["outcome"], newest["rows"]) == ("mcp", "ok", 1)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    ("agent", "protocol"),
    [
        *((agent, "mcp") for agent in ("querykeep-mcp", "querykeep-mcp/1.2")),
        *((agent, "http") for agent in ("querykeep-mcps", "a querykeep-mcp", "flight-sql", "", b"\xff")),
    ],
)
def test_statements_of_the_command_are_marked_by_their_user_agent(agent: str | bytes, protocol: str) -> None:
    assert call("POST", "/v1/sql", ("User-Agent", agent), body=b"SELECT 43 AS a").status == 401
    assert call("POST", "/v1/sql", WITH_KEY, ("User-Agent", agent), body=b"SELECT 43 AS a").status == 200

    newest = call("GET", "/v1/sql/history?limit=1", WITH_KEY).json()[0]

    assert (newest["protocol"], newest["outcome"]) == (protocol, "ok")


def test_a_call_is_cancelled_by_its_caller_only(caplog: pytest.LogCaptureFixture) -> None:
    session: Header = ("Mcp-Session-Id", post(request("initialize", {"protocolVersion": ""})).headers["Mcp-Session-Id"])
    message = request("tools/call", {"name": "query", "arguments": {"sql": SLOW}}, request_id="slow")
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "slow"}}
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(post(message, session)))
    thread.start()

    def active() -> list[dict[str, Any]]:
        return list(call("GET", "/v1/sql/active", WITH_KEY).json())

    wait_for(active, "the statement to run", 60)
    for headers, key in (((), K1), ((("Mcp-Session-Id", "x"),), K1), ((session,), K2)):
        assert post(cancel, *headers, key=key).status == 202
    assert active()
    assert post(cancel, session).status == 202
    thread.join(60)

    assert text_of(answers[0].json()["result"]).startswith("query_cancelled: ")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(runtime: RuntimeConfig) -> None:
    answer = call("POST", "/v1/mcp", WITH_KEY, ("Content-Length", str(10 << 20)))

    assert (answer.status, answer.code) == (413, "body_too_large")


def test_wide_rows_are_cut_like_others() -> None:
    found = tool("query", sql="SELECT repeat('x', 1000) AS a FROM range(10_000)")

    assert (found["structuredContent"]["row_count"], found["structuredContent"]["is_cut"]) == (48, True)


def test_five_thousand_columns_are_answered() -> None:
    found = tool("query", sql=f"SELECT {', '.join(f'{number} AS c{number}' for number in range(5000))}")

    assert len(found["structuredContent"]["rows"][0]) == len(found["structuredContent"]["columns"]) == 5000


@pytest.mark.parametrize("depth", [50, 200, 600])
def test_a_value_that_is_nested_deep_is_answered_or_refused(depth: int) -> None:
    statement = f"SELECT {'[' * depth}1{']' * depth} AS a"
    http, found = sql(statement), tool("query", sql=statement)

    assert found["isError"] == (http.status != 200)
    if http.status == 200:
        value = http.body.decode().removeprefix('[{"a":').removesuffix("}]")
        assert text_of(found).splitlines()[1] == f"[{value}]"
