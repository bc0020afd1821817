"""The metrics of a whole runtime, against what its callers counted themselves."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from flightapi.protocol import messages
from supervisor.version import version
from system.process_usage import usage_of
from tests.clients.runtime import FlightServer, endpoint_of
from tests.flightapi.endpoint import Endpoint, Refused, descriptor, ticket_of
from tests.system.harness import (
    K1,
    K2,
    KEYED,
    NO_ROOTS,
    PATIENCE_S,
    WRONG,
    free_port,
    taken_port,
    wait_for,
)
from tests.system.processes import engine_workers, is_alive
from tests.system.prometheus import Prometheus
from tests.system.test_reload import change, reload, set_keys
from tests.system.test_serve import part_of

Values = dict[tuple[str, ...], float]

ROWS = 20_000
#: Twelve kinds of statements, four of them over Flight SQL, and whether an answer may be cut off.
HTTP_KINDS: Mapping[str, Mapping[str, str]] = {
    "SELECT 42 AS a": {},
    "SELECT sum(id) AS s FROM orders": {"Accept": "text/csv"},
    "SELECT * FROM orders WHERE id < 10": {"Accept": "application/vnd.apache.arrow.stream"},
    f"SELECT range AS n, md5(range::VARCHAR) AS m FROM range({ROWS})": {},
    "SELECT nothing FROM orders": {},
    "SELECT FROM": {},
    "DROP TABLE orders": {},
    "SELECT * FROM read_csv('/etc/passwd')": {},
}
FLIGHT_KINDS = (
    "SELECT 43 AS a",
    f"SELECT range AS n FROM range({ROWS})",
    "SELECT nothing FROM big_orders",
    "SELECT count(*) AS n FROM big_orders",
)


def watched(directory: Path, **changes: Any) -> FlightServer:
    runtime = {
        "metrics": {"enabled": True, "bind": f"127.0.0.1:{free_port()}"},
        "query": {"workers": 2, "timeout": "2m"},
        **changes.pop("runtime", {}),
    }
    return FlightServer(directory, changes={"runtime": runtime, **changes})


def page_of(server: FlightServer, accept: str = "application/openmetrics-text") -> str:
    bind = yaml.safe_load(server.file.read_text())["runtime"]["metrics"]["bind"]
    answer = httpx.get(f"http://{bind}/metrics", headers={"Accept": accept}, verify=NO_ROOTS, timeout=PATIENCE_S)
    assert answer.status_code == 200
    return answer.text


def values_of(server: FlightServer) -> Values:
    """Return every value by the name of its sample and the values of its labels, in their order on the page."""
    parse: Any = text_string_to_metric_families  # without annotations
    families = parse(page_of(server))
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def counters_in(values: Values) -> Values:
    return {labels: value for labels, value in values.items() if labels[0].endswith(("_total", "_count", "_bucket"))}


def total(values: Values, name: str, *labels: str) -> float:
    return sum(
        value for (found, *has), value in values.items() if found == name and tuple(has[: len(labels)]) == labels
    )


def promtool(*arguments: str, stdin: str = "") -> str:
    """Run promtool of Debian's prometheus, and return what it prints."""
    if shutil.which("promtool") is None:
        assert "CI" not in os.environ, "promtool is missing: .ci/run installs it"
        pytest.skip("needs promtool")
    done = subprocess.run(["promtool", *arguments], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Truth:
    """What callers counted: statements by protocol and code, and HTTP requests by class of status. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.statements: Counter[tuple[str, str]] = Counter()
        self.cut = 0
        self.requests: Counter[str] = Counter()

    def http(self, client: httpx.Client, sql: str, headers: Mapping[str, str]) -> None:
        status, code = 0, "cut"
        with suppress(httpx.RemoteProtocolError, httpx.ReadError):  # An answer that is cut off does not look complete.
            with client.stream("POST", "/v1/sql", content=sql, headers={**KEYED, **headers}) as answer:
                status = answer.status_code
                body = answer.read()
            code = "ok" if status == 200 else json.loads(body)["code"]
        with self.lock:
            self.requests[f"{status // 100}xx"] += 1
            self.cut += code == "cut"
            if code != "cut":
                self.statements["http", code] += 1

    def flight(self, endpoint: Endpoint, sql: str) -> None:
        answer = endpoint.call("GetFlightInfo", descriptor(messages.CommandStatementQuery(query=sql)))
        if not isinstance(answer, Refused):
            answer = endpoint.call("DoGet", ticket_of(messages.parse(messages.FlightInfo, answer.messages[0])))
        code = str(answer.trailing["x-error-code"]) if isinstance(answer, Refused) else "ok"
        with self.lock:
            self.statements["flight-sql", code] += 1


def ask(server: FlightServer, truth: Truth, statements: int, seed: int) -> None:
    """Be a caller who sends that many statements, of all kinds in turn, over one connection of each protocol."""
    kinds = [*HTTP_KINDS, *FLIGHT_KINDS]
    random.Random(seed).shuffle(kinds)
    with endpoint_of(server) as endpoint, httpx.Client(base_url=server.url, verify=NO_ROOTS, timeout=60) as client:
        for number in range(statements):
            sql = kinds[number % len(kinds)]
            if sql in HTTP_KINDS:
                truth.http(client, sql, HTTP_KINDS[sql])
            else:
                truth.flight(endpoint, sql)


def kill_workers(server: FlightServer, kills: int, over: threading.Event) -> int:
    """Kill engine workers one after the other, and return how many were killed."""
    killed = 0
    while killed < kills and not over.wait(0.2):
        if workers := engine_workers(server.process.pid):
            victim = random.choice(workers)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                killed += 1
            wait_for(lambda victim=victim: not is_alive(victim), "its end")  # type: ignore[misc]
    return killed


def scrape(server: FlightServer, over: threading.Event) -> int:
    """Scrape all the time and return how often; fail if a counter falls or goes away."""
    before: Values = {}
    scrapes = 0
    while not over.wait(0.05):
        now = counters_in(values_of(server))
        assert {labels: value for labels, value in before.items() if now.get(labels, -1) < value} == {}
        before, scrapes = now, scrapes + 1
    return scrapes


def counted(server: FlightServer, truth: Truth, before: Values, killed: int) -> None:
    """Compare the page with what callers counted since *before*, as soon as the last request is told."""

    def grown(name: str, *labels: str) -> float:
        return total(now, name, *labels) - total(before, name, *labels)

    wanted = sum(truth.statements.values()) + truth.cut
    wait_for(
        lambda: (
            total(values_of(server), "querykeep_http_requests_total", "/v1/sql")
            - total(before, "querykeep_http_requests_total", "/v1/sql")
            >= sum(truth.requests.values())
        ),
        "the sums of requests",
    )
    wait_for(lambda: total(values_of(server), "querykeep_workers_lost_total") >= killed, "the lost workers")
    now = values_of(server)
    found = {
        (labels[2], labels[1]): value - before.get(labels, 0)
        for labels, value in now.items()
        if labels[0] == "querykeep_statements_total"
    }
    assert sum(found.values()) == wanted
    # The caller of an answer that was cut off does not hear the code.
    differing = {
        labels: (found.get(labels, 0), truth.statements[labels])
        for labels in {*found, *truth.statements}
        if found.get(labels, 0) != truth.statements[labels]
    }
    assert sum(ours - theirs for ours, theirs in differing.values()) == truth.cut
    assert all(labels == ("http", "engine_worker_died") for labels in differing)
    assert {
        status: grown("querykeep_http_requests_total", "/v1/sql", status) for status in truth.requests
    } == truth.requests
    assert grown("querykeep_statement_seconds_count", "total") == wanted
    assert grown("querykeep_key_statements_total") == wanted
    assert grown("querykeep_workers_lost_total", "signal") == killed
    timeouts = sum(times for (_, code), times in truth.statements.items() if code == "query_timeout")
    assert grown("querykeep_workers_lost_total") <= killed + timeouts, "a slow machine may reach the time limit"
    assert grown("querykeep_events_dropped_total") == 0


def load(server: FlightServer, statements: int, kills: int, callers: int = 4) -> None:
    """Send statements of twelve kinds while workers are killed, and compare."""
    truth, before, over = Truth(), values_of(server), threading.Event()
    with ThreadPoolExecutor(callers + 2) as pool:
        scraping = pool.submit(scrape, server, over)
        killing = pool.submit(kill_workers, server, kills, over)
        asking = [pool.submit(ask, server, truth, statements // callers, seed) for seed in range(callers)]
        try:
            for one in asking:
                one.result()
            assert killing.result() == kills
        finally:
            over.set()
        assert scraping.result() > 2
    counted(server, truth, before, kills)


@pytest.mark.exhaustive
def test_counters_equal_what_callers_counted(tmp_path: Path) -> None:
    with watched(tmp_path) as server:
        wait_for(lambda: ("querykeep_dataset_rows", "orders") in values_of(server), "the datasets")
        load(server, 96, 4)

        for key in (WRONG, WRONG, None):
            assert server.sql("SELECT 1", key).status_code == 401
        failures = {"unknown_key": 2.0, "missing_key": 1.0}
        name = "querykeep_auth_failures_total"
        wait_for(lambda: total(values_of(server), name) >= 3, "the failures")
        values = values_of(server)
        assert {reason: values[name, reason] for reason in failures} == failures
        assert values["querykeep_dataset_state", "orders", "Ready"] == 1
        assert values["querykeep_dataset_refreshes_total", "orders", "succeeded"] == 1
        for part in ("web", "flight", "engine", "refresh", "watch"):
            assert values["querykeep_process_cpu_seconds_total", part] > 0
            assert values["querykeep_process_resident_memory_bytes", part] > 1e7
        assert values["querykeep_state_directory_used_bytes",] > 1000
        assert K1 not in page_of(server)
        assert f'version="{version()}"' in page_of(server)
        promtool("check", "metrics", stdin=page_of(server, "text/plain"))
    assert "Traceback" not in server.output()


@pytest.mark.exhaustive
def test_counters_go_on_after_a_reload_and_begin_at_0_with_another_part(tmp_path: Path) -> None:
    with watched(tmp_path) as server:
        load(server, 48, 0)
        assert server.sql("SELECT 1", WRONG).status_code == 401
        name = "querykeep_auth_failures_total"
        wait_for(lambda: total(values_of(server), name) == 1, "the failure")
        values = values_of(server)

        set_keys(server, K1)
        change(server, lambda config: config["runtime"]["query"].update(max_queued=5))
        assert reload(server).returncode == 0
        wait_for(lambda: values_of(server)["querykeep_statements_queue_limit",] == 5, "the new configuration")
        after = values_of(server)
        assert {labels: value for labels, value in counters_in(values).items() if after[labels] < value} == {}
        assert after["querykeep_start_time_seconds",] == values["querykeep_start_time_seconds",]
        wait_for(lambda: 'generation="2"' in page_of(server), "the new generation")
        assert server.sql("SELECT 1", K2).status_code == 401
        wait_for(lambda: total(values_of(server), name) == 2, "the failure after the reload")

        port = int(yaml.safe_load(server.file.read_text())["runtime"]["metrics"]["bind"].rpartition(":")[2])
        with taken_port() as taken:
            change(server, lambda config: config["runtime"]["metrics"].update(bind=f"127.0.0.1:{taken}"))
            refused = reload(server)
        assert (refused.returncode, f"Cannot listen on 127.0.0.1:{taken}" in refused.stderr) == (1, True), refused
        change(server, lambda config: config["runtime"]["metrics"].update(bind=f"192.0.2.7:{port}"))
        refused = reload(server)
        assert (refused.returncode, f"Cannot listen on 192.0.2.7:{port}" in refused.stderr) == (1, True), refused
        assert listens(port), "the page stays where it was"

        port = free_port()
        moved = {"bind": f"127.0.0.1:{port}", "upstream_names": True}
        change(server, lambda config: config["runtime"]["metrics"].update(moved))
        assert reload(server).returncode == 0
        wait_for(lambda: listens(port), "the new address")
        assert values_of(server)["query_executions",] == total(values_of(server), "querykeep_statements_total")

        killed = part_of(server, "watch")
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{killed}").exists(), "the end of the part that counts")

        def began_anew() -> bool:
            with suppress(httpx.TransportError):
                return values_of(server)["querykeep_start_time_seconds",] > values["querykeep_start_time_seconds",]
            return False

        assert server.rows("SELECT 1 AS a") == [{"a": 1}], "nothing waits for the part that counts"
        wait_for(began_anew, "another part that counts")
        assert server.rows("SELECT 1 AS a") == [{"a": 1}]
        wait_for(lambda: total(values_of(server), "querykeep_statements_total", "ok", "http") == 2, "both statements")

        change(server, lambda config: config["runtime"].update(metrics={"enabled": False}))
        assert reload(server).returncode == 0
        wait_for(lambda: not listens(port), "no page")
    assert "Traceback" not in server.output()


@pytest.mark.soak
def test_ten_thousand_statements_with_workers_killed_on_the_way(tmp_path: Path) -> None:
    with watched(tmp_path) as server:
        load(server, 10_000, 200)


@pytest.mark.parametrize(
    "times",
    [pytest.param(600, marks=pytest.mark.exhaustive), pytest.param(100_000, marks=pytest.mark.soak)],
)
def test_hostile_paths_keys_and_statements_do_not_grow_the_page(tmp_path: Path, times: int) -> None:
    with watched(tmp_path) as server:
        wait_for(lambda: ("querykeep_dataset_rows", "orders") in values_of(server), "the datasets")

        def attack(client: httpx.Client, number: int) -> None:
            marks = random.Random(number).choices('abc{}"\\\u00e4\u4e2d%', k=8)
            text = "".join(marks) + str(number)
            match number % 3:
                case 0:
                    client.get(f"/{text.encode().hex()}/{number}", headers=KEYED)
                case 1:
                    client.post("/v1/sql", content="SELECT 1", headers={"X-API-Key": text.encode().hex()})
                case _:
                    client.post("/v1/sql", content=f"SELECT '{text}' AS \"{number}\", {text}".encode(), headers=KEYED)

        def attacks(numbers: range) -> None:
            with httpx.Client(base_url=server.url, verify=NO_ROOTS, timeout=PATIENCE_S) as client:
                for number in numbers:
                    attack(client, number)

        attacks(range(60))
        wait_for(lambda: total(values_of(server), "querykeep_auth_failures_total") == 20, "the first attacks")
        before = values_of(server)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(attacks, [range(60 + part, times, 4) for part in range(4)]))
        expected = len(range(1, times, 3))
        wait_for(lambda: total(values_of(server), "querykeep_auth_failures_total") == expected, "the attacks")

        # A few verdicts may come late: a statement that works by chance, or finds no worker free.
        assert len(set(values_of(server)) - set(before)) <= 10
        assert len(page_of(server)) < 1.2 * 40_000


@pytest.mark.parametrize(
    "count", [pytest.param(40, marks=pytest.mark.exhaustive), pytest.param(1_000, marks=pytest.mark.soak)]
)
def test_a_scrape_with_many_datasets_and_keys_takes_little_processor_time(tmp_path: Path, count: int) -> None:
    (tmp_path / "tiny.csv").write_text("a\n1\n")
    names = [f"tiny_{number}" for number in range(count)]
    keys = [
        {"name": f"key-{number}", "key": f"{K1}-{number}", "expires": "2036-01-01T00:00:00Z"} for number in range(count)
    ]
    changes: dict[str, Any] = {
        "runtime": {"auth": {"api-key": {"enabled": True, "named_keys": keys}}},
        "datasets": [
            {"from": "file:tiny.csv", "name": name, "acceleration": {"refresh_check_interval": "1h"}} for name in names
        ],
        "views": [],
    }
    many = watched(tmp_path, **changes)
    many.wait_ready = False
    with many as server:
        wait_for(lambda: total(values_of(server), "querykeep_dataset_state", names[-1], "Ready"), "the datasets", 900)
        with httpx.Client(base_url=server.url, verify=NO_ROOTS, timeout=PATIENCE_S) as client:
            for number in range(count):
                answer = client.post("/v1/sql", content="SELECT 1", headers={"X-API-Key": f"{K1}-{number}"})
                assert answer.status_code == 200
        bind = yaml.safe_load(server.file.read_text())["runtime"]["metrics"]["bind"]
        before_s = usage_of(part_of(server, "watch")).cpu_s
        with httpx.Client(verify=NO_ROOTS, timeout=PATIENCE_S) as client:
            for _ in range(100):
                answer = client.get(f"http://{bind}/metrics")
        used_s = usage_of(part_of(server, "watch")).cpu_s - before_s

        assert answer.text.count("querykeep_key_expires_timestamp_seconds{") == count
        assert answer.text.count("querykeep_dataset_age_seconds{") == count
        assert used_s / 100 < 0.0005 * count, "it takes 0.2 s with 1,000; `benchmarks.watched` shows the time"


@pytest.mark.exhaustive
def test_a_prometheus_scrapes_and_an_alert_fires_when_the_source_of_a_dataset_dies(tmp_path: Path) -> None:
    dataset = {
        "from": "file:orders.parquet",
        "name": "orders",
        "acceleration": {"enabled": True, "refresh_check_interval": "1s"},
    }
    with watched(tmp_path, datasets=[dataset]) as server:
        bind = yaml.safe_load(server.file.read_text())["runtime"]["metrics"]["bind"]
        with Prometheus(tmp_path, bind) as prometheus:

            def scraped() -> bool:
                found = prometheus.ask("query", query="querykeep_dataset_rows")
                return bool(found and found["result"] and found["result"][0]["value"][1] == "1000")

            wait_for(scraped, "a scrape")
            assert [target["lastError"] for target in prometheus.ask("targets")["activeTargets"]] == [""]
            (group,) = prometheus.ask("rules")["groups"]
            assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
            assert prometheus.firing() == []

            (tmp_path / "orders.parquet").unlink()

            alert = wait_for(
                lambda: [one for one in prometheus.firing() if one["alertname"] == "QuerykeepDatasetOld"], "the alert"
            )
            assert alert[0]["dataset"] == "orders"
            assert server.rows("SELECT count(*) AS n FROM orders") == [{"n": 1000}]
