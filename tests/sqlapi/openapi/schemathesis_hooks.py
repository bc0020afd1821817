"""What Schemathesis cannot know: statements that work, and ids of statements that run."""

import itertools
import os
import threading
import time
from typing import Any

import requests
import schemathesis
from schemathesis.generation import GenerationMode

#: One per kind of value and of answer. The dataset is that of `tests.system.harness`.
STATEMENTS = (
    "SELECT 42 AS answer",
    "SELECT * FROM orders LIMIT 3",
    "SELECT id FROM orders WHERE id < 0",
    "SELECT NULL AS n, true AS b, 1.50::DECIMAL(9,2) AS d, 0.1::DOUBLE AS f, 'NaN'::DOUBLE AS nan, -0.0::DOUBLE AS z",
    "SELECT 170141183460469231731687303715884105727::HUGEINT AS h, 18446744073709551615::UBIGINT AS u, 'ab'::BLOB AS b",
    "SELECT DATE '2024-01-31' AS d, TIME '12:34:56.5' AS t, TIMESTAMPTZ '2024-01-31 12:00Z' AS z, INTERVAL 1 YEAR AS i",
    "SELECT [1, NULL] AS l, {'a': 1, 'b': [2]} AS s, MAP {'k': 1} AS m, 'x'::ENUM('x', 'y') AS e, [1]::INTEGER[1] AS a",
    "SELECT union_value(n := 1) AS u, '{\"a\": 1}'::JSON AS j, uuid() AS id, '\u00e9\U0001f511' AS \"\u00fc\", 1 AS a",
    "SELECT i, repeat('x', 100) AS x FROM range(5000) t(i)",
    "SHOW TABLES",
    "EXPLAIN SELECT 1",
    "SELECT * FROM absent",
    "SELECT CAST('x' AS INTEGER)",
    "DROP TABLE orders",
    "SELECT",
    " -- nothing",
)

#: One per kind of message of MCP.
MESSAGES = (
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}},
    *(
        {"jsonrpc": "2.0", "id": "a", "method": f"{kind}/list"}
        for kind in ("tools", "resources", "resources/templates")
    ),
    *(
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        for name, arguments in (
            *(("query", {"sql": sql}) for sql in STATEMENTS),
            *(("list_datasets", {}), ("describe_dataset", {"name": "orders"}), ("describe_dataset", {"name": ""})),
        )
    ),
    {"jsonrpc": "2.0", "id": 3, "method": "resources/read", "params": {"uri": "querykeep://datasets/orders"}},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
    {"jsonrpc": "2.0", "id": 4, "method": "ping"},
)

ACCEPTED = (
    "text/plain",
    "application/json",
    "text/csv",
    "application/vnd.apache.arrow.stream",
    "application/vnd.spiceai.sql.v1+json",
    "*/*",
    "application/json;q=0.5, text/csv;q=0.9",
    "image/png",
)

#: Runs until it is cancelled.
ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range = -b.range - 1"

#: Codes of a 400 that no schema can exclude: it depends on SQL, or on the dataset.
OF_THE_STATEMENT = {"empty_statement", "sql_syntax_error", "sql_error", "invalid_parameters", "statement_error"}
OF_THE_DATASET = {"acceleration_disabled", "time_column_missing"}

_numbers = itertools.count()


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: Any, kwargs: dict[str, Any]) -> None:
    """Ask for each format in turn; send a statement that works, or cancel one that runs, in half of the valid cases."""
    number = next(_numbers)
    if case.operation.label == "POST /v1/sql":
        case.headers["Accept"] = ACCEPTED[number % len(ACCEPTED)]
    if number % 2 or case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    if case.operation.label == "POST /v1/sql":
        statement = STATEMENTS[number // 2 % len(STATEMENTS)]
        case.body = {"sql": statement} if case.media_type == "application/json" else statement
        case.query = {}
    elif case.operation.label == "POST /v1/mcp":
        case.body, case.headers = MESSAGES[number // 2 % len(MESSAGES)], {}
    elif case.operation.label == "POST /v1/sql/{query_id}/cancel" and number % 8 == 0:
        case.path_parameters["query_id"] = _running() or "absent"


def _running() -> str | None:
    """Start a statement and return its id; None without a runtime and a key to start it with."""
    url, key = os.environ.get("TESTED_URL"), os.environ.get("TESTED_KEY")
    if not url or not key:
        return None
    headers = {"X-API-Key": key}
    ask = {"url": f"{url}/v1/sql", "data": ENDLESS, "headers": headers, "timeout": 60}
    threading.Thread(target=requests.post, kwargs=ask, daemon=True).start()
    for _ in range(1000):
        active = requests.get(f"{url}/v1/sql/active", headers=headers, timeout=60).json()
        if active:
            return str(active[0]["id"])
        time.sleep(0.01)
    return None


@schemathesis.check
def a_valid_body_is_refused_for_its_meaning_only(
    context: schemathesis.CheckContext, response: schemathesis.Response, case: Any
) -> bool | None:
    """Replace `positive_data_acceptance` where a valid body may get a 400."""
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE or response.status_code != 400:
        return None
    if case.operation.label == "POST /v1/mcp":  # Most messages that the schema allows mean nothing.
        return None
    problem = response.json()
    text = case.body if isinstance(case.body, str) else ""
    is_json = problem["code"] == "invalid_body" and text.lstrip().startswith("{")
    is_too_long = problem["code"] == "invalid_json" and "from 0s to 365d" in problem["detail"]
    assert is_json or is_too_long or problem["code"] in OF_THE_STATEMENT | OF_THE_DATASET, problem
    return None


@schemathesis.check
def each_header_of_ours_is_described_for_this_response(
    context: schemathesis.CheckContext, response: schemathesis.Response, case: Any
) -> bool | None:
    """Schemathesis compares those that are described, and does not miss others."""
    described: Any = case.operation.schema.raw_schema
    answer = described["paths"][case.operation.path][case.operation.method]["responses"].get(str(response.status_code))
    if answer is None:  # `status_code_conformance` says so.
        return None
    if "$ref" in answer:
        answer = described["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    ours, these = ({name.lower() for name in node["headers"]} for node in (described["components"], answer))
    extra = ours & set(response.headers) - these
    assert not extra, (response.status_code, extra)
    return None
