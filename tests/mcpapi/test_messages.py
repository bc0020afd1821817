"""JSON-RPC messages, whatever a client sends."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpapi.messages as rpc
from mcpapi.errors import INVALID_REQUEST, PARSE_ERROR, RpcError
from mcpapi.messages import Message
from mcpapi.server import Server

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda items: st.lists(items, max_size=4) | st.dictionaries(st.text(max_size=8), items, max_size=4),
    max_leaves=20,
)
METHODS = st.sampled_from(
    ["initialize", "ping", "tools/list", "tools/call", "resources/read", "server/discover", "resources/templates/list"]
)
META = "io.modelcontextprotocol/"
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["query", "describe_dataset", "nope"]) | JSON,
        "arguments": st.dictionaries(st.sampled_from(["sql", "max_rows", "name", "x"]), JSON) | JSON,
        "uri": st.text() | JSON,
        "protocolVersion": st.text() | JSON,
        "_meta": st.dictionaries(st.sampled_from([f"{META}protocolVersion", f"{META}clientCapabilities"]), JSON) | JSON,
    },
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": st.integers() | st.text() | JSON,
        "method": METHODS | JSON,
        "params": PARAMS | JSON,
        "result": JSON,
    },
)


class Nothing:
    """A runtime that no message of these tests may reach."""

    def run(self, sql: str) -> Any:
        raise RpcError(0, "reached")

    def datasets(self) -> Any:
        raise RpcError(0, "reached")


def answered(body: str | bytes) -> Any:
    """Answer a body as every transport does."""
    value = None
    try:
        value = rpc.parse(body)
        message = rpc.message_of(value)
        if message is None or message.is_notification:
            return None
        return rpc.result(message.id, Server(Nothing()).answer(message))
    except RpcError as error:
        return rpc.failure(rpc.id_of(value), error)


@given(st.binary() | st.text())
def test_no_body_breaks_the_server(body: str | bytes) -> None:
    answer = answered(body)

    assert answer is None or json.loads(rpc.encode(answer)) == answer


@given(MESSAGES | JSON)
def test_no_message_breaks_the_server(value: Any) -> None:
    answer = answered(json.dumps(value))

    assert answer is None or json.loads(rpc.encode(answer))["jsonrpc"] == "2.0"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"", PARSE_ERROR, id="empty"),
        pytest.param(b'{"jsonrpc":"2.0"', PARSE_ERROR, id="cut off"),
        pytest.param(b"\xff", PARSE_ERROR, id="not UTF-8"),
        pytest.param(b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', PARSE_ERROR, id="NaN"),
        pytest.param(b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}', PARSE_ERROR, id="infinite"),
        pytest.param(b'{"jsonrpc":"2.0","id":0.12345678901234567890,"method":"ping"}', PARSE_ERROR, id="digits"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', PARSE_ERROR, id="lone surrogate"),
        pytest.param(b"9" * 5000, PARSE_ERROR, id="a number with too many digits"),
        pytest.param(b"[" * 100_000, PARSE_ERROR, id="deep"),
        pytest.param(b'{"a":' * 100_000, PARSE_ERROR, id="deep objects"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"ping"}', PARSE_ERROR, id="a name twice"),
        pytest.param(b"1", INVALID_REQUEST, id="no object"),
        pytest.param(b'{"id":1,"method":"ping"}', INVALID_REQUEST, id="no version"),
        pytest.param(b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST, id="no method"),
        pytest.param(b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST, id="null as an id"),
        pytest.param(b'{"jsonrpc":"2.0","id":true,"method":"ping"}', INVALID_REQUEST, id="a boolean as an id"),
        pytest.param(b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', INVALID_REQUEST, id="a fraction as an id"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', INVALID_REQUEST, id="a list of params"),
    ],
)
def test_what_is_no_message_is_refused(body: bytes, code: int) -> None:
    assert answered(body)["error"]["code"] == code


def test_a_message_is_read_exactly() -> None:
    body = '{"jsonrpc":"2.0","id":9007199254740993,"method":"a","params":{"b":"\\u00e4"}}'

    assert rpc.message_of(rpc.parse(body)) == Message("a", {"b": "ä"}, 9007199254740993)
    assert rpc.message_of({"jsonrpc": "2.0", "method": "a"}) == Message("a", {}, None, is_notification=True)
    assert rpc.message_of({"jsonrpc": "2.0", "id": 1, "result": {}}) is None
