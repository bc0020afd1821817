"""What a person does with the page: datasets, statements, rows, charts, code, keys and errors."""

import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from runtimeclient.client import RuntimeClient
from runtimeclient.console.assets import SOURCES, Asset
from runtimeclient.console.server import ConsoleServer
from runtimeclient.http.results import JSON_WITH_SCHEMA
from runtimeclient.output.charts import make_chart, vega_lite
from runtimeclient.output.formats import read_rows
from runtimeclient.output.terminal import ChartRequest
from tests.runtimeclient.console.browser.conftest import HOSTILE, Page, saved
from tests.runtimeclient.console.console_thread import serving
from tests.runtimeclient.remote import Remote, Reply, as_reply, problem, serve
from tests.system.harness import K1, Server, wait_for
from tests.web_server import File, saying
from tests.web_server import serving as serving_files

Opened = Callable[..., Page]


def test_datasets_and_views_are_listed_with_their_columns(page: Page) -> None:
    listed = page.tab.locator("ul.datasets > li")

    assert listed.locator("summary .name").all_text_contents() == ["orders", "big_orders"]
    listed.first.locator("summary").click()
    shown = listed.first.inner_text()
    assert "Ready, 1,000 rows" in shown
    assert f"Orders of the shop {HOSTILE}" in shown
    assert f"In euros {HOSTILE}" in shown
    assert listed.first.locator("ul.columns li .type").all_text_contents()[:3] == [
        " BIGINT",
        " VARCHAR",
        " DECIMAL(12,3)",
    ]


def test_a_refresh_is_followed_to_its_end(page: Page, runtime: Server) -> None:
    before = len(runtime.refreshes())
    page.tab.locator("ul.datasets > li summary").first.click()

    page.tab.get_by_role("button", name="Refresh").click()

    page.tab.get_by_text("Refresh succeeded").wait_for()
    assert len(runtime.refreshes()) == before + 1


def test_a_running_statement_is_listed_and_cancelled(page: Page, runtime: Server) -> None:
    page.write("SELECT count(*) FROM range(1000000000) a, range(1000) b")
    page.tab.get_by_role("button", name="Run").click()
    running = page.select("Running")
    running.get_by_text("range(1000000000)").wait_for()

    running.get_by_role("button", name="Cancel").click()

    assert "query_cancelled" in page.error()
    assert runtime.active() == []


def test_cancel_stops_the_statement_in_the_runtime(page: Page, runtime: Server) -> None:
    page.write("SELECT count(*) FROM range(1000000000) a, range(1000) b")
    page.tab.get_by_role("button", name="Run").click()
    wait_for(runtime.active, "the statement to run")

    page.tab.get_by_role("button", name="Cancel").click()

    wait_for(lambda: not runtime.active(), "the statement to stop")
    assert page.error() == "Cancelled."


def test_past_statements_go_back_into_the_editor(page: Page) -> None:
    page.run("SELECT 'the past' AS t")
    history = page.select("History")

    history.get_by_role("button", name="SELECT 'the past' AS t").first.click()

    assert page.tab.locator(".cm-content").inner_text() == "SELECT 'the past' AS t"
    assert history.get_by_role("row", name="the past").first.get_by_role("cell").first.inner_text() == "ok"
    page.select("Statistics").get_by_role("row").nth(1).wait_for()


def test_parameters_are_asked_for(page: Page) -> None:
    page.write("SELECT $id + 1 AS n, :Word AS t, '$no' AS s -- $comment")
    fields = page.tab.get_by_role("group", name="Parameters").get_by_role("textbox")
    assert fields.count() == 2
    fields.nth(0).fill("9007199254740993")
    fields.nth(1).fill("it's 007")
    fields.nth(1).press("Enter")
    page.tab.locator("#summary", has_text="1 row").wait_for()
    assert [page.cell(0, column) for column in range(3)] == ["9007199254740994", "it's 007", "$no"]
    assert saved(page, "Download JSON") == b'[{"n":9007199254740994,"t":"it\'s 007","s":"$no"}]'
    panel = page.select("Code")
    for name, command in (("curl", ["sh", "-c"]), ("Python", [sys.executable, "-c"])):
        code = panel.get_by_label(f"{name} code").text_content()
        done = subprocess.run(
            [*command, code], env={**os.environ, "RUNTIME_API_KEY": K1}, capture_output=True, check=True
        )
        assert b"9007199254740994" in done.stdout

    page.write("SELECT $2 AS b, $1 AS a")
    fields.nth(0).fill("[1, null]")
    page.tab.get_by_role("button", name="Run").click()
    page.tab.locator("[id='cell:0:0']:text('[1,null]')").wait_for()
    assert page.cell(0, 1) == ""
    fields.nth(1).fill('"5"')
    page.tab.get_by_role("button", name="Run").click()
    page.tab.locator("[id='cell:0:1']:text('5')").wait_for()
    assert "json.loads" in str(page.select("Code").get_by_label("ADBC code").text_content())

    page.write("SELECT 1")
    page.tab.get_by_role("group", name="Parameters").wait_for(state="hidden")


def test_the_page_reads_what_the_runtime_sends(runtime: Server) -> None:
    sources = "".join((SOURCES / "src" / f"{name}.ts").read_text() for name in ("catalog", "statements", "key"))
    sent = {}
    with RuntimeClient(runtime.url, K1) as client, ThreadPoolExecutor(1) as pool:
        client.request_refresh("orders")
        runtime.rows("SELECT 1")
        running = pool.submit(runtime.sql, "SELECT count(*) FROM range(1000000000) a, range(1000) b")
        (active,) = wait_for(runtime.active, "the statement to run")
        for interface, path in {
            "Dataset": "datasets",
            "Refresh": "datasets/orders/acceleration/refresh",
            "Active": "sql/active",
            "Finished": "sql/history",
            "Statistics": "sql/statistics",
            "Key": "key",
        }.items():
            sent[interface] = json.dumps(runtime.listed(f"/v1/{path}"))
        client.cancel_query(active["id"])
        running.result()

    for interface, text in sent.items():
        found = re.search(rf"interface {interface} \{{(.*?)^\}}", sources, re.DOTALL | re.MULTILINE)
        assert found
        assert [name for name in re.findall(r"(?<!\[)\b(\w+):", found[1]) if f'"{name}"' not in text] == [], interface


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELECT i AS n, i * i AS square, -i AS minus FROM range(50) t(i)", None),
        ("SELECT 'group ' || i % 5 AS g, sum(i) AS total FROM range(50) t(i) GROUP BY 1 ORDER BY 1", None),
        ("SELECT TIMESTAMP '2024-01-01' + to_minutes(i::INT) AS t, i AS v FROM range(50) t(i)", None),
        ("SELECT DATE '2024-01-01' + i::INT AS d, i / 8 AS v, NULL::INT AS gap FROM range(30) t(i)", None),
        ("SELECT i AS n, nullif(i, 3) AS v FROM range(9) t(i)", "point"),
        ("SELECT i AS n, i + 1 AS v, i + 2 AS w FROM range(9) t(i)", "bar"),
        ("SELECT '2024-01-0' || i AS d, i AS v FROM range(1, 9) t(i)", None),
        ("SELECT 5 AS only", None),
        ("SELECT 'g' || i AS g, [1, 'inf', '-inf', 'nan', 1e-320, -1e300][i]::DOUBLE AS v FROM range(1, 7) t(i)", None),
        ('SELECT i AS n, i AS "\\""" FROM range(2) t(i)', None),
        ("SELECT i AS n, i * 1e308 AS v FROM range(2) t(i)", None),
    ],
)
def test_a_chart_has_the_specification_of_the_client(page: Page, runtime: Server, statement: str, kind: Any) -> None:
    request = ChartRequest(kind="scatter" if kind == "point" else kind)
    with RuntimeClient(runtime.url, K1) as client, client.sql(statement, JSON_WITH_SCHEMA) as result:
        columns, rows = read_rows(result)
        try:
            expected = vega_lite(make_chart(columns, rows, request))
        except Exception as error:  # noqa: BLE001
            expected = {"error": str(error)}

    page.run(statement)
    panel = page.select("Chart")
    if kind:
        panel.locator("#chart-kind").select_option(kind)
    if "error" in expected:
        panel.get_by_text(expected["error"]).wait_for()
        return
    panel.locator("svg").wait_for()

    assert json.loads(saved(page, "Save Vega-Lite")) == expected
    assert saved(page, "Save SVG").startswith(b"<svg")
    assert saved(page, "Save PNG").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("SELECT 'it''s' AS t, -- a comment\n  1 AS n", id="quotes and lines"),
        pytest.param("SELECT 'it''s' AS t, /* \x1b[201~ \u202e \U000e0041\n */ 1 AS n", id="controls of terminals"),
    ],
)
def test_code_samples_run_as_they_are(opened: Opened, console: ConsoleServer, statement: str) -> None:
    page = opened(console, f"&sql={quote(statement)}")
    panel = page.select("Code")
    panel.get_by_label("ADBC code").wait_for()
    curl, python = (panel.get_by_label(f"{name} code").text_content() for name in ("curl", "Python"))
    assert not re.search("[\x1b\u202e\U000e0041]", curl + python)
    environ = {**os.environ, "RUNTIME_API_KEY": K1}

    by_curl = subprocess.run(["sh", "-c", curl], env=environ, capture_output=True, text=True, check=True)
    by_python = subprocess.run([sys.executable, "-c", python], env=environ, capture_output=True, text=True, check=True)

    assert by_curl.stdout == '[{"t":"it\'s","n":1}]'
    assert by_python.stdout == "{'t': \"it's\", 'n': 1}\n"
    compile(panel.get_by_label("ADBC code").text_content(), "adbc", "exec")


def test_a_link_has_the_statement_and_does_not_run_it(page: Page, runtime: Server) -> None:
    page.write("SELECT 'shared' AS t")
    page.tab.get_by_role("button", name="Copy link").click()
    link = page.tab.url
    asked = len(page.requests)

    second = page.context.new_page()
    second.goto(link)
    second.locator("ul.datasets > li").first.wait_for()

    assert second.locator(".cm-content").inner_text() == "SELECT 'shared' AS t"
    assert second.locator("#summary").text_content() == ""
    assert "token" not in link
    assert len(page.requests) == asked


def test_a_reload_needs_no_new_link_and_a_used_link_opens_nothing(page: Page, browser: Any) -> None:
    link = page.server.make_link()
    page.tab.goto("about:blank")
    page.tab.goto(link)
    page.tab.locator("ul.datasets > li").first.wait_for()
    page.tab.reload()
    page.tab.locator("ul.datasets > li").first.wait_for()
    assert "token" not in page.tab.url

    with browser.new_context() as stranger:
        tab = stranger.new_page()
        for address in (link, link.partition("#")[0]):
            tab.goto("about:blank")
            tab.goto(address)
            tab.locator("#notice p").first.wait_for()
            assert tab.locator("#page").is_hidden()
            assert "orders" not in tab.content()


def test_hostile_cells_and_names_are_text(page: Page) -> None:
    quoted = HOSTILE.replace("'", "''")
    name = HOSTILE.replace('"', '""')
    page.run(f"SELECT '{quoted}' AS \"{name}\", chr(27) || '[31mred', 'a' || chr(8238) || 'b', 'javascript:alert(1)'")

    assert [page.cell(0, column) for column in range(4)] == [HOSTILE, "␛[31mred", "a<U+202E>b", "javascript:alert(1)"]
    page.tab.locator("[id='cell:0:0']").dblclick()
    assert page.tab.locator("dialog pre").text_content() == HOSTILE
    page.tab.keyboard.press("Escape")
    for tab in ("Chart", "Code", "History", "Statistics", "Key"):
        page.select(tab)
    page.run(f'SELECT chr(1) || \'{quoted}\' AS "\x01x\\""", 5 AS "{name}", 6 AS "\x01y"')
    page.select("Chart").locator("svg").wait_for()
    picture = saved(page, "Save SVG").decode()
    assert all(text in picture for text in ('>␁x\u29f5"<', ">␁y<", ">␁&lt;img "))
    assert "\x01" not in picture, "XML has no control characters"
    page.write(f"SELECT '{quoted}'::INTEGER")
    page.tab.get_by_role("button", name="Run").click()
    assert HOSTILE in page.error()
    assert page.tab.locator("img, script:not([src='/main.js']), a[href^='javascript']").count() == 0


def test_a_statement_in_a_hostile_link_is_text(opened: Opened, console: ConsoleServer) -> None:
    page = opened(console, "&sql=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")

    assert page.tab.locator(".cm-content").inner_text() == "<img src=x onerror=alert(1)>"


@pytest.fixture
def fake(opened: Opened, assets: dict[str, Asset]) -> Any:
    """The page in front of a runtime whose replies the test sets."""
    with serve(Remote()) as remote:
        remote.on("GET", "/v1/ready", Reply(body=b"ready"))
        remote.on("GET", "/v1/datasets", as_reply([{"name": "d", "from": "file:d", "status": "Ready", "rows": 1}]))
        remote.on_sql(Reply(body=b"[]"))
        with serving(remote.url, K1, assets) as server:
            yield remote, opened(server)


def test_refusals_say_what_to_do(fake: tuple[Remote, Page]) -> None:
    remote, page = fake
    for reply, words in [
        (
            problem(401, "invalid_key", "The API key is unknown."),
            ["The API key is unknown.", "invalid_key", "valid key"],
        ),
        (problem(403, "not_permitted", "No permission."), ["No permission.", "not_permitted", "The Key tab"]),
        (problem(429, "rate_limited", "Too many."), ["Too many.", "rate_limited", "Try again in 7 s."]),
        (problem(504, "query_timeout", "Too long."), ["Too long.", "query_timeout", "r-1", "time limit"]),
        (Reply(502, b"<h1>proxy</h1>", "text/html"), ["<h1>proxy</h1>", "http_502"]),
    ]:
        headers = {"Retry-After": "7"} if reply.status == 429 else {}
        remote.on_sql(Reply(reply.status, reply.body, reply.content_type, headers))
        page.write("SELECT 1")
        page.tab.get_by_role("button", name="Run").click()
        page.tab.locator("#error", has_text=words[1]).wait_for()
        shown = page.error()
        assert [word for word in words if word not in shown] == []


def test_a_cut_result_says_so_and_nothing_is_saved(fake: tuple[Remote, Page]) -> None:
    remote, page = fake
    sink = io.BytesIO()
    schema = pa.schema([("n", pa.int64())])
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(range(500))], schema=schema))
    for content in (sink.getvalue()[:-8], sink.getvalue()[:500], sink.getvalue()[:9], b""):
        remote.on_sql(Reply(body=content, content_type="application/vnd.apache.arrow.stream", is_cut=True))
        page.write("SELECT 1")
        page.tab.get_by_role("button", name="Run").click()
        assert "The response was cut" in page.error()
        assert page.summary() == "" or "not complete" in page.summary()
        page.tab.get_by_role("button", name="Download CSV").click()
        page.tab.get_by_text("Nothing was saved").wait_for()
    page.complaints.clear()  # the page logs what broke


def test_rows_are_shown_as_they_arrive_and_stay_when_the_rest_is_cut(opened: Opened, assets: dict[str, Asset]) -> None:
    sink, more, over = io.BytesIO(), threading.Event(), threading.Event()
    schema = pa.schema([("n", pa.int64())])
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(range(500))], schema=schema))
        first = len(sink.getvalue())
        writer.write_batch(pa.record_batch([pa.array(range(500, 510))], schema=schema))
    parts = [b"%x\r\n%b\r\n" % (len(rows), rows) for rows in (sink.getvalue()[:first], sink.getvalue()[first:-8])]

    def send(connection: socket.socket) -> None:
        saying(head + parts[0], until=more)(connection)
        saying(parts[1], until=over)(connection)

    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.apache.arrow.stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving_files() as web, serving(web.url, K1, assets) as server:
        web.files["/v1/datasets"] = File(b'[{"name": "d", "from": "file:d", "status": "Ready", "rows": 1}]')
        web.files["/v1/ready"] = File(b"ready")
        web.files["/v1/sql"] = File(b"[]")
        page = opened(server)
        web.files["/v1/sql"] = File(take_over=send)
        page.write("SELECT 1")
        page.tab.get_by_role("button", name="Run").click()
        page.tab.locator("[id='cell:3:0']", has_text="3").wait_for()
        header = page.tab.get_by_role("columnheader", name="n")
        header.click()
        header.click()
        page.tab.locator("[id='cell:3:0']:text('496')").wait_for()
        more.set()
        page.tab.locator("#progress", has_text="510 rows").wait_for()
        page.tab.locator(".grid").focus()
        page.tab.keyboard.press("Control+End")
        page.tab.locator("[id='cell:509:0']:text('509')").wait_for()
        assert page.cell(499, 0) == "0"
        over.set()

        assert "The response was cut" in page.error()
        assert "The grid has the first 510 rows: this result is not complete." in page.summary()
        assert page.cell(509, 0) == "509"
    page.complaints.clear()  # the page logs what broke


def test_a_runtime_that_goes_and_comes_back(opened: Opened, assets: dict[str, Asset]) -> None:
    with serve(Remote()) as remote:
        remote.on("GET", "/v1/ready", Reply(body=b"ready"))
        remote.on("GET", "/v1/datasets", as_reply([{"name": "d", "from": "file:d", "status": "Ready", "rows": 1}]))
        remote.on_sql(Reply(body=b"[]"))
        with serving(remote.url, K1, assets) as server:
            page = opened(server)
            state = page.tab.locator("#state")
            page.tab.locator("#state", has_text="Ready").wait_for()
            remote.on("GET", "/v1/ready", Reply(503, b"not ready", "text/plain"))
            page.tab.locator("#state", has_text="Not ready").wait_for()
            asked = len(remote.requests)
            remote.on("GET", "/v1/ready", Reply(body=b"ready"))
            page.tab.locator("#state.good").wait_for()

            wait_for(
                lambda: any(r.path == "/v1/datasets" for r in remote.requests[asked:]), "the datasets to be read again"
            )
        page.tab.locator("#state", has_text="The console has stopped").wait_for()
        assert "querykeep console" in str(state.text_content())


def test_another_server_than_a_runtime_is_named(browser: Any, assets: dict[str, Asset]) -> None:
    with serve(Remote()) as remote, serving(remote.url, K1, assets) as server:
        remote.on("GET", "/v1/datasets", as_reply({"error": "<b>no</b>"}))
        page = Page(browser, server)
        page.tab.goto(server.make_link())

        page.tab.get_by_text("Datasets cannot be listed: The endpoint is not a runtime.").wait_for()
        page.close()


def test_a_scoped_key_sees_what_the_api_gives(opened: Opened, assets: dict[str, Asset], tmp_path: Path) -> None:
    key, other = "a-scoped-key-that-is-long-enough", "another-scoped-key-that-is-long-enough"
    rule = {
        "name": "orders",
        "row_filter": "id < 7",
        "columns": ["id", "name"],
        "masks": {"name": "'x' || right(name, 1)"},
    }
    items = [
        {"name": "partner", "key": key, "datasets": ["big_orders"], "limits": {"requests_per_minute": 600}},
        {"name": "ruled", "key": other, "datasets": [rule]},
    ]
    auth = {"api-key": {"enabled": True, "keys": [K1], "named_keys": items}}
    views = [{"name": "big_orders", "sql": "SELECT id FROM orders WHERE amount > 100", "materialized": True}]
    with (
        Server(tmp_path, changes={"runtime": {"auth": auth}, "views": views}) as runtime,
        serving(runtime.url, key, assets) as server,
        serving(runtime.url, other, assets) as other_server,
    ):
        page, ruled = opened(server), opened(other_server)

        assert page.tab.locator("ul.datasets > li summary .name").all_text_contents() == ["big_orders"]
        page.select("Key").get_by_role("table").wait_for()
        shown = page.select("Key").inner_text()
        assert [word for word in ("partner", "big_orders", "query", "600") if word not in shown] == []
        assert "orders" not in shown.replace("big_orders", "")
        page.write("SELECT * FROM orders")
        page.tab.get_by_role("button", name="Run").click()
        assert "sql_error" in page.error()
        assert page.tab.get_by_role("button", name="Refresh").count() == 0
        assert key not in page.tab.content()

        listed = ruled.tab.locator("ul.datasets > li")
        listed.locator("summary").click()
        assert listed.locator("ul.columns li button").all_text_contents() == ["id", "name"]
        assert "1,000" not in listed.inner_text(), "the number of all rows"
        assert ruled.run("SELECT * FROM orders ORDER BY id").startswith("7 rows, 2 columns")
        assert [ruled.cell(6, 0), ruled.cell(6, 1)] == ["6", "x6"]
        assert saved(ruled, "Download CSV").count(b"\n") == 8
        ruled.select("Key").get_by_text("orders: id, name").wait_for()
        ruled.write("SELECT amount FROM orders")
        ruled.tab.get_by_role("button", name="Run").click()
        assert "Line 1, column 8" in ruled.error()


def test_names_with_a_schema_and_words_of_sql_are_written_as_the_runtime_reads_them(
    opened: Opened, assets: dict[str, Asset], tmp_path: Path
) -> None:
    names = ["orders", "sales.orders", "hr.orders", "window"]
    datasets = [{"from": "file:orders.parquet", "name": name} for name in names]
    views = [{"name": "sales.few", "sql": "SELECT id AS few_id FROM sales.orders LIMIT 3"}]
    with (
        Server(tmp_path, changes={"datasets": datasets, "views": views}) as runtime,
        serving(runtime.url, K1, assets) as server,
    ):
        page = opened(server)
        listed = page.tab.locator("ul.datasets > li")

        assert listed.locator("summary .name").all_text_contents() == [*names, "sales.few"]
        assert [item.locator("ul.columns li").count() for item in listed.all()] == [4, 4, 4, 4, 1]
        for item, rows in zip(listed.all(), ["1,000"] * 4 + ["3"], strict=True):
            item.locator("summary").click()
            item.get_by_role("button", name="Rows").click()
            page.tab.get_by_role("button", name="Run").click()
            assert page.summary().startswith(f"{rows} rows")
        for typed, word in (("FROM sales.f", "few"), ("SELECT sales.few.few_", "few_id")):
            page.write("")
            page.tab.keyboard.type(typed)
            page.tab.locator(".cm-tooltip-autocomplete li", has_text=word).first.wait_for()
