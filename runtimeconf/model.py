"""
The configuration as values: one frozen dataclass for each section, each field with its unit and default.

Fields are named as in the YAML, plus the unit where the YAML accepts `30s` or `1GiB`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from runtimeconf.secret import Secret
from system.addresses import Address

MIB = 1024 * 1024
GIB = 1024 * MIB

#: Whether a refresh replaces all rows or adds the newer ones.
RefreshMode = Literal["full", "append"]

#: How to read the values of a `time_column` that holds numbers.
TimeFormat = Literal["timestamp", "timestamptz", "date", "unix_seconds", "unix_millis"]

#: Which of two rows with the same primary key an append keeps.
OnConflict = Literal["upsert", "drop"]

#: Whether `/v1/ready` waits until datasets are loaded, or until they were tried.
ReadyState = Literal["on_load", "on_registered"]

#: Which nodes load data from the sources: those that may hold the lease, or none but the others.
SharingRole = Literal["publisher", "follower", "auto"]

#: What a key may do beyond authenticating.
Right = Literal["query", "refresh"]

#: Relative to the directory of the YAML.
DEFAULT_STATE_DIR = ".runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """`limits` of a named key. None leaves the limit of the runtime in place."""

    requests_per_minute: int | None = None
    concurrent: int | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRule:
    """
    What a key may see of one dataset, by its name in lower case.

    `row_filter` is SQL that is true for the rows that exist for the key; None for all rows. `columns` are the columns
    that exist for it, in this order; None for all. `masks` are pairs of a column and the SQL of the value that the key
    gets instead, by column. `line` and `yaml_path` are those of the item.
    """

    dataset: str
    row_filter: str | None = None
    columns: tuple[str, ...] | None = None
    masks: tuple[tuple[str, str], ...] = ()
    line: int = field(default=0, compare=False)
    yaml_path: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """
    What a key may see: datasets and views, by names in lower case, and the rules of some datasets, by their names.

    Keys with equal scopes share caches and plans; others never do.
    """

    relations: frozenset[str]
    rules: tuple[DatasetRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedKey:
    """
    An item of `named_keys`. Either `key` or `sha256`, the digest of its bytes, is set.

    The key is refused from `expires_at` on. `scope` is None for a key that may see everything.
    """

    name: str
    key: Secret | None = None
    sha256: bytes | None = field(default=None, repr=False)
    expires_at: datetime | None = None
    scope: Scope | None = None
    rights: frozenset[Right] = frozenset({"query"})
    limits: KeyLimits = KeyLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
    """
    `runtime.auth.api-key`: the accepted keys, resolved, in the order of the YAML; none when off.

    `rules` are those of all named keys, for the checks of a start: they are no secret. `allows_anybody` is true if the
    YAML itself turns authentication off. Only then may other machines be served.
    """

    enabled: bool = False
    allows_anybody: bool = False
    keys: tuple[Secret, ...] = ()
    named_keys: tuple[NamedKey, ...] = ()
    rules: tuple[DatasetRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """
    `runtime.http`: `allowed_hosts` is None if the YAML leaves it out (`sqlapi.hosts` then applies a default).

    Hosts have the form of a `Host` header: lower case, an IPv6 address in brackets, a port only if it must match. `*`
    matches every host. `trusted_proxies` are networks whose `X-Forwarded-For` is believed for the logs, Flight's too.
    An idle connection is closed after `keep_alive_s`.
    """

    bind: Address = Address("127.0.0.1", 8090)
    max_body_bytes: int = 1 * MIB
    allowed_hosts: tuple[str, ...] | None = None
    trusted_proxies: tuple[str, ...] = ()
    keep_alive_s: float = 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightConfig:
    """`runtime.flight`: the Arrow Flight SQL endpoint."""

    enabled: bool = True
    bind: Address = Address("127.0.0.1", 50051)
    max_message_bytes: int = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """`runtime.tls`, for HTTP and Flight. Both paths are absolute, of PEM files, and set if `enabled`."""

    enabled: bool = False
    certificate_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConfig:
    """
    `runtime.query`: limits on statements.

    `timeout_s` limits the wall-clock time of a statement, streaming included; `memory_limit_bytes` applies to each
    engine worker. `workers` statements run at once; `max_queued` wait, each for at most `queue_timeout_s`.
    The log tells each statement that took `slow_s` or longer; None: it does not. A dataset that is refreshed
    periodically, and was last checked more than `max_staleness_s` ago, makes the runtime unready; None: it does not.
    `datafusion_sql` adds functions and syntax of DataFusion to DuckDB's.
    """

    timeout_s: float = 30.0
    memory_limit_bytes: int = 1 * GIB
    workers: int = 4
    max_queued: int = 64
    queue_timeout_s: float = 5.0
    temp_directory_limit_bytes: int = 4 * GIB
    slow_s: float | None = None
    max_staleness_s: float | None = None
    datafusion_sql: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsCacheConfig:
    """`runtime.results_cache`: `max_bytes` limits the memory of the cache in each web process."""

    enabled: bool = False
    max_bytes: int = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """`runtime.metrics`: the metrics endpoint, without a key. `upstream_names` adds the names that Spice.ai uses."""

    enabled: bool = False
    bind: Address = Address("127.0.0.1", 9090)
    upstream_names: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryConfig:
    """
    `runtime.history`: what is remembered of the last `max_entries` statements; with `sql` their text too.

    `file` is an absolute path to which they are appended as JSON lines; None for none. A file has up to
    `file_max_bytes`, and there are up to `files` of them.
    """

    enabled: bool = True
    sql: bool = False
    max_entries: int = 10_000
    file: Path | None = None
    file_max_bytes: int = 64 * MIB
    files: int = 5

    @property
    def keeps_sql(self) -> bool:
        """Whether the text of statements is remembered."""
        return self.enabled and self.sql


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConfig:
    """`runtime.mcp`: whether the runtime serves the Model Context Protocol at `/v1/mcp`."""

    enabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesConfig:
    """
    `runtime.traces`: the OpenTelemetry collector at the base URL `endpoint`.

    `headers` go with each request to it, with secret references resolved. `sample` is the share of traces without a
    parent that are exported, from 0 to 1.
    """

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sample: float = 1.0
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """
    `runtime.engine`: the engine at `address` that runs the statements in place of DuckDB, by the plug-in `name`.

    `params` are what the plug-in knows of it besides, in JSON types and with secret references resolved.
    """

    name: str
    address: Address
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    max_running: int = 8
    statement_timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsConfig:
    """
    `runtime.snapshots`: the storage through which nodes share their snapshots.

    `location` is like `s3://bucket/prefix`; its `store` declares the `params`, whose secret references are resolved. A
    node looks at the storage every `poll_s`.
    """

    location: str
    role: SharingRole
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    poll_s: float = 2.0

    @property
    def store(self) -> str:
        """The name of the snapshot store, in `runtimeconf.plugins`."""
        return self.location.partition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """One entry of `datasets[].acceleration.indexes`. Rows must have distinct values in a *unique* index."""

    columns: tuple[str, ...]
    unique: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Documentation:
    """
    What the YAML tells the users of a dataset or view about it.

    `columns` holds descriptions by column; `undescribed` are the columns that are listed without one.
    """

    description: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    undescribed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerationConfig:
    """
    `datasets[].acceleration`: without `refresh_check_interval_s` and `refresh_cron` there is no periodic refresh.

    With `refresh_jitter_enabled` a periodic refresh starts up to `refresh_jitter_max_s` seconds later, None for a tenth
    of the interval. `primary_key` has an index too: its values are distinct and never null. A load leaves out the rows
    whose time is more than `refresh_data_window_s` or `retention_period_s` ago; an append keeps rows that it has within
    the former. Each is None if there is no such limit. `on_conflict` says which of two rows with the same primary key
    an append keeps: the newer one, or the one served; None if it fails.
    """

    enabled: bool = True
    refresh_mode: RefreshMode = "full"
    refresh_check_interval_s: float | None = None
    refresh_cron: str | None = None
    refresh_jitter_enabled: bool = False
    refresh_jitter_max_s: float | None = None
    refresh_timeout_s: float = 600.0
    refresh_retry_enabled: bool = True
    refresh_retry_max_attempts: int | None = None
    refresh_sql: str | None = None
    refresh_data_window_s: float | None = None
    retention_period_s: float | None = None
    retention_check_interval_s: float | None = None
    primary_key: tuple[str, ...] = ()
    indexes: tuple[IndexConfig, ...] = ()
    on_conflict: OnConflict | None = None

    @property
    def is_periodic(self) -> bool:
        """Whether the dataset is refreshed without being asked."""
        whens = (self.refresh_check_interval_s, self.retention_check_interval_s, self.refresh_cron)
        return self.enabled and any(when is not None for when in whens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewConfig:
    """One entry of `views`: a SELECT over datasets and other views. `yaml_path` is like `views[0].sql`."""

    name: str
    sql: str
    documentation: Documentation = Documentation()
    line: int = 0
    yaml_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializedView:
    """
    What a view with `materialized: true` is made from.

    `reads` are the datasets that it reads, directly or by `views`, in lower case; `views` are in an order in which each
    reads only earlier ones. Both are empty until the SQL of the YAML has been checked.
    """

    sql: str
    reads: tuple[str, ...] = ()
    views: tuple[ViewConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """
    One entry of `datasets`, or a view with `materialized: true`, which is a dataset with the connector `view`.

    `from_` is the text of `from:`; `connector` is the part before its colon and `location` the rest, a path made
    absolute; `params` are the values of those of the connector, in JSON types and with secret references resolved
    (`Params.of` makes its dataclass of them). `time_column` is set if `refresh_mode` is `append`, or if rows expire;
    otherwise only a refresh request with mode append uses it. `on_empty` says what a refresh without rows does if rows
    are served. A dataset that `is_in_place` is read by a cluster and never loaded. `line` counts from 1 in the YAML;
    `yaml_path` is like `datasets[0]`.
    """

    name: str
    from_: str
    connector: str = "file"
    location: str = ""
    on_schema_change: Literal["fail", "accept"] = "fail"
    on_empty: Literal["accept", "fail"] = "accept"
    required_for_ready: bool = True
    time_column: str | None = None
    time_format: TimeFormat | None = None
    documentation: Documentation = Documentation()
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    acceleration: AccelerationConfig = AccelerationConfig(enabled=False)
    view: MaterializedView | None = None
    is_in_place: bool = False
    line: int = 0
    yaml_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """
    The whole configuration. All paths are absolute.

    `dependencies` are the files of other Spicepods that declare some of the datasets and views.
    `generation` counts the configurations of a runtime: each reload brings the next.
    `warnings` are one-line sentences about settings that work but are unsafe; they never hold a value below `auth` or
    `secrets`.
    """

    file: Path
    state_dir: Path
    dependencies: tuple[Path, ...] = ()
    name: str | None = None
    auth: AuthConfig = AuthConfig()
    http: HttpConfig = HttpConfig()
    flight: FlightConfig = FlightConfig()
    tls: TlsConfig = TlsConfig()
    query: QueryConfig = QueryConfig()
    results_cache: ResultsCacheConfig = ResultsCacheConfig()
    metrics: MetricsConfig = MetricsConfig()
    history: HistoryConfig = HistoryConfig()
    mcp: McpConfig = McpConfig()
    traces: TracesConfig | None = None
    engine: EngineConfig | None = None
    snapshots: SnapshotsConfig | None = None
    ready_state: ReadyState = "on_load"
    shutdown_timeout_s: float = 30.0
    compatibility: Literal["2.0", "1.10"] = "2.0"
    datasets: tuple[DatasetConfig, ...] = ()
    views: tuple[ViewConfig, ...] = ()
    warnings: tuple[str, ...] = ()
    generation: int = 1

    def file_of(self, yaml_path: str) -> Path:
        """Return the file in which the setting at *yaml_path* is."""
        below = re.match(r"dependencies\[(\d+)\]\.", yaml_path)
        return self.dependencies[int(below[1])] if below else self.file

    @property
    def loaded_datasets(self) -> tuple[DatasetConfig, ...]:
        """The datasets whose data the runtime loads and keeps."""
        return tuple(dataset for dataset in self.datasets if not dataset.is_in_place)

    @property
    def reads_sources(self) -> bool:
        """Whether this node may load data from the sources."""
        return self.snapshots is None or self.snapshots.role != "follower"

    @property
    def is_watched(self) -> bool:
        """Whether the processes tell what happens in them."""
        return self.metrics.enabled or self.history.enabled

    @property
    def engine_dir(self) -> Path:
        """The directory of the engine's sockets. During a reload two engines run."""
        return self.state_dir if self.generation == 1 else self.state_dir / f"e{self.generation}"
