"""What a key may not see is not to be learned over MCP either: its answers are those of `/v1/sql`."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

import queryengine.state
from mcpapi.results import MAX_BYTES
from runtimeconf.model import AuthConfig, NamedKey, RuntimeConfig
from tests.queryengine import hidden_rows
from tests.queryengine.conftest import KINDS, config_of
from tests.queryengine.hidden_rows import LEAK, SCOPES, VIEWS
from tests.queryengine.publishing import Publisher
from tests.sqlapi.conftest import running_on
from tests.sqlapi.harness import Answer, call, sql

TABLES = {"orders": hidden_rows.ORDERS, "grants": hidden_rows.GRANTS, "barred": hidden_rows.BARRED}
KEYS = {form: f"{form.replace(' ', '-')}-Zq8vT3mN6bX9cL2pR5sW7y" for form in (*SCOPES, "everything")}


@pytest.fixture(scope="module")
def scoped(config: RuntimeConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A runtime with a key for each scope, and one for everything."""
    publisher = Publisher(tmp_path_factory.mktemp("scopes") / "state")
    publisher.publish(**TABLES)
    keys = tuple(
        NamedKey(name=key.lower(), sha256=sha256(key.encode()).digest(), scope=SCOPES.get(form))
        for form, key in KEYS.items()
    )
    with ExitStack() as running:
        engine = running.enter_context(KINDS["in process"](config_of(publisher.state_dir, tuple(TABLES), VIEWS)))
        running.enter_context(running_on(replace(config, auth=AuthConfig(enabled=True, named_keys=keys))))
        queryengine.state.set_engine(engine)
        yield


def over_mcp(statement: str, key: str) -> Answer:
    params = {"name": "query", "arguments": {"sql": statement, "max_rows": 1000}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return call("POST", "/v1/mcp", ("X-API-Key", key), body=json.dumps(message).encode())


def rows_in(text: str) -> list[Any]:
    return list(json.loads(text, parse_int=str, parse_float=str))


def is_same(statement: str, key: str) -> bool:
    """Compare both answers, in any order of rows."""
    http, mcp = sql(statement, key=key), over_mcp(statement, key)
    result = mcp.json()["result"]
    text = result["content"][0]["text"]
    if http.status != 200:
        problem = http.json()
        return bool(result["isError"]) and text.startswith(f"{problem['code']}: {problem['detail']}")
    if result["isError"]:  # Too large for a model.
        return text.startswith("row_too_large: ") and len(http.body) > MAX_BYTES
    _, *lines, end = text.split("\n")
    expected = sorted(json.dumps(list(row.values())) for row in rows_in(http.body.decode()))
    found = sorted(json.dumps(rows_in(line)) for line in lines)
    if end.startswith("Cut after"):
        return len(found) < len(expected) and all(row in expected for row in found)
    return found == expected


def differences(form: str, count: int) -> list[str]:
    table = "orders_of_acme" if form == "view" else "orders"
    statements = [hidden_rows.statement(seed, table, plans=False) for seed in range(count)]
    return [statement for statement in statements if not is_same(statement, KEYS[form])]


@pytest.mark.usefixtures("scoped")
@pytest.mark.parametrize("form", KEYS)
def test_mcp_answers_as_http(form: str) -> None:
    assert differences(form, 8) == []


@pytest.mark.exhaustive
@pytest.mark.usefixtures("scoped")
@pytest.mark.parametrize("form", KEYS)
def test_mcp_answers_many_statements_as_http(form: str) -> None:
    assert differences(form, 50) == []


@pytest.mark.usefixtures("scoped")
@pytest.mark.parametrize("form", SCOPES)
def test_mcp_shows_nothing_that_is_hidden(form: str) -> None:
    table = "orders_of_acme" if form == "view" else "orders"
    statements = [hidden_rows.statement(seed, table) for seed in range(8)]

    assert [one for one in statements if LEAK.search(over_mcp(one, KEYS[form]).body)] == []
