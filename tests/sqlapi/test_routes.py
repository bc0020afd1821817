"""Each route, with a whole runtime."""

import csv
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.ipc
import pytest
from msgspec.structs import replace
from rest_framework.test import APIClient

import datasources.state
import queryengine.state
from datasources.refresh.service import DatasetService
from queryengine.pool.client import EngineClient
from runtimeconf.model import RuntimeConfig
from tests.queryengine.publishing import wait_until
from tests.queryengine.scripted_engine import ScriptedEngine
from tests.sqlapi.harness import WITH_KEY, Answer, Header, call, sql
from tests.system.harness import K1, wait_for

pytestmark = pytest.mark.usefixtures("runtime")

REFRESH = "/v1/datasets/orders/acceleration/refresh"


@pytest.mark.parametrize(
    ("missing", "status", "body"),
    [("", 200, b"ready"), ("engine", 503, b"not ready"), ("datasets", 503, b"not ready"), ("both", 503, b"not ready")],
)
def test_ready_needs_engine_and_data_and_health_needs_neither(missing: str, status: int, body: bytes) -> None:
    if missing in {"engine", "both"}:
        queryengine.state.set_engine(None)
    if missing in {"datasets", "both"}:
        datasources.state.set_datasets(None)

    ready, health = call("GET", "/v1/ready"), call("GET", "/health")

    assert (ready.status, ready.body) == (status, body)
    assert call("HEAD", "/v1/ready").status == status
    assert (health.status, health.body) == (200, b"ok\n")
    assert health.headers["Content-Type"] == "text/plain; charset=utf-8"


def test_statements_as_text_of_constants_of_a_dataset_and_without_rows() -> None:
    answer = sql("SELECT 1 AS a, 'é' AS b")

    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.body == '[{"a":1,"b":"é"}]'.encode()
    assert len(answer.headers["X-Query-Id"]) == 32
    assert answer.headers["X-Query-Id"] != answer.headers["X-Request-Id"]
    assert sql("SELECT count(*) AS n, sum(id) AS s FROM orders").json() == [{"n": 100, "s": 4950}]
    assert sql("SELECT 1 AS a WHERE false").body == b"[]"
    assert sql("SELECT 1 AS a WHERE false", ("Accept", "text/csv")).body == b"a\n"


def read_csv(body: bytes) -> Any:
    return list(csv.DictReader(io.StringIO(body.decode())))


@pytest.mark.parametrize(
    ("content_type", "read", "expected"),
    [
        ("application/json", json.loads, [{"a": 1, "b": "x,y"}]),
        ("text/csv; charset=utf-8", read_csv, [{"a": "1", "b": "x,y"}]),
        (
            "application/vnd.apache.arrow.stream",
            lambda body: pyarrow.ipc.open_stream(body).read_all().to_pylist(),
            [{"a": 1, "b": "x,y"}],
        ),
        (
            "application/vnd.spiceai.sql.v1+json",
            lambda body: (json.loads(body)["row_count"], json.loads(body)["data"]),
            (1, [{"a": 1, "b": "x,y"}]),
        ),
    ],
)
def test_each_format_of_an_answer(content_type: str, read: Callable[[bytes], Any], expected: Any) -> None:
    answer = sql("SELECT 1 AS a, 'x,y' AS b", ("Accept", content_type.partition(";")[0]))

    assert answer.headers["Content-Type"] == content_type
    assert read(answer.body) == expected


@pytest.mark.parametrize(
    ("query", "content_type", "body"),
    [
        ("format=csv", "text/csv; charset=utf-8", b"a\n1\n"),
        ("format=json", "application/json", b'[{"a":1}]'),
        ("format=ndjson", "application/x-ndjson", b'{"a":1}\n'),
        ("format=jsonl", "application/jsonl", b'{"a":1}\n'),
        ("other=1", "application/vnd.apache.arrow.stream", None),
    ],
)
def test_the_format_parameter_overrides_accept(query: str, content_type: str, body: bytes | None) -> None:
    accept = ("Accept", "application/vnd.apache.arrow.stream")

    answer = call("POST", f"/v1/sql?{query}", WITH_KEY, accept, body=b"SELECT 1 AS a")

    assert (answer.status, answer.headers["Content-Type"]) == (200, content_type)
    assert body in {answer.body, None}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"sql": "SELECT 1 AS a"}, [{"a": 1}]),
        ({"sql": "SELECT ? + 1 AS a", "parameters": [41]}, [{"a": 42}]),
        ({"sql": "SELECT $1 AS a, $2 AS b", "parameters": ["x", None]}, [{"a": "x", "b": None}]),
        ({"sql": "SELECT :foo + 1 AS a", "parameters": {"foo": 41}}, [{"a": 42}]),
        ({"sql": "SELECT $n AS a", "parameters": {"n": "'; DROP TABLE orders"}}, [{"a": "'; DROP TABLE orders"}]),
    ],
)
def test_a_statement_as_json(body: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    for content_type in ("application/json", "application/json; charset=UTF-8"):
        assert sql(json.dumps(body), ("Content-Type", content_type)).json() == expected


def test_drfs_client_gets_the_same_answers() -> None:
    for headers, status in (({"host": "localhost", "X-API-Key": K1}, 200), ({"host": "localhost"}, 401)):
        answer = APIClient().post("/v1/sql", {"sql": "SELECT 1 AS a"}, format="json", headers=headers)
        assert (answer.status_code, answer.content == b'[{"a":1}]') == (status, status == 200)


@pytest.mark.parametrize(
    ("statement", "status", "code"),
    [
        pytest.param("", 400, "empty_statement", id="S23 empty"),
        pytest.param("  \n ", 400, "empty_statement", id="S23 blank"),
        pytest.param("SELEC 1", 400, "sql_syntax_error", id="syntax"),
        pytest.param("SELECT nope FROM orders", 400, "sql_error", id="S27 unknown column"),
        pytest.param("SELECT CAST('x' AS INTEGER)", 400, "sql_error", id="S27 conversion"),
        pytest.param("DELETE FROM orders", 403, "statement_not_allowed", id="S14 DELETE"),
        pytest.param("SELECT ?", 400, "invalid_parameters", id="S29 no parameters"),
        pytest.param(b"SELECT '\xff'", 400, "invalid_body", id="S32 not UTF-8"),
    ],
)
def test_statements_that_fail(statement: str | bytes, status: int, code: str) -> None:
    answer = sql(statement)

    assert (answer.status, answer.code) == (status, code)
    assert ("X-Query-Id" in answer.headers) is (code != "invalid_body")


def status_of_components() -> dict[str, str]:
    return {row["name"]: row["status"] for row in call("GET", "/v1/status", WITH_KEY).json()}


def test_status() -> None:
    answer, as_csv = (call("GET", f"/v1/status{query}", WITH_KEY) for query in ("", "?format=csv"))

    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json() == [
        {"name": "http", "endpoint": "127.0.0.1:8090", "status": "Ready"},
        {"name": "flight", "endpoint": "N/A", "status": "Disabled"},
        {"name": "engine", "endpoint": "in-process", "status": "Ready"},
        {"name": "refresh", "endpoint": "in-process", "status": "Ready"},
    ]
    assert as_csv.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert as_csv.body.decode().splitlines()[:2] == ["name,endpoint,status", "http,127.0.0.1:8090,Ready"]


def test_during_the_start_what_needs_engine_or_refresher_is_503_and_no_refresh_begins() -> None:
    before = call("GET", REFRESH, WITH_KEY).json()
    queryengine.state.set_engine(None)
    answers = [
        *(sql("SELECT 1"), call("GET", "/v1/sql/active", WITH_KEY), call("POST", "/v1/sql/abc/cancel", WITH_KEY)),
        call("POST", REFRESH, WITH_KEY, body=b'{"refresh_sql":"SELECT * FROM orders"}'),
    ]
    assert len(call("GET", REFRESH, WITH_KEY).json()) == len(before)
    datasources.state.set_datasets(None)
    answers += [call("GET", "/v1/datasets", WITH_KEY), call("POST", REFRESH, WITH_KEY), call("GET", REFRESH, WITH_KEY)]

    assert {(answer.status, answer.headers["Retry-After"]) for answer in answers} == {(503, "1")}
    assert [answer.code for answer in answers] == ["engine_unavailable"] * 4 + ["datasets_unavailable"] * 3
    expected = {"http": "Ready", "flight": "Disabled", "engine": "Initializing", "refresh": "Error"}
    assert status_of_components() == expected


def test_status_of_an_engine_with_its_own_processes(config: RuntimeConfig) -> None:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        client = stack.enter_context(closing(EngineClient(replace(config, state_dir=Path(directory)))))
        queryengine.state.set_engine(client)
        assert status_of_components()["engine"] == "Initializing"

        with closing(ScriptedEngine(Path(directory), config.query)):
            wait_until(client.is_alive, within_s=30)
            row = call("GET", "/v1/status", WITH_KEY).json()[2]

        assert row == {
            "name": "engine",
            "endpoint": "unix:engine.sock",
            "status": "Ready",
            "workers_alive": config.query.workers,
            "workers_killed": 3,
            "workers_busy": 0,
            "statements_running": 0,
            "statements_queued": 0,
        }
        wait_until(lambda: not client.is_alive(), within_s=30)
        assert status_of_components()["engine"] == "Error"
        assert call("GET", "/v1/ready").status == 503


def test_before_the_first_load_and_after_an_unexpected_error() -> None:
    unloaded: Any = SimpleNamespace(is_loaded=lambda: False, waiting_for=lambda: ("a", "b"), history={}.__getitem__)
    datasources.state.set_datasets(unloaded)

    answer = call("GET", "/v1/datasets/secret/acceleration/refresh", WITH_KEY)

    assert status_of_components()["refresh"] == "Initializing"
    assert call("GET", "/v1/status", WITH_KEY).json()[3]["waiting_for"] == ["a", "b"]
    assert call("GET", "/v1/ready").status == 503
    assert (answer.status, answer.code) == (500, "internal_error")
    assert b"secret" not in answer.body

    # During a reload.
    unloaded.is_loaded = lambda: True
    assert call("GET", "/v1/status", WITH_KEY).json()[3] == {
        "name": "refresh", "endpoint": "in-process", "status": "Ready"
    }  # fmt: skip


def test_datasets() -> None:
    orders, fixed = call("GET", "/v1/datasets", WITH_KEY).json()
    as_csv = read_csv(call("GET", "/v1/datasets?format=csv", WITH_KEY).body)

    common = "from name acceleration_enabled status rows refreshed_at snapshot error"
    assert " ".join(orders) == f"{common} checked_at next_refresh_at age_s bytes description metadata"
    assert orders["refreshed_at"] <= orders["checked_at"]
    assert orders["age_s"] in range(86_400)
    assert orders["bytes"] > 4096
    assert orders["next_refresh_at"] is None
    assert (orders["from"], orders["name"], orders["acceleration_enabled"]) == ("file:orders.csv", "Orders", True)
    assert (orders["rows"], orders["error"]) == (100, None)
    assert orders["status"] in {"Ready", "Refreshing"}
    assert (fixed["name"], fixed["acceleration_enabled"], fixed["status"]) == ("fixed", False, "Ready")
    assert (orders["description"], orders["metadata"]) == (None, {})
    assert (fixed["description"], fixed["metadata"]) == ("Never refreshed", {"owner": "ops"})
    assert [row["description"] for row in as_csv] == ["", "Never refreshed"]
    assert [row["metadata"] for row in as_csv] == ["{}", '{"owner": "ops"}']
    assert [(row["name"], row["acceleration_enabled"], row["error"]) for row in as_csv] == [
        ("Orders", "true", ""),
        ("fixed", "false", ""),
    ]


def test_catalogs() -> None:
    answer = call("GET", "/v1/catalogs", WITH_KEY)

    assert answer.body == b'[{"from":"runtime","name":"runtime"}]'
    assert answer.headers["Content-Type"] == "application/json"
    assert call("GET", "/v1/catalogs?format=csv", WITH_KEY).body == b"from,name\nruntime,runtime\n"


def finished(run_id: str) -> dict[str, Any]:
    def run() -> dict[str, Any] | None:
        runs = {run["id"]: run for run in call("GET", REFRESH, WITH_KEY).json()}
        return runs[run_id] if runs[run_id]["status"] in {"succeeded", "failed"} else None

    return wait_for(run, "the end of the refresh")


@pytest.mark.parametrize("name", ["orders", "Orders", "ORDERS"])
def test_r01_a_refresh(name: str) -> None:
    answer = call("POST", f"/v1/datasets/{name}/acceleration/refresh", WITH_KEY)

    assert answer.status == 201
    assert answer.json()["message"] == "Dataset refresh triggered for Orders."
    assert set(answer.json()["refresh"]) == {"id", "status"}
    run = finished(answer.json()["refresh"]["id"])
    columns = "id status requested_at started_at finished_at rows duration_ms error unchanged phase bytes"
    assert " ".join(run) == columns
    assert call("GET", f"{REFRESH}?format=csv", WITH_KEY).body.startswith(columns.replace(" ", ",").encode() + b"\n")
    assert (run["status"], run["rows"], run["error"]) == ("succeeded", 100, None)


@pytest.fixture
def _restored(runtime: RuntimeConfig, service: DatasetService) -> Iterator[None]:
    """Reload the whole source after a test that loaded a part of it."""
    yield
    finished(service.request_refresh("orders").id)


@pytest.mark.usefixtures("_restored")
def test_a_refresh_with_its_own_refresh_sql() -> None:
    sql = "SELECT * FROM orders WHERE id < 10"
    body = json.dumps({"refresh_sql": sql, "refresh_mode": "full", "refresh_jitter_max": "0s"}).encode()

    for content_type in ("application/json", "application/x-www-form-urlencoded", ""):
        answer = call("POST", REFRESH, WITH_KEY, ("Content-Type", content_type), body=body)
        assert answer.status == 201
        assert finished(answer.json()["refresh"]["id"])["rows"] == 10


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"refresh_mode":"append"}', 400, "time_column_missing"),
        (b"\xff", 400, "invalid_body"),
        (b'{"refresh_sql":"SELEC 1"}', 400, "sql_syntax_error"),
        (b'{"refresh_sql":"DROP TABLE orders"}', 403, "statement_not_allowed"),
        (b'{"refresh_sql":""}', 400, "empty_statement"),
    ],
)
def test_bodies_of_a_refresh_that_are_refused(body: bytes, status: int, code: str) -> None:
    before = call("GET", REFRESH, WITH_KEY).json()

    answer = call("POST", REFRESH, WITH_KEY, body=body)

    assert (answer.status, answer.code) == (status, code)
    assert len(call("GET", REFRESH, WITH_KEY).json()) == len(before)


@pytest.mark.parametrize("path", [REFRESH, "/v1/sql/abc/cancel"])
def test_actions_refuse_csv_and_do_nothing(path: str) -> None:
    before = call("GET", REFRESH, WITH_KEY).json()

    assert call("POST", f"{path}?format=csv", WITH_KEY).code == "invalid_parameter"

    assert len(call("GET", REFRESH, WITH_KEY).json()) == len(before)


def test_r15_refreshes_that_are_refused() -> None:
    def refresh(method: str, name: str, *headers: Header, **options: Any) -> Answer:
        return call(method, f"/v1/datasets/{name}/acceleration/refresh", *headers, **options)

    assert refresh("POST", "nope", WITH_KEY).code == "dataset_not_found"
    assert refresh("GET", "nope", WITH_KEY).code == "dataset_not_found"
    assert refresh("POST", "fixed", WITH_KEY).code == "acceleration_disabled"
    assert refresh("POST", "fixed", WITH_KEY, body=b'{"refresh_sql":"SELEC 1"}').code == "acceleration_disabled"
    assert refresh("PUT", "orders", WITH_KEY).status == 405
    assert refresh("PUT", "orders", WITH_KEY).headers["Allow"] == "GET, HEAD, POST"
    assert refresh("GET", "fixed", WITH_KEY).status == 200
    before = len(refresh("GET", "orders", WITH_KEY).json())
    assert refresh("POST", "orders").code == "missing_key"
    assert len(refresh("GET", "orders", WITH_KEY).json()) == before


@pytest.mark.parametrize("name", ["a%2Fb", "%00", "%0a", "..", "%ff", "x" * 5000, "orders%20"])
def test_odd_names_of_datasets_are_404(name: str) -> None:
    for method in ("GET", "POST"):
        assert call(method, f"/v1/datasets/{name}/acceleration/refresh", WITH_KEY).status == 404
