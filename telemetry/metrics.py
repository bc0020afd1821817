"""
Every metric of the page, in its order: name, type, labels, meaning. `docs/monitoring.md` has the same table.

Labels have few values, which callers cannot add to: names in the YAML, routes, and words of this program. A counter is
named here without the suffix `_total`, which its samples have.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram", "info", "unknown"]


@dataclass(frozen=True, slots=True, eq=False)  # identified by identity: it is the key of each look-up
class Metric:
    """A family of series. `help` is one sentence."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def sample(self) -> str:
        """The name of its samples, but for the suffixes of a histogram."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


BUILD = Metric("querykeep_build", "info", "The versions of this runtime.", ("version", "python", "duckdb"))
CONFIG = Metric(
    "querykeep_config",
    "info",
    "The configuration in force: its generation (each reload brings the next), and what is on.",
    ("generation", "authentication", "flight", "tls", "results_cache"),
)
START_TIME = Metric(
    "querykeep_start_time_seconds", "gauge", "When the counters began at 0: the start of the part that counts."
)
HTTP_REQUESTS = Metric(
    "querykeep_http_requests",
    "counter",
    "HTTP requests that were answered, by route and class of the status (2xx).",
    ("route", "status"),
)
HTTP_REQUEST_SECONDS = Metric(
    "querykeep_http_request_seconds", "histogram", "Time from an HTTP request to the end of its answer.", ("route",)
)
STATEMENTS = Metric(
    "querykeep_statements",
    "counter",
    "Statements that have ended, by protocol and verdict: ok, or the code of the error.",
    ("protocol", "code"),
)
STATEMENT_SECONDS = Metric(
    "querykeep_statement_seconds",
    "histogram",
    "Time of statements by phase: queue, gate, run, encode, send, and total. A statement that did not begin to run "
    "counts in total only, and in queue if it waited.",
    ("phase",),
)
KEY_STATEMENTS = Metric(
    "querykeep_key_statements",
    "counter",
    "Statements that have ended, by key (its name, or the fingerprint of a key without one) and outcome: ok or error. "
    "A caller that left early is no error.",
    ("key", "outcome"),
)
RESULT_ROWS = Metric("querykeep_result_rows", "counter", "Rows of results, by protocol.", ("protocol",))
RESULT_BYTES = Metric("querykeep_result_bytes", "counter", "Encoded bytes of results, by protocol.", ("protocol",))
CACHE_LOOKUPS = Metric(
    "querykeep_results_cache_lookups",
    "counter",
    "Statements that could use the results cache: hit, miss, or bypass if the caller did not want it.",
    ("result",),
)
STATEMENTS_RUNNING = Metric("querykeep_statements_running", "gauge", "Statements that have an execution slot.")
STATEMENTS_QUEUED = Metric("querykeep_statements_queued", "gauge", "Statements that wait for an execution slot.")
QUEUE_LIMIT = Metric("querykeep_statements_queue_limit", "gauge", "Statements that may wait: runtime.query.max_queued.")
WORKERS = Metric("querykeep_workers", "gauge", "Engine workers by state: busy, idle, or missing.", ("state",))
WORKERS_LOST = Metric(
    "querykeep_workers_lost",
    "counter",
    "Engine workers that ended early, by cause: time, memory, request, stuck (killed by the runtime or the system for "
    "that), signal (killed from elsewhere, or crashed), exit (ended with an error).",
    ("cause",),
)
AUTH_FAILURES = Metric(
    "querykeep_auth_failures",
    "counter",
    "Requests and calls that were refused because of their key, by reason.",
    ("reason",),
)
DATASET_STATE = Metric(
    "querykeep_dataset_state",
    "gauge",
    "1 for the state that the dataset is in, as in GET /v1/datasets: Initializing, Ready, Refreshing, Error, Disabled.",
    ("dataset", "state"),
)
DATASET_AGE = Metric(
    "querykeep_dataset_age_seconds",
    "gauge",
    "Time since a refresh of the dataset last succeeded, even if its source was unchanged.",
    ("dataset",),
)
DATASET_INTERVAL = Metric(
    "querykeep_dataset_refresh_interval_seconds",
    "gauge",
    "refresh_check_interval of the dataset; missing without one.",
    ("dataset",),
)
DATASET_ROWS = Metric("querykeep_dataset_rows", "gauge", "Rows of the dataset that are served.", ("dataset",))
DATASET_BYTES = Metric("querykeep_dataset_bytes", "gauge", "Size of the dataset's snapshot.", ("dataset",))
DATASET_REFRESHES = Metric(
    "querykeep_dataset_refreshes",
    "counter",
    "Refreshes that have ended, by dataset and outcome: succeeded, unchanged, failed.",
    ("dataset", "outcome"),
)
DATASET_EMPTIED = Metric(
    "querykeep_dataset_emptied",
    "counter",
    "Refreshes that have left a dataset that had rows without any.",
    ("dataset",),
)
REFRESH_SECONDS = Metric(
    "querykeep_dataset_refresh_seconds", "histogram", "Time of refreshes that loaded data, of all datasets."
)
NODE_PUBLISHES = Metric(
    "querykeep_node_publishes",
    "gauge",
    "Whether this node publishes the snapshots that nodes share, 1 or 0; missing without runtime.snapshots. It is 0 as "
    "soon as another node may publish.",
)
SHARED_STORAGE_AGE = Metric(
    "querykeep_shared_storage_age_seconds",
    "gauge",
    "Time since the shared storage last answered this node; missing if it never did.",
)
KEY_EXPIRES = Metric(
    "querykeep_key_expires_timestamp_seconds", "gauge", "When the key expires; missing if it does not.", ("key",)
)
CPU_SECONDS = Metric(
    "querykeep_process_cpu_seconds",
    "counter",
    "Processor time of the processes of a part, user and system.",
    ("part",),
)
MEMORY_BYTES = Metric(
    "querykeep_process_resident_memory_bytes",
    "gauge",
    "Resident memory of the processes of a part; what several of them share counts in each.",
    ("part",),
)
PROCESSES = Metric("querykeep_processes", "gauge", "Processes of a part.", ("part",))
DISK_FREE = Metric(
    "querykeep_state_directory_free_bytes", "gauge", "Free space of the file system of the state directory."
)
DISK_SIZE = Metric("querykeep_state_directory_size_bytes", "gauge", "Size of the file system of the state directory.")
DISK_USED = Metric("querykeep_state_directory_used_bytes", "gauge", "Size of the files in the state directory.")
EVENTS_DROPPED = Metric(
    "querykeep_events_dropped",
    "counter",
    "Events that a process could not send, so that other counters and the history lack them.",
)

METRICS = tuple(metric for metric in list(globals().values()) if isinstance(metric, Metric))
