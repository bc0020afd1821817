"""
Every metric in output order: name, type, labels, meaning. `docs/monitoring.md` has the same table.

Labels have few values, and callers cannot add values. They are names from the configuration file, routes, and words
defined in this program. Counter names here do not include the suffix `_total` of their samples.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from telemetry.events import BUCKETS_S

Kind = Literal["counter", "gauge", "histogram", "info", "unknown"]

#: The label values of one series.
Labels = tuple[str, ...]

_BUCKETS_MS = tuple(limit * 1000 for limit in BUCKETS_S)


class Distribution:
    """The observations of a histogram series: the `counts` per bucket (the last bucket is unbounded) and the `sum`."""

    __slots__ = ("counts", "sum")

    def __init__(self, counts: Iterable[int] = (0,) * (len(BUCKETS_S) + 1), total: float = 0.0) -> None:
        self.counts = list(counts)
        self.sum = total

    def observe_ms(self, times_ms: Sequence[float]) -> None:
        """Add observations in milliseconds."""
        counts = self.counts
        for time_ms in times_ms:
            counts[bisect_left(_BUCKETS_MS, time_ms)] += 1
        self.sum += sum(times_ms) / 1000


#: The series of one metric: numbers, or distributions for a histogram.
Series = Mapping[Labels, Any]


class Metric(Struct, frozen=True, eq=False):
    """A metric. `help` is one sentence. `scale` is the number of the metric's units per second."""

    name: str
    kind: Kind
    help: str
    labels: Labels = ()
    scale: int = 1

    @property
    def sample(self) -> str:
        """The name of the samples, without the suffixes of a histogram."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


METRICS: list[Metric] = []


def _metric(kind: Kind, name: str, meaning: str, labels: str = "") -> Metric:
    METRICS.append(Metric(name, kind, meaning, tuple(labels.split())))
    return METRICS[-1]


_counter = partial(_metric, "counter")
_gauge = partial(_metric, "gauge")
_histogram = partial(_metric, "histogram")
_info = partial(_metric, "info")

BUILD = _info("querykeep_build", "The versions of this runtime.", "version python duckdb")
CONFIG = _info(
    "querykeep_config",
    "The current configuration: its generation (increased by each reload) and the enabled features.",
    "generation authentication flight tls results_cache",
)
START_TIME = _gauge(
    "querykeep_start_time_seconds", "When the counters started at 0, which is when the process that counts started."
)
HTTP_REQUESTS = _counter(
    "querykeep_http_requests",
    "HTTP requests that have ended, by route and class of the status (2xx).",
    "route status",
)
HTTP_REQUEST_SECONDS = _histogram(
    "querykeep_http_request_seconds", "Time from an HTTP request to the end of its response.", "route"
)
STATEMENTS = _counter(
    "querykeep_statements",
    "Statements that have ended, by protocol and outcome: ok, or the error code.",
    "protocol code",
)
STATEMENT_SECONDS = _histogram(
    "querykeep_statement_seconds",
    "Time of statements by phase: queue, gate, run, encode, send, and total. A statement that did not start to run "
    "counts only in total, and in queue if it waited.",
    "phase",
)
KEY_STATEMENTS = _counter(
    "querykeep_key_statements",
    "Statements that have ended, by key (its name, or the fingerprint of a key without one) and outcome: ok or error. "
    "A client that disconnects early is not an error.",
    "key outcome",
)
RESULT_ROWS = _counter("querykeep_result_rows", "Rows of results, by protocol.", "protocol")
RESULT_BYTES = _counter("querykeep_result_bytes", "Encoded bytes of results, by protocol.", "protocol")
CACHE_LOOKUPS = _counter(
    "querykeep_results_cache_lookups",
    "Statements that could use the results cache: hit, miss, or bypass if the client opted out.",
    "result",
)
STATEMENTS_RUNNING = _gauge("querykeep_statements_running", "Statements that have an execution slot.")
STATEMENTS_QUEUED = _gauge("querykeep_statements_queued", "Statements that wait for an execution slot.")
QUEUE_LIMIT = _gauge(
    "querykeep_statements_queue_limit", "Maximum number of waiting statements: runtime.query.max_queued."
)
WORKERS = _gauge("querykeep_workers", "Engine workers by state: busy, idle, or missing.", "state")
WORKERS_LOST = _counter(
    "querykeep_workers_lost",
    "Engine workers that ended early, by cause: time, memory, request, stuck (killed by the runtime or the system for "
    "that), signal (killed from elsewhere, or crashed), exit (ended with an error).",
    "cause",
)
AUTH_FAILURES = _counter(
    "querykeep_auth_failures", "Requests and calls that were refused because of their key, by reason.", "reason"
)
DATASET_STATE = _gauge(
    "querykeep_dataset_state",
    "1 for the state that the dataset is in, as in GET /v1/datasets: Initializing, Ready, Refreshing, Error, Disabled.",
    "dataset state",
)
DATASET_AGE = _gauge(
    "querykeep_dataset_age_seconds",
    "Time since a refresh of the dataset last succeeded, even if its source was unchanged.",
    "dataset",
)
DATASET_INTERVAL = _gauge(
    "querykeep_dataset_refresh_interval_seconds",
    "The dataset's refresh_check_interval; missing if it has none.",
    "dataset",
)
DATASET_ROWS = _gauge("querykeep_dataset_rows", "Rows of the dataset that are being served.", "dataset")
DATASET_BYTES = _gauge("querykeep_dataset_bytes", "Size of the dataset's snapshot.", "dataset")
DATASET_REFRESHES = _counter(
    "querykeep_dataset_refreshes",
    "Refreshes that have ended, by dataset and outcome: succeeded, unchanged, failed.",
    "dataset outcome",
)
DATASET_EMPTIED = _counter(
    "querykeep_dataset_emptied", "Refreshes that left a previously non-empty dataset without rows.", "dataset"
)
REFRESH_SECONDS = _histogram(
    "querykeep_dataset_refresh_seconds", "Time of refreshes that loaded data, of all datasets."
)
NODE_PUBLISHES = _gauge(
    "querykeep_node_publishes",
    "1 if this node publishes the shared snapshots, else 0; missing without runtime.snapshots. It is 0 as soon "
    "as another node can publish.",
)
SHARED_STORAGE_AGE = _gauge(
    "querykeep_shared_storage_age_seconds",
    "Time since the shared storage last responded to this node; missing if it never did.",
)
KEY_EXPIRES = _gauge("querykeep_key_expires_timestamp_seconds", "When the key expires; missing if it does not.", "key")
CPU_SECONDS = _counter("querykeep_process_cpu_seconds", "CPU time of a service's processes, user and system.", "part")
MEMORY_BYTES = _gauge(
    "querykeep_process_resident_memory_bytes",
    "Resident memory of a service's processes; shared memory is counted in each of them.",
    "part",
)
PROCESSES = _gauge("querykeep_processes", "Processes of a part.", "part")
DISK_FREE = _gauge("querykeep_state_directory_free_bytes", "Free space of the file system of the state directory.")
DISK_SIZE = _gauge("querykeep_state_directory_size_bytes", "Size of the file system of the state directory.")
DISK_USED = _gauge("querykeep_state_directory_used_bytes", "Size of the files in the state directory.")
EVENTS_DROPPED = _counter(
    "querykeep_events_dropped",
    "Events that a process could not send, so they are missing from other counters and the history.",
)
