"""
Writes metrics as Prometheus text 0.0.4 or OpenMetrics 1.0, whichever a scraper prefers.

The page may have tens of thousands of lines, so it is written by string operations alone.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate

from telemetry.counters import Distribution, Labels
from telemetry.events import BUCKETS_S
from telemetry.metrics import Metric

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

#: A family of the page: the metric and its series.
Family = tuple[Metric, Mapping[Labels, float] | Mapping[Labels, Distribution]]

_LIMITS = (*(repr(limit) for limit in BUCKETS_S), "+Inf")
#: For the names of Spice.ai, which measures in milliseconds.
_LIMITS_MS = (*(repr(limit * 1000) for limit in BUCKETS_S), "+Inf")

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@lru_cache(maxsize=32_768)  # The same series are on every page.
def _pairs(names: Labels, labels: Labels) -> str:
    return ",".join([f'{name}="{text.translate(_ESCAPED)}"' for name, text in zip(names, labels, strict=True)])


def preferred(accept: str) -> str:
    """Return the content type to answer a request with this `Accept` header: TEXT unless OPEN_METRICS weighs more."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for item in accept.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        given = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        if name in weights and (name == "text/plain" or given.get("version", "1.0.0") in {"1.0.0", "0.0.1"}):
            try:
                weight = float(given.get("q", "1"))
            except ValueError:
                continue
            weights[name] = max(weights[name], weight)
    return OPEN_METRICS if weights["application/openmetrics-text"] > weights["text/plain"] else TEXT


def page(families: Iterable[Family], content_type: str) -> bytes:
    """Return the page with *families*, in their order; those without series are left out."""
    is_open = content_type == OPEN_METRICS
    lines: list[str] = []
    for metric, series in families:
        if series:
            _write(metric, series, lines, is_open=is_open)
    if is_open:
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _write(
    metric: Metric, series: Mapping[Labels, float] | Mapping[Labels, Distribution], lines: list[str], *, is_open: bool
) -> None:
    # OpenMetrics has a type for information, and names a counter without the suffix of its samples.
    family = metric.name if is_open else metric.sample
    kind = metric.kind if is_open else {"info": "gauge", "unknown": "untyped"}.get(metric.kind, metric.kind)
    limits = _LIMITS_MS if metric.name.endswith("_ms") else _LIMITS
    lines.append(f"# HELP {family} {metric.help}")
    lines.append(f"# TYPE {family} {kind}")
    sample = metric.sample
    for labels, value in series.items():
        pairs = _pairs(metric.labels, labels)
        if isinstance(value, Distribution):
            before = f"{pairs}," if pairs else ""
            cumulated = list(accumulate(value.counts))
            for limit, count in zip(limits, cumulated, strict=True):
                lines.append(f'{sample}_bucket{{{before}le="{limit}"}} {count}')
            braced = f"{{{pairs}}}" if pairs else ""
            lines.append(f"{sample}_sum{braced} {value.sum!r}")
            lines.append(f"{sample}_count{braced} {cumulated[-1]}")
        else:
            lines.append(f"{sample}{{{pairs}}} {value!r}" if pairs else f"{sample} {value!r}")
