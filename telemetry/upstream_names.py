"""The metrics under the names that Spice.ai uses, for dashboards that were made for it: `upstream_names: true`."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from telemetry import metrics
from telemetry.counters import Distribution, Labels
from telemetry.events import NO_ERRORS
from telemetry.exposition import Family
from telemetry.metrics import Kind, Metric

#: The numbers of the states there.
_STATES = {"Initializing": 1, "Ready": 2, "Disabled": 3, "Error": 4, "Refreshing": 5}


def aliases(found: Mapping[Metric, Mapping[Labels, Any]]) -> Iterator[Family]:
    """Yield families with these names, made of the series in *found*."""
    statements = found.get(metrics.STATEMENTS, {})
    yield _one("query_executions", sum(statements.values()))
    yield _one("query_failures", sum(count for (_, code), count in statements.items() if code not in NO_ERRORS))
    yield _one("query_active_count", sum(found.get(metrics.STATEMENTS_RUNNING, {}).values()), "gauge")
    yield _one("query_returned_rows", sum(found.get(metrics.RESULT_ROWS, {}).values()))
    yield _one("query_returned_bytes", sum(found.get(metrics.RESULT_BYTES, {}).values()))
    phases = found.get(metrics.STATEMENT_SECONDS, {})
    for name, phase in (("query_duration_ms", "total"), ("query_execution_duration_ms", "run")):
        yield _family(name, {(): _ms(phases[phase,])} if (phase,) in phases else {}, "histogram")
    yield _family("http_requests", found.get(metrics.HTTP_REQUESTS, {}), "unknown", "path", "status")
    seconds = found.get(metrics.HTTP_REQUEST_SECONDS, {})
    milliseconds: dict[Labels, Distribution] = {labels: _ms(one) for labels, one in seconds.items()}
    yield _family("http_requests_duration_ms", milliseconds, "histogram", "path")
    states = found.get(metrics.DATASET_STATE, {})
    yield _one("dataset_active_count", len(states), "gauge")
    numbers: dict[Labels, float] = {(name,): _STATES[state] for name, state in states}
    yield _family("dataset_load_state", numbers, "gauge", "dataset")
    refreshes = found.get(metrics.DATASET_REFRESHES, {})
    errors: dict[Labels, float] = {
        (name,): count for (name, outcome), count in refreshes.items() if outcome == "failed"
    }
    yield _family("dataset_acceleration_refresh_errors", errors, "unknown", "dataset")
    now = time.time()
    last = {labels: round((now - age) * 1000) for labels, age in found.get(metrics.DATASET_AGE, {}).items()}
    yield _family("dataset_acceleration_last_refresh_time_ms", last, "gauge", "dataset")


def _family(name: str, series: Mapping[Labels, Any], kind: Kind, *labels: str) -> Family:
    return Metric(name, kind, "As in Spice.ai.", labels), series


def _one(name: str, value: float, kind: Kind = "unknown") -> Family:
    return _family(name, {(): value}, kind)


def _ms(distribution: Distribution) -> Distribution:
    return Distribution(distribution.counts, distribution.sum * 1000)
