"""
The validated configuration: one frozen record per section, whose fields have units and defaults.

Fields have the names of the YAML settings, plus the unit if the setting accepts values such as `30s` or `1GiB`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, field

from runtimeconf.secret import Secret
from system.addresses import Address

#: Spice.ai's name for the connector of a dataset that is derived from another dataset.
LOCALPOD: Final = "localpod"

MIB = 1024 * 1024
GIB = 1024 * MIB

#: `full` replaces all rows; `append` adds newer rows.
RefreshMode = Literal["full", "append"]

#: How to interpret the values of a `time_column`.
TimeFormat = Literal["timestamp", "timestamptz", "date", "unix_seconds", "unix_millis"]

#: Which of two rows with the same primary key an append keeps.
OnConflict = Literal["upsert", "drop"]

#: Whether `/v1/ready` waits until each dataset is loaded, or only until loading it has been attempted.
ReadyState = Literal["on_load", "on_registered"]

#: How a node takes part in sharing snapshots. A `follower` never takes the lease, so it never loads from the sources.
SharingRole = Literal["publisher", "follower", "auto"]

#: What a key may do beyond authenticating.
Right = Literal["query", "refresh"]

#: Relative to the directory of the configuration file.
DEFAULT_STATE_DIR = ".runtime"

#: The fields whose values may be secret.
_HIDDEN = frozenset({"params", "headers", "sha256"})


class _Confidential(Struct, frozen=True, kw_only=True):
    """A section with values that may be secret. Its `repr` omits them."""

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if name not in _HIDDEN)
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class KeyLimits(Struct, frozen=True, kw_only=True):
    """`limits` of a named key. None means that the limit of the runtime applies."""

    requests_per_minute: int | None = None
    concurrent: int | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRule:
    """
    The part of one dataset that a key may see. The dataset name is in lower case.

    `row_filter` is an SQL condition; only rows for which it is true are visible. None means all rows. `columns` are the
    visible columns in this order; None means all columns. `masks` are pairs of a column and the SQL expression that
    replaces its value for the key, sorted by column. `line` and `yaml_path` locate the item in the configuration.
    """

    dataset: str
    row_filter: str | None = None
    columns: tuple[str, ...] | None = None
    masks: tuple[tuple[str, str], ...] = ()
    line: int = dataclass_field(default=0, compare=False)
    yaml_path: str = dataclass_field(default="", compare=False)

    @property
    def needs_copy(self) -> bool:
        """Whether a view that keeps the rule would reveal something about the values that it hides."""
        return self.row_filter is not None or bool(self.masks)


class Scope(Struct, frozen=True, kw_only=True):
    """
    The datasets and views that a key may see, by lower-case name, with rules for some of the datasets.

    Only keys with equal scopes share caches and plans.
    """

    relations: frozenset[str]
    rules: tuple[DatasetRule, ...] = ()


#: Startup warns about keys that expire within this time.
WARNING_PERIOD = timedelta(days=14)


class NamedKey(_Confidential, frozen=True, kw_only=True):
    """
    An item of `named_keys`. Either `key` or `sha256` (the digest of the key's bytes) is set.

    From `expires_at` on, the key is refused. `scope` is None if the key may see everything.
    """

    name: str
    key: Secret | None = None
    sha256: bytes | None = None
    expires_at: datetime | None = None
    scope: Scope | None = None
    rights: frozenset[Right] = frozenset({"query"})
    limits: KeyLimits = KeyLimits()


class AuthConfig(Struct, frozen=True, kw_only=True):
    """
    `runtime.auth.api-key`: the accepted keys with secrets resolved, in file order.

    There are none if authentication is off. `rules` are the dataset rules of all named keys. Startup checks them; they
    are not secret. `allows_anybody` is true if the configuration file explicitly turns authentication off. Only then
    may the runtime serve other machines without keys.
    """

    enabled: bool = False
    allows_anybody: bool = False
    keys: tuple[Secret, ...] = ()
    named_keys: tuple[NamedKey, ...] = ()
    rules: tuple[DatasetRule, ...] = ()


class HttpConfig(Struct, frozen=True, kw_only=True):
    """
    `runtime.http`. `allowed_hosts` is None if it is not configured (`sqlapi.hosts` then applies a default).

    Hosts are written as in a `Host` header: lower case, IPv6 addresses in brackets, and a port only if it must match.
    `*` matches every host. `trusted_proxies` are networks whose `X-Forwarded-For` header is trusted for the access logs
    of HTTP and Flight. Connections that are idle for `keep_alive_s` seconds are closed.
    """

    bind: Address = Address("127.0.0.1", 8090)
    max_body_bytes: int = 1 * MIB
    allowed_hosts: tuple[str, ...] | None = None
    trusted_proxies: tuple[str, ...] = ()
    keep_alive_s: float = 75.0


class FlightConfig(Struct, frozen=True, kw_only=True):
    """`runtime.flight`: the Arrow Flight SQL endpoint."""

    enabled: bool = True
    bind: Address = Address("127.0.0.1", 50051)
    max_message_bytes: int = 16 * MIB


class TlsConfig(Struct, frozen=True, kw_only=True):
    """
    `runtime.tls`, for HTTP and Flight.

    Both fields are absolute paths of PEM files, and are set if `enabled` is true.
    """

    enabled: bool = False
    certificate_file: Path | None = None
    key_file: Path | None = None


class QueryConfig(Struct, frozen=True, kw_only=True):
    """
    `runtime.query`: the limits on statements.

    `timeout_s` limits the wall-clock time of a statement, including streaming. `memory_limit_bytes` applies to each
    engine worker. Up to `workers` statements run at once, and up to `max_queued` wait, each for at most
    `queue_timeout_s`. Statements that take `slow_s` seconds or longer are logged as slow; None disables this. The
    runtime is not ready while the last check of a periodically refreshed dataset is more than `max_staleness_s` seconds
    old; None disables this. `datafusion_sql` adds DataFusion functions and syntax to DuckDB's SQL.
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


class ResultsCacheConfig(Struct, frozen=True, kw_only=True):
    """`runtime.results_cache`: `max_bytes` limits the memory of the cache in each web process."""

    enabled: bool = False
    max_bytes: int = 64 * MIB


class MetricsConfig(Struct, frozen=True, kw_only=True):
    """
    `runtime.metrics`: the metrics endpoint, which requires no key.

    `upstream_names` adds the metric names of Spice.ai.
    """

    enabled: bool = False
    bind: Address = Address("127.0.0.1", 9090)
    upstream_names: bool = False


class HistoryConfig(Struct, frozen=True, kw_only=True):
    """
    `runtime.history`: the log of the last `max_entries` statements, which includes their text if `sql` is true.

    `file` is the absolute path of a file to which they are appended as JSON lines; None disables it. Files are rotated
    at `file_max_bytes`, and at most `files` of them are kept.
    """

    enabled: bool = True
    sql: bool = False
    max_entries: int = 10_000
    file: Path | None = None
    file_max_bytes: int = 64 * MIB
    files: int = 5

    @property
    def keeps_sql(self) -> bool:
        """Whether the history includes the text of statements."""
        return self.enabled and self.sql


class McpConfig(Struct, frozen=True, kw_only=True):
    """`runtime.mcp`: whether the runtime serves the Model Context Protocol at `/v1/mcp`."""

    enabled: bool = False


class TracesConfig(_Confidential, frozen=True, kw_only=True):
    """
    `runtime.traces`: exports traces to the OpenTelemetry collector at the base URL `endpoint`.

    `headers` are sent with each export request; their secret references are resolved. `sample` is the fraction of
    traces without a parent that are exported, from 0 to 1.
    """

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict)
    sample: float = 1.0
    timeout_s: float = 5.0


class EngineConfig(_Confidential, frozen=True, kw_only=True):
    """
    `runtime.engine`: the engine at `address` that runs statements instead of DuckDB, through the plug-in `name`.

    `params` are the other settings of the plug-in, as JSON types with secret references resolved.
    """

    name: str
    address: Address
    params: Mapping[str, Any] = field(default_factory=dict)
    max_running: int = 8
    statement_timeout_s: float | None = None


class SnapshotsConfig(_Confidential, frozen=True, kw_only=True):
    """
    `runtime.snapshots`: the storage through which nodes share their snapshots.

    `location` is a URL such as `s3://bucket/prefix`. Its `store` declares the `params`, whose secret references are
    resolved. A node checks the storage every `poll_s` seconds.
    """

    location: str
    role: SharingRole
    params: Mapping[str, Any] = field(default_factory=dict)
    poll_s: float = 2.0

    @property
    def store(self) -> str:
        """The name of the snapshot store, in `runtimeconf.plugins`."""
        return self.location.partition(":")[0]


class IndexConfig(Struct, frozen=True, kw_only=True):
    """One entry of `datasets[].acceleration.indexes`. A unique index requires distinct values."""

    columns: tuple[str, ...]
    unique: bool = False


class Documentation(Struct, frozen=True, kw_only=True):
    """
    The description of a dataset or view for its users.

    `columns` maps columns to descriptions; `undescribed` are the columns that are listed without a description.
    """

    description: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    undescribed: tuple[str, ...] = ()


class AccelerationConfig(Struct, frozen=True, kw_only=True):
    """
    `datasets[].acceleration`. Periodic refresh requires `refresh_check_interval_s` or `refresh_cron`.

    With `refresh_jitter_enabled`, a periodic refresh is delayed by up to `refresh_jitter_max_s` seconds; None means a
    tenth of the interval. `primary_key` is also an index; its values are distinct and never null. A load omits rows
    that are older than `refresh_data_window_s` or `retention_period_s`. An append keeps the rows that it already has
    within `refresh_data_window_s`. Either limit can be None. `on_conflict` decides which of two rows with the same
    primary key an append keeps: the newer row or the row already served. With None the append fails.
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
        """Whether the dataset is refreshed periodically."""
        whens = (self.refresh_check_interval_s, self.retention_check_interval_s, self.refresh_cron)
        return self.enabled and any(when is not None for when in whens)


class ViewConfig(Struct, frozen=True, kw_only=True):
    """One entry of `views`: a SELECT over datasets and other views. `yaml_path` is a path such as `views[0].sql`."""

    name: str
    sql: str
    documentation: Documentation = Documentation()
    line: int = 0
    yaml_path: str = ""


class MaterializedView(Struct, frozen=True, kw_only=True):
    """
    The inputs of a view with `materialized: true`.

    `reads` are the lower-case names of the datasets that it reads, directly or through `views`. Each of the `views`
    reads only earlier ones. Both are empty until the configured SQL has been checked. `fingerprints` are those of
    `reads`; if there are none, it reads data built from any settings. A `localpod:` dataset `is_copy`.
    """

    sql: str
    reads: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    views: tuple[ViewConfig, ...] = ()
    is_copy: bool = False


class DatasetConfig(_Confidential, frozen=True, kw_only=True):
    """
    One entry of `datasets`, or a view with `materialized: true`, which becomes a dataset with the connector `view`.

    `from_` is the text of `from:`, `connector` the part before its colon, and `location` the rest, with a path made
    absolute. `params` are the values of the connector parameters, as JSON types with secret references resolved
    (`Params.of` turns them into the connector's dataclass). `time_column` is set if `refresh_mode` is `append` or if
    rows expire; otherwise only a refresh request with mode append uses it. `on_empty` decides what a refresh that
    returns no rows does if rows are being served. If `is_in_place` is true, a cluster reads the dataset from its
    source, and the runtime never loads it. `fingerprint` identifies the settings that the data must be built from. It
    is empty if any data of the dataset's name may be served. `line` counts from 1; `yaml_path` is a path such as
    `datasets[0]`.
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
    params: Mapping[str, Any] = field(default_factory=dict)
    acceleration: AccelerationConfig = AccelerationConfig(enabled=False)
    view: MaterializedView | None = None
    is_in_place: bool = False
    fingerprint: str = ""
    line: int = 0
    yaml_path: str = ""


class RuntimeConfig(Struct, frozen=True, kw_only=True):
    """
    The whole configuration. All paths are absolute.

    `dependencies` are the files of other Spicepods, which declare some of the datasets and views. `generation` is the
    number of the configuration within a runtime and increases with each reload. `warnings` are one-line sentences about
    settings that work but are unsafe. They never contain values below `auth` or `secrets`.
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
        """Return the file that contains the setting at *yaml_path*."""
        below = re.match(r"dependencies\[(\d+)\]\.", yaml_path)
        return self.dependencies[int(below[1])] if below else self.file

    @property
    def loaded_datasets(self) -> tuple[DatasetConfig, ...]:
        """The datasets that the runtime loads and stores."""
        return tuple(dataset for dataset in self.datasets if not dataset.is_in_place)

    @property
    def reads_sources(self) -> bool:
        """Whether this node may load data from the sources."""
        return self.snapshots is None or self.snapshots.role != "follower"

    @property
    def is_watched(self) -> bool:
        """Whether the processes report their events."""
        return self.metrics.enabled or self.history.enabled

    @property
    def engine_dir(self) -> Path:
        """
        The directory of the engine's sockets.

        It depends on the generation, because two engines run during a reload.
        """
        return self.state_dir if self.generation == 1 else self.state_dir / f"e{self.generation}"
