"""What is counted, and how the page shows it: to a parser that is not ours, and to promtool."""

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text

from telemetry import counters as counting
from telemetry import metrics
from telemetry.counters import OTHER, Counters, Distribution, Labels
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
from telemetry.exposition import OPEN_METRICS, TEXT, Family, page, preferred
from telemetry.metrics import METRICS, Metric
from telemetry.upstream_names import aliases
from tests.system.harness import REPOSITORY
from tests.telemetry.test_sender import STATEMENT

parse_open: Any = text_string_to_metric_families  # without annotations


def samples(text: str, parse: Any = parse_text) -> dict[tuple[str, ...], float]:
    """Return every value by name and values of labels, in their order on the page."""
    return {(sample.name, *sample.labels.values()): sample.value for family in parse(text) for sample in family.samples}


def families(counters: Counters) -> list[Family]:
    found = counters.series()
    return [(metric, found[metric]) for metric in METRICS if metric in found]


def shown(counters: Counters) -> dict[tuple[str, ...], float]:
    return samples(page(families(counters), TEXT).decode())


def test_statements_are_counted_by_all_that_they_are() -> None:
    counters = Counters()

    counters.take([STATEMENT, replace(STATEMENT, code="sql_error", key="", rows=0, bytes=0, cache="")])
    counters.take(
        [StatementEvent("q", "r", "flight-sql", "f2", "", "engine_busy", 1.0, 40_000, 0, 0, 0, 0, 0, 0, "", "")]
    )

    found = shown(counters)
    assert found["querykeep_statements_total", "http", "ok"] == 1
    assert found["querykeep_statements_total", "http", "sql_error"] == 1
    assert found["querykeep_statements_total", "flight-sql", "engine_busy"] == 1
    assert found["querykeep_statements_total", "flight-sql", "ok"] == 0
    assert found["querykeep_key_statements_total", "app", "ok"] == 1
    assert found["querykeep_key_statements_total", "f1", "error"] == 1, "a key without a name has its fingerprint"
    assert found["querykeep_result_rows_total", "http"] == 7
    assert found["querykeep_result_bytes_total", "http"] == 700
    assert found["querykeep_results_cache_lookups_total", "miss"] == 1
    assert found["querykeep_statement_seconds_count", "total"] == 3
    assert found["querykeep_statement_seconds_sum", "total"] == pytest.approx(40.02)
    assert found["querykeep_statement_seconds_bucket", "total", "0.01"] == 2
    assert found["querykeep_statement_seconds_bucket", "total", "30.0"] == 2
    assert found["querykeep_statement_seconds_bucket", "total", "+Inf"] == 3
    for phase, milliseconds in (("queue", 1), ("gate", 2), ("run", 3), ("encode", 0.5), ("send", 3.5)):
        assert found["querykeep_statement_seconds_count", phase] == 2, "one did not begin to run"
        assert found["querykeep_statement_seconds_sum", phase] == pytest.approx(2 * milliseconds / 1000)


def test_a_caller_that_leaves_early_is_no_error() -> None:
    counters = Counters()

    counters.take([replace(STATEMENT, code=code) for code in ("ok", "client_closed_request", "sql_error")])

    found = shown(counters)
    assert found["querykeep_statements_total", "http", "client_closed_request"] == 1
    assert found["querykeep_key_statements_total", "app", "ok"] == 2
    assert found["querykeep_key_statements_total", "app", "error"] == 1
    assert samples(page(aliases(counters.series()), TEXT).decode())["query_failures",] == 1


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
    assert found["querykeep_statements_total", OTHER, OTHER] == 1000 - 8
    assert sum(value for (name, *_), value in found.items() if name == "querykeep_http_requests_total") == 1000
    assert len(found) < 600


def test_both_formats_say_the_same_to_parsers_of_others() -> None:
    counters = Counters()
    counters.take([STATEMENT, RequestsEvent("/v1/sql", 200, 0.5, [1] + [0] * 15)])
    name = 'a "quoted" \\ name\nof two lines'
    gauges: list[dict[Labels, float]] = [{("1.0", "3.11", "2.0"): 1}, {(name,): 1.5e9}, {}]
    shown_too = (metrics.BUILD, metrics.KEY_EXPIRES, metrics.DATASET_AGE)
    others: list[Family] = list(zip(shown_too, gauges, strict=True))

    text = page([*families(counters), *others], TEXT).decode()
    opened = page([*families(counters), *others], OPEN_METRICS).decode()

    assert samples(text) == samples(opened, parse_open)
    assert ("querykeep_key_expires_timestamp_seconds", name) in samples(text)
    assert "dataset_age" not in text
    kinds = {family.name: family.type for family in parse_open(opened)}
    assert kinds["querykeep_build"] == "info"
    assert kinds["querykeep_statements"] == "counter"
    assert kinds["querykeep_statement_seconds"] == "histogram"


def test_a_label_that_is_no_text_has_no_escape_that_the_format_lacks() -> None:
    series: dict[Labels, float] = {("\ud800",): 1.0}

    assert page([(metrics.KEY_EXPIRES, series)], TEXT).endswith(b'{key="?"} 1.0\n')


def test_the_names_of_spice() -> None:
    counters = Counters()
    counters.expect_datasets(["orders"])
    counters.take([STATEMENT, replace(STATEMENT, code="sql_error"), RefreshEvent("orders", "failed", 1.0, 9, None)])
    found = counters.series()
    found |= {metrics.DATASET_STATE: {("orders", "Ready"): 1}, metrics.DATASET_AGE: {("orders",): 60.0}}
    found |= {metrics.STATEMENTS_RUNNING: {(): 2}}

    for content_type, parse in ((TEXT, parse_text), (OPEN_METRICS, parse_open)):
        values = samples(page(aliases(found), content_type).decode(), parse)
        assert values["query_executions",] == 2
        assert values["query_failures",] == 1
        assert values["query_active_count",] == 2
        assert values["query_duration_ms_sum",] == pytest.approx(20)
        assert values["query_duration_ms_bucket", "10.0"] == 2
        assert values["query_execution_duration_ms_count",] == 2
        assert values["dataset_load_state", "orders"] == 2
        assert values["dataset_active_count",] == 1
        assert values["dataset_acceleration_refresh_errors", "orders"] == 1
        last = values["dataset_acceleration_last_refresh_time_ms", "orders"]
        assert time.time() - 61 < last / 1000 < time.time() - 59


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain", TEXT),
        ("application/openmetrics-text", OPEN_METRICS),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", OPEN_METRICS),
        ("application/openmetrics-text;version=2.0.0,text/plain;q=0.1", TEXT),
        ("application/openmetrics-text;q=0.3, text/plain;q=0.4", TEXT),
        ("application/openmetrics-text;q=x", TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.25,*/*;q=0.1", OPEN_METRICS),
        ("application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.25,*/*;q=0.1", OPEN_METRICS),
    ],
)
def test_the_format_is_the_one_that_weighs_most(accept: str, content_type: str) -> None:
    assert preferred(accept) == content_type


def test_a_page_of_1000_datasets_and_1000_keys_takes_milliseconds() -> None:
    counters = Counters()
    names = [f"dataset_{number}" for number in range(1000)]
    counters.expect_datasets(names)
    counters.take(
        [replace(STATEMENT, key=f"key {number}", code=code) for number in range(1000) for code in ("ok", "x")]
    )
    per_dataset: Mapping[tuple[str, ...], float] = {(name,): 1.5 for name in names}
    gauges: Iterable[Metric] = (
        metrics.DATASET_AGE,
        metrics.DATASET_ROWS,
        metrics.DATASET_BYTES,
        metrics.DATASET_INTERVAL,
    )

    began = time.process_time()
    text = page([*families(counters), *((metric, per_dataset) for metric in gauges)], TEXT)
    took_s = time.process_time() - began

    assert text.count(b"\n") > 9000
    assert took_s < 0.1


def test_the_page_of_the_docs_has_every_metric() -> None:
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
