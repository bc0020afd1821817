"""Metrics in the form that `prometheus_client` writes. Only the metrics endpoint imports that library."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, cast

from prometheus_client import metrics_core

from telemetry.events import BUCKETS_S
from telemetry.metrics import Distribution, Kind, Metric, Series

_FAMILIES: Mapping[Kind, Any] = {
    "counter": metrics_core.CounterMetricFamily,
    "gauge": metrics_core.GaugeMetricFamily,
    "histogram": metrics_core.HistogramMetricFamily,
    "info": metrics_core.InfoMetricFamily,
    "unknown": metrics_core.UnknownMetricFamily,
}


def family(metric: Metric, series: Series) -> metrics_core.Metric:
    """Return the *series* of *metric*."""
    made = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
    limits = (*(repr(limit * metric.scale) for limit in BUCKETS_S), "+Inf")
    for labels, value in series.items():
        if isinstance(value, Distribution):
            buckets = list(zip(limits, accumulate(value.counts), strict=True))
            made.add_metric(labels, buckets, value.sum * metric.scale)
        else:
            made.add_metric(labels, {} if metric.kind == "info" else value)
    return cast("metrics_core.Metric", made)
