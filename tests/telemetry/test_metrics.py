"""What is counted, and how it is shown: to the parsers of Prometheus."""

import re
import time
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text

from telemetry import counters as counting
from telemetry import metrics
from telemetry.counters import OTHER, Counters
from telemetry.events import (
    BUCKETS_S,
    AuthenticationFailuresEvent,
    DroppedEvent,
    EmptiedEvent,
    RefreshEvent,
    RequestsEvent,
    StatementEvent,
    WorkerLostEvent,
)
from telemetry.metrics import METRICS, Distribution, Metric, Series
from telemetry.metrics_endpoint import RuntimeMetrics
from tests.system.harness import REPOSITORY
from tests.telemetry.test_sender import STATEMENT

parse_open: Any = text_string_to_metric_families  # without annotations
generate_open_metrics, _ = choose_encoder("application/openmetrics-text")


def samples(text: bytes, parse: Any = parse_text) -> dict[tuple[str, ...], float]:
    """Return every value by name and values of labels, in their order in *text*."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(text.decode())
        for sample in family.samples
    }


def registry(counters: Counters, gauges: dict[Metric, Series] | None = None, *, upstream: bool = False) -> Any:
    collected = RuntimeMetrics(counters.series, lambda: gauges or {}, began=0.0)
    collected.has_upstream_names = upstream
    made = CollectorRegistry()
    made.register(collected)
    return made


def shown(counters: Counters) -> dict[tuple[str, ...], float]:
    return samples(generate_latest(registry(counters)))


def test_statements_are_counted_by_all_that_they_are() -> None:
    counters = Counters()

    counters.take([STATEMENT, replace(STATEMENT, code="sql_error", key="", rows=0, bytes=0, cache="")])
    counters.take(
        [StatementEvent("q", "r", "flight-sql", "f2", "", "engine_busy", 1.0, 40_000, 0, 0, 0, 0, 0, 0, "", "")]
    )

    found = shown(counters)
    assert found["querykeep_statements_total", "ok", "http"] == 1
    assert found["querykeep_statements_total", "sql_error", "http"] == 1
    assert found["querykeep_statements_total", "engine_busy", "flight-sql"] == 1
    assert found["querykeep_statements_total", "ok", "flight-sql"] == 0
    assert found["querykeep_key_statements_total", "app", "ok"] == 1
    assert found["querykeep_key_statements_total", "f1", "error"] == 1, "a key without a name has its fingerprint"
    assert found["querykeep_result_rows_total", "http"] == 7
    assert found["querykeep_result_bytes_total", "http"] == 700
    assert found["querykeep_results_cache_lookups_total", "miss"] == 1
    assert found["querykeep_statement_seconds_count", "total"] == 3
    assert found["querykeep_statement_seconds_sum", "total"] == pytest.approx(40.02)
    assert found["querykeep_statement_seconds_bucket", "0.01", "total"] == 2
    assert found["querykeep_statement_seconds_bucket", "30.0", "total"] == 2
    assert found["querykeep_statement_seconds_bucket", "+Inf", "total"] == 3
    for phase, milliseconds in (("queue", 1), ("gate", 2), ("run", 3), ("encode", 0.5), ("send", 3.5)):
        assert found["querykeep_statement_seconds_count", phase] == 2, "one did not start to run"
        assert found["querykeep_statement_seconds_sum", phase] == pytest.approx(2 * milliseconds / 1000)


def test_a_caller_that_leaves_early_is_no_error() -> None:
    counters = Counters()

    counters.take([replace(STATEMENT, code=code) for code in ("ok", "client_closed_request", "sql_error")])

    found = shown(counters)
    assert found["querykeep_statements_total", "client_closed_request", "http"] == 1
    assert found["querykeep_key_statements_total", "app", "ok"] == 2
    assert found["querykeep_key_statements_total", "app", "error"] == 1


def test_a_statement_that_only_waited_counts_in_queue_and_total() -> None:
    counters = Counters()

    counters.take([replace(STATEMENT, code="engine_busy", queued_ms=5000.0, parse_ms=0.0, run_ms=0.0, encode_ms=0.0)])

    found = shown(counters)
    counts = {
        phase: found["querykeep_statement_seconds_count", phase] for phase in ("queue", "gate", "run", "send", "total")
    }
    assert counts == {"queue": 1, "gate": 0, "run": 0, "send": 0, "total": 1}


def test_everything_else_is_counted_too() -> None:
    counters = Counters()
    counters.expect_datasets(["orders"])
    counters.expect(metrics.AUTH_FAILURES, [("expired_key",)])

    counters.take(
        [RequestsEvent("/v1/sql", 503, 0.5, [2] + [0] * 15), RequestsEvent("/v1/sql", 507, 1, [0] * 15 + [1])]
    )
    counters.take([AuthenticationFailuresEvent("unknown_key", 3), WorkerLostEvent("time", -14, ""), DroppedEvent(2)])
    counters.take([RefreshEvent("orders", "succeeded", 1.0, 0.2, 5), RefreshEvent("orders", "failed", 1.0, 9, None)])
    assert shown(counters)["querykeep_dataset_emptied_total", "orders"] == 0
    counters.take([EmptiedEvent("orders")])

    found = shown(counters)
    assert found["querykeep_http_requests_total", "/v1/sql", "5xx"] == 3
    assert found["querykeep_http_request_seconds_count", "/v1/sql"] == 3
    assert found["querykeep_http_request_seconds_sum", "/v1/sql"] == 1.5
    assert found["querykeep_auth_failures_total", "unknown_key"] == 3
    assert found["querykeep_auth_failures_total", "expired_key"] == 0
    assert found["querykeep_workers_lost_total", "time"] == 1
    assert found["querykeep_workers_lost_total", "memory"] == 0
    assert found["querykeep_events_dropped_total",] == 2
    outcomes = {
        outcome: found["querykeep_dataset_refreshes_total", "orders", outcome]
        for outcome in ("succeeded", "unchanged", "failed")
    }
    assert outcomes == {"succeeded": 1, "unchanged": 0, "failed": 1}
    assert found["querykeep_dataset_refresh_seconds_count",] == 1
    assert found["querykeep_dataset_emptied_total", "orders"] == 1


def test_series_are_bounded_even_if_a_label_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_SERIES", 10)
    counters = Counters()

    counters.take([replace(STATEMENT, code=f"code {number}") for number in range(1000)])
    counters.take([RequestsEvent(f"/{number}", 200, 0.0, [1] + [0] * 15) for number in range(1000)])

    found = shown(counters)
    assert sum(value for (name, *_), value in found.items() if name == "querykeep_statements_total") == 1000
    assert found["querykeep_statements_total", OTHER, OTHER] == 1000 - 7
    assert sum(value for (name, *_), value in found.items() if name == "querykeep_http_requests_total") == 1000
    assert len(found) < 600


def test_both_formats_say_the_same_and_leave_out_what_has_no_value() -> None:
    counters = Counters()
    counters.take([STATEMENT, RequestsEvent("/v1/sql", 200, 0.5, [1] + [0] * 15)])
    name = 'a "quoted" \\ name\nof two lines'
    gauges: dict[Metric, Series] = {
        metrics.BUILD: {("1.0", "3.11", "2.0"): 1.0},
        metrics.KEY_EXPIRES: {(name,): 1.5e9},
        metrics.DATASET_AGE: {},
    }

    text = generate_latest(registry(counters, gauges))
    opened = generate_open_metrics(registry(counters, gauges))

    values = samples(text)
    values.pop(("querykeep_start_time_seconds",))
    assert values.items() <= samples(opened, parse_open).items()
    assert values["querykeep_key_expires_timestamp_seconds", name] == 1.5e9
    assert b'querykeep_build_info{duckdb="2.0",python="3.11",version="1.0"} 1.0' in text
    assert b"dataset_age" not in text
    kinds = {family.name: family.type for family in parse_open(opened.decode())}
    assert kinds["querykeep_build"] == "info"
    assert kinds["querykeep_statements"] == "counter"
    assert kinds["querykeep_statement_seconds"] == "histogram"


def test_the_names_of_spice() -> None:
    counters = Counters()
    counters.expect_datasets(["orders"])
    counters.take([replace(STATEMENT, code=code) for code in ("ok", "sql_error", "client_closed_request")])
    counters.take([RefreshEvent("orders", "failed", 1.0, 9, None)])
    gauges: dict[Metric, Series] = {
        metrics.DATASET_STATE: {("orders", "Ready"): 1},
        metrics.DATASET_AGE: {("orders",): 60.0},
        metrics.STATEMENTS_RUNNING: {(): 2},
    }
    collected = registry(counters, gauges, upstream=True)

    for text, parse in ((generate_latest(collected), parse_text), (generate_open_metrics(collected), parse_open)):
        values = samples(text, parse)
        assert values["query_executions",] == 3
        assert values["query_failures",] == 1
        assert values["query_active_count",] == 2
        assert values["query_duration_ms_sum",] == pytest.approx(30)
        assert values["query_duration_ms_bucket", "10.0"] == 3
        assert values["query_execution_duration_ms_count",] == 3
        assert values["dataset_load_state", "orders"] == 2
        assert values["dataset_active_count",] == 1
        assert values["dataset_acceleration_refresh_errors", "orders"] == 1
        last = values["dataset_acceleration_last_refresh_time_ms", "orders"]
        assert last / 1000 + 60 == pytest.approx(time.time(), abs=30)


def test_the_docs_have_every_metric() -> None:
    text = (REPOSITORY / "docs/monitoring.md").read_text()
    rows = re.findall(r"^\| `(querykeep_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", text, re.MULTILINE)

    assert rows == [
        (metric.sample, metric.kind, ", ".join(f"`{label}`" for label in metric.labels) or "-", metric.help)
        for metric in METRICS
    ]


def test_names_follow_the_rules_of_prometheus() -> None:
    assert len({metric.sample for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"querykeep_[a-z_]+", metric.name)
        assert not metric.name.endswith(("_total", "_info", "_ms", "_count", "_sum", "_bucket"))
        assert metric.help.endswith(".")
    assert list(BUCKETS_S) == sorted(BUCKETS_S)
    assert len(Distribution().counts) == len(BUCKETS_S) + 1
