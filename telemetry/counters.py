"""Counts events. Counters never decrease."""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, get_args

from telemetry import metrics
from telemetry.events import (
    NO_ERRORS,
    AuthenticationFailuresEvent,
    Cause,
    DroppedEvent,
    EmptiedEvent,
    Event,
    RefreshEvent,
    RefreshOutcome,
    RequestsEvent,
    StatementEvent,
    WorkerLostEvent,
    grouped,
)
from telemetry.metrics import Distribution, Labels, Metric, Series

#: The maximum number of label values. Label values are known words and names, far fewer than this. Values over the
#: limit are counted together as `OTHER`.
MAX_SERIES = 20_000
OTHER = "other"

_PHASES = ("queue", "gate", "run", "encode", "send", "total")
_LABELS = attrgetter("protocol", "key", "fingerprint", "code", "cache")
_TIMES = attrgetter("queued_ms", "parse_ms", "run_ms", "encode_ms", "send_ms")


class Counters:
    """The `Aggregate` with all counters and histograms. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Metric, dict[Labels, float]] = {
            metric: {} for metric in metrics.METRICS if metric.kind == "counter"
        }
        self._histograms: dict[Metric, dict[Labels, Distribution]] = {
            metric: {} for metric in metrics.METRICS if metric.kind == "histogram"
        }
        self._phases = [Distribution() for _ in _PHASES]
        for phase, distribution in zip(_PHASES, self._phases, strict=True):
            self._histograms[metrics.STATEMENT_SECONDS][phase,] = distribution
        self._histograms[metrics.REFRESH_SECONDS][()] = Distribution()
        self._counts[metrics.EVENTS_DROPPED][()] = 0
        # If a series begins at 0, its first event is visible as an increase.
        self.expect(metrics.WORKERS_LOST, [(cause,) for cause in get_args(Cause)])
        for protocol in ("http", "flight-sql", "mcp"):
            self.expect(metrics.STATEMENTS, [(protocol, "ok")])
            self.expect(metrics.RESULT_ROWS, [(protocol,)])
            self.expect(metrics.RESULT_BYTES, [(protocol,)])
        self._takers: dict[type, Callable[[Any], None]] = {
            RequestsEvent: self._requests,
            AuthenticationFailuresEvent: lambda event: self._add(metrics.AUTH_FAILURES, (event.reason,), event.times),
            WorkerLostEvent: lambda event: self._add(metrics.WORKERS_LOST, (event.cause,)),
            RefreshEvent: self._refresh,
            EmptiedEvent: lambda event: self._add(metrics.DATASET_EMPTIED, (event.dataset,)),
            DroppedEvent: lambda event: self._add(metrics.EVENTS_DROPPED, (), event.times),
        }

    def expect(self, metric: Metric, series: Iterable[Labels]) -> None:
        """Show the counters *series* of *metric* from now on, even while they are 0."""
        with self._lock:
            for labels in series:
                self._counts[metric].setdefault(labels, 0)

    def expect_datasets(self, names: Collection[str]) -> None:
        """Show the refreshes of the datasets *names* from now on."""
        outcomes = get_args(RefreshOutcome)
        self.expect(metrics.DATASET_EMPTIED, [(name,) for name in names])
        self.expect(metrics.DATASET_REFRESHES, [(name, outcome) for name in names for outcome in outcomes])

    def take(self, events: Sequence[Event]) -> None:
        """Count *events*."""
        statements = [event for event in events if isinstance(event, StatementEvent)]
        others = [event for event in events if not isinstance(event, StatementEvent)]
        with self._lock:
            if statements:
                self._statements(statements)
            for event in others:
                self._takers[type(event)](event)

    def series(self) -> dict[Metric, Series]:
        """Return a copy of all counters, and of all histograms as distributions."""
        with self._lock:
            return {metric: dict(series) for metric, series in self._counts.items()} | {
                metric: {labels: Distribution(one.counts, one.sum) for labels, one in series.items()}
                for metric, series in self._histograms.items()
            }

    def _add(self, metric: Metric, labels: Labels, amount: float = 1) -> None:
        series = self._counts[metric]
        try:
            series[labels] += amount
        except KeyError:
            if len(series) >= MAX_SERIES:
                labels = (OTHER,) * len(labels)
            series[labels] = series.get(labels, 0) + amount

    def _statements(self, events: Sequence[StatementEvent]) -> None:
        for (protocol, key, fingerprint, code, cache), alike in grouped(events, _LABELS).items():
            self._add(metrics.STATEMENTS, (protocol, code), len(alike))
            self._add(metrics.KEY_STATEMENTS, (key or fingerprint, "ok" if code in NO_ERRORS else "error"), len(alike))
            if rows := sum([event.rows for event in alike]):
                self._add(metrics.RESULT_ROWS, (protocol,), rows)
            if size := sum([event.bytes for event in alike]):
                self._add(metrics.RESULT_BYTES, (protocol,), size)
            if cache:
                self._add(metrics.CACHE_LOOKUPS, (cache,), len(alike))
        # The zeros of refused statements would make each phase look faster than it is.
        ran = [event for event in events if event.parse_ms or event.run_ms]
        only_waited = [event.queued_ms for event in events if not (event.parse_ms or event.run_ms) and event.queued_ms]
        for phase, times_ms in zip(self._phases, zip(*map(_TIMES, ran), strict=True), strict=False):
            phase.observe_ms(times_ms)
        self._phases[0].observe_ms(only_waited)
        self._phases[-1].observe_ms([event.total_ms for event in events])

    def _requests(self, event: RequestsEvent) -> None:
        self._add(metrics.HTTP_REQUESTS, (event.route, f"{event.status // 100}xx"), sum(event.buckets))
        series = self._histograms[metrics.HTTP_REQUEST_SECONDS]
        labels = (event.route,) if (event.route,) in series or len(series) < MAX_SERIES else (OTHER,)
        distribution = series.setdefault(labels, Distribution())
        distribution.counts = [former + more for former, more in zip(distribution.counts, event.buckets, strict=True)]
        distribution.sum += event.seconds

    def _refresh(self, event: RefreshEvent) -> None:
        self._add(metrics.DATASET_REFRESHES, (event.dataset, event.outcome))
        if event.outcome == "succeeded":
            self._histograms[metrics.REFRESH_SECONDS][()].observe_ms([event.seconds * 1000])
