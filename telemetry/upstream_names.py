"""The metrics under the names that Spice.ai uses, for dashboards made for Spice.ai: `upstream_names: true`."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric as Family

from telemetry import metrics
from telemetry.events import NO_ERRORS
from telemetry.families import family
from telemetry.metrics import Kind, Metric, Series

#: The state numbers that Spice.ai uses.
_STATES = {"Initializing": 1, "Ready": 2, "Disabled": 3, "Error": 4, "Refreshing": 5}


def families(found: Mapping[Metric, Series]) -> Iterator[Family]:
    """Yield families with these names, built from the series in *found*."""

    def series(metric: Metric) -> Series:
        return found.get(metric, {})

    statements = series(metrics.STATEMENTS)
    failures = sum(count for (_, code), count in statements.items() if code not in NO_ERRORS)
    phases = {labels[0]: {(): one} for labels, one in series(metrics.STATEMENT_SECONDS).items()}
    states = series(metrics.DATASET_STATE)
    errors = {(name,): count for (name, how), count in series(metrics.DATASET_REFRESHES).items() if how == "failed"}
    now = time.time()
    checked = {labels: round((now - age) * 1000) for labels, age in series(metrics.DATASET_AGE).items()}
    yield _family("query_executions", {(): sum(statements.values())})
    yield _family("query_failures", {(): failures})
    yield _family("query_active_count", {(): sum(series(metrics.STATEMENTS_RUNNING).values())}, "gauge")
    yield _family("query_returned_rows", {(): sum(series(metrics.RESULT_ROWS).values())})
    yield _family("query_returned_bytes", {(): sum(series(metrics.RESULT_BYTES).values())})
    yield _family("query_duration_ms", phases.get("total", {}), "histogram")
    yield _family("query_execution_duration_ms", phases.get("run", {}), "histogram")
    yield _family("http_requests", series(metrics.HTTP_REQUESTS), "unknown", "path", "status")
    yield _family("http_requests_duration_ms", series(metrics.HTTP_REQUEST_SECONDS), "histogram", "path")
    yield _family("dataset_active_count", {(): len(states)}, "gauge")
    yield _family("dataset_load_state", {(name,): _STATES[state] for name, state in states}, "gauge", "dataset")
    yield _family("dataset_acceleration_refresh_errors", errors, "unknown", "dataset")
    yield _family("dataset_acceleration_last_refresh_time_ms", checked, "gauge", "dataset")


def _family(name: str, series: Mapping[Any, Any], kind: Kind = "unknown", *labels: str) -> Family:
    metric = Metric(name, kind, "As in Spice.ai.", labels, scale=1000 if kind == "histogram" else 1)
    return family(metric, series)
