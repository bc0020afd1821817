"""The page of metrics: counters, histograms and gauges."""

import time
from typing import Any

from supervisor.gauges import Gauges
from telemetry import exposition, metrics
from telemetry.aggregates import Memory
from telemetry.upstream_names import aliases


class MetricsPage:
    """The page of metrics, for a `PageServer`."""

    def __init__(self, memory: Memory, gauges: Gauges) -> None:
        self._counters = memory.counters
        self._gauges = gauges
        self._began = round(time.time(), 3)
        self.has_upstream_names = False

    def __call__(self, accept: str) -> tuple[str, bytes]:
        """Return the content type and the page for a request with this `Accept` header."""
        content_type = exposition.preferred(accept)
        found: dict[Any, Any] = {metrics.START_TIME: {(): self._began}}
        found |= {**self._counters.series(), **self._gauges.series()}
        families = [(metric, found[metric]) for metric in metrics.METRICS if metric in found]
        if self.has_upstream_names:
            families += aliases(found)
        return content_type, exposition.page(families, content_type)
