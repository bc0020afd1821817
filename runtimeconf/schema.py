"""
The schema of the configuration file: every setting, with the field that reads it. Defaults are in `runtimeconf.model`.

Start reading at `ROOT`, at the end. Settings are read in order, so `secrets` precedes everything that may refer to a
secret.
"""

import os
import ssl
from collections.abc import Iterable
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from runtimeconf import exposure
from runtimeconf.addresses import ADDRESS, ALLOWED_HOST, NETWORK
from runtimeconf.api_keys import API_KEY
from runtimeconf.caching import CACHING, RESULTS_CACHE
from runtimeconf.dataset_schema import DATASET, IDENTIFIER, VIEW
from runtimeconf.dependencies import DEPENDENCIES, NOT_HERE, Declared
from runtimeconf.engine_schema import ENGINE, with_engine_limits
from runtimeconf.fields import (
    BooleanField,
    ChoiceField,
    DurationField,
    IgnoredField,
    IntegerField,
    InvalidValueError,
    ListField,
    PathField,
    Section,
    Setting,
    SizeField,
    TextField,
    into,
)
from runtimeconf.model import (
    DEFAULT_STATE_DIR,
    AuthConfig,
    DatasetConfig,
    FlightConfig,
    HistoryConfig,
    HttpConfig,
    McpConfig,
    MetricsConfig,
    QueryConfig,
    RuntimeConfig,
    TlsConfig,
    ViewConfig,
)
from runtimeconf.named_keys import check_datasets
from runtimeconf.network import pem_problem
from runtimeconf.snapshots import SNAPSHOTS
from runtimeconf.store_schema import SECRETS
from runtimeconf.traces import TRACES
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Mapping, Node, Scalar, Sequence

#: The longest socket name in the state directory, including the slash, and the longest path of a Unix socket.
SOCKET_NAME_BYTES = 20
MAX_SOCKET_PATH_BYTES = 107

#: Characters that DuckDB misreads in a database path: it would look for the file or its log elsewhere.
_MISREAD_BY_DUCKDB = frozenset("?\\")

_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})  # noqa: S104 (compared with, not bound)


# --- runtime ----------------------------------------------------------------------------------------------------------


def _pair_problem(certificate_file: Path, key_file: Path) -> str:
    """Return in a few words why the readable files cannot be used together; an empty string if they can."""

    def no_password() -> str:
        # Without this callback, OpenSSL prompts on the terminal, and startup in the background hangs.
        raise InvalidValueError("is encrypted: use a key without a passphrase that only this user can read")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate_file, key_file, password=no_password)
    except InvalidValueError as exc:
        return str(exc)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            return "does not match the certificate"
        return "and the certificate cannot be loaded: one of them is not valid PEM"
    return ""


def _with_found(problem: str, value: Node | None, path: YamlPath) -> str:
    """Return *problem* with the path of the file, if the path may be shown."""
    return f"{problem} ({path.found(value)})" if isinstance(value, Scalar) and value.may_be_shown else problem


def _build_tls(values: dict[str, Any], node: Mapping, path: YamlPath) -> TlsConfig:
    directory = path.validation.directory
    files = {name: directory / values[name] for name in ("certificate_file", "key_file") if name in values}
    tls = TlsConfig(**(values | files))
    if not tls.enabled:
        return tls
    named = {entry.name for entry in node.entries}
    problems = {name: pem_problem(file) for name, file in files.items()}
    for name in ("certificate_file", "key_file"):
        if name not in named:
            path.fault(node.line, f"lacks the field {name}, which TLS requires")
        elif problems.get(name):
            path.field(name).fault(node.line_of(name), _with_found(problems[name], node.get(name), path))
    if tls.certificate_file is not None and tls.key_file is not None and not any(problems.values()):
        problem = _pair_problem(tls.certificate_file, tls.key_file)
        if problem:
            path.field("key_file").fault(node.line_of("key_file"), problem)
    return tls


def _build_history(values: dict[str, Any], _node: Mapping, path: YamlPath) -> HistoryConfig:
    if "file" in values:
        values["file"] = Path(os.path.normpath(path.validation.directory / values["file"]))
    return HistoryConfig(**values)


def _never(what: str) -> Section[bool]:
    """Return the section of an unsupported feature, which can only be turned off."""
    return Section[bool](
        lambda _values, _node, _path: False,
        Setting(
            "enabled", ChoiceField("false"), is_required=True, note=f"It is always off because the runtime {what}."
        ),
    )


def _translate(values: dict[str, Any], node: Mapping, path: YamlPath) -> None:
    """Convert settings with Spice.ai names to the settings that they mean here."""
    for name in ("telemetry", "cors"):
        values.pop(name, None)
    if values.get("ready_state") == "on_registration":
        path.field("ready_state").note(
            node.line_of("ready_state"), "It is the same as on_registered: ready once every dataset has been tried."
        )
        values["ready_state"] = "on_registered"
    if (caching := values.pop("caching", None)) is not None:
        if "results_cache" in values:
            path.field("caching").fault(node.line_of("caching"), "and results_cache are the same setting: remove one")
        values["results_cache"] = caching


def _build_runtime(values: dict[str, Any], node: Mapping, path: YamlPath) -> dict[str, Any]:
    _translate(values, node, path)
    http: HttpConfig = values.get("http", HttpConfig())
    flight: FlightConfig = values.get("flight", FlightConfig())
    metrics: MetricsConfig = values.get("metrics", MetricsConfig())
    used = {"http": http.bind} | ({"flight": flight.bind} if flight.enabled else {})
    if metrics.enabled:
        used["metrics"] = metrics.bind
        if metrics.bind.is_open:
            message = (
                "listens on {} without authentication: anyone who can reach it can read the names of datasets and keys"
            )
            path.field("metrics").field("bind").warn(node.line_of("metrics"), message.format(metrics.bind))
    for (former, taken), (name, address) in combinations(used.items(), 2):
        hosts = {taken.host, address.host}
        if taken.port == address.port != 0 and (len(hosts) == 1 or hosts & _WILDCARD_HOSTS):
            message = f"uses the same port as runtime.{former}.bind ({taken}): each listener needs its own"
            path.field(name).field("bind").fault(node.line_of(name), message)
    if "engine" in values:
        values["query"] = with_engine_limits(values.get("query", QueryConfig()), values["engine"], node, path)
        if "results_cache" in values and values["results_cache"].enabled:
            message = "has no effect with runtime.engine: the runtime does not know when files change"
            path.field("results_cache").warn(node.line_of("results_cache"), message)
    _check_open(values.get("auth", AuthConfig()), http, flight, node, path)
    return values


def _check_open(auth: AuthConfig, http: HttpConfig, flight: FlightConfig, node: Mapping, path: YamlPath) -> None:
    """Refuse listeners that other machines can reach without a key; only warn if the configuration allows them."""
    for name, address, is_on in (("http", http.bind, True), ("flight", flight.bind, flight.enabled)):
        if auth.enabled or not (is_on and address.is_open):
            continue
        where = path.field(name).field("bind")
        if auth.allows_anybody:
            where.warn(node.line_of(name), exposure.warning(address))
        elif node.get("auth") is None:  # An invalid block already has an error.
            where.fault(node.line_of(name), exposure.refusal(address))


RUNTIME = Section[dict[str, Any]](
    _build_runtime,
    Setting(
        "auth",
        Section[AuthConfig](
            lambda values, _node, _path: values["api-key"],
            Setting("api-key", API_KEY, alias="api_key", is_required=True),
            may_be_empty=False,
        ),
    ),
    Setting(
        "http",
        Section(
            into(HttpConfig),
            Setting("bind", ADDRESS),
            Setting("max_body_bytes", SizeField("1KiB", "1GiB")),
            Setting("allowed_hosts", ListField(ALLOWED_HOST, minimum=1)),
            Setting("trusted_proxies", ListField(NETWORK)),
            Setting("keep_alive", DurationField("1s", "1h"), attribute="keep_alive_s"),
        ),
    ),
    Setting(
        "flight",
        Section(
            into(FlightConfig),
            Setting("enabled", BooleanField()),
            Setting("bind", ADDRESS),
            Setting("max_message_bytes", SizeField("1KiB", "1GiB"), alias="max_message_size"),
        ),
    ),
    Setting(
        "tls",
        Section(
            _build_tls,
            Setting("enabled", BooleanField(), is_required=True),
            Setting("certificate_file", PathField("the path of a PEM file with the certificate chain")),
            Setting("key_file", PathField("the path of a PEM file with the private key")),
            may_be_empty=False,
        ),
    ),
    Setting(
        "query",
        Section(
            into(QueryConfig),
            Setting("timeout", DurationField("1ms", "1d"), attribute="timeout_s"),
            Setting("memory_limit", SizeField("16MiB", "16TiB"), attribute="memory_limit_bytes"),
            Setting("workers", IntegerField(1, 64)),
            Setting("max_queued", IntegerField(0, 10_000)),
            Setting("queue_timeout", DurationField("1ms", "1h"), attribute="queue_timeout_s"),
            Setting("temp_directory_limit", SizeField("0B", "1024TiB"), attribute="temp_directory_limit_bytes"),
            Setting("slow", DurationField("1ms", "1d"), attribute="slow_s"),
            Setting("max_staleness", DurationField("1s", "365d"), attribute="max_staleness_s"),
            Setting("datafusion_sql", BooleanField()),
        ),
    ),
    Setting("results_cache", RESULTS_CACHE),
    Setting("caching", CACHING, note="It is runtime.results_cache: sql_results.max_size is max_bytes there."),
    Setting(
        "metrics",
        Section(
            into(MetricsConfig),
            Setting("enabled", BooleanField(), is_required=True),
            Setting("bind", ADDRESS),
            Setting("upstream_names", BooleanField()),
            may_be_empty=False,
        ),
    ),
    Setting(
        "history",
        Section(
            _build_history,
            Setting("enabled", BooleanField()),
            Setting("sql", BooleanField()),
            Setting("max_entries", IntegerField(1, 1_000_000)),
            Setting("file", PathField("the path of a JSON Lines file")),
            Setting("file_max_bytes", SizeField("1MiB", "1TiB")),
            Setting("files", IntegerField(1, 1000)),
        ),
    ),
    Setting(
        "mcp",
        Section(
            into(McpConfig),
            Setting("enabled", BooleanField(), is_required=True),
            unavailable={"allowed_hosts": "Use runtime.http.allowed_hosts, which applies to every route."},
            may_be_empty=False,
        ),
    ),
    Setting("traces", TRACES),
    Setting("engine", ENGINE),
    Setting("snapshots", SNAPSHOTS),
    Setting("telemetry", _never("does not send data to anyone")),
    Setting("cors", _never("sends no CORS headers")),
    Setting("ready_state", ChoiceField("on_load", "on_registered", "on_registration")),
    Setting("shutdown_timeout", DurationField("1ms", "1h"), attribute="shutdown_timeout_s"),
    Setting("compatibility", ChoiceField("2.0", "1.10")),
    Setting("state_dir", PathField("the path of a directory used only by the runtime")),
    unavailable={
        "authorization": "Set datasets and rights for each key in runtime.auth.api-key.named_keys.",
        "dataset_load_parallelism": "Remove it: at most two datasets are loaded at once.",
        "functions": "Remove it: only the engine's own SQL functions are supported.",
        "memory_limit": "Use runtime.query.memory_limit, which applies to each of runtime.query.workers.",
        "output_level": "Remove it: the log always has one line per request and statement.",
        "params": "Remove it: it configures Spice's engine. Use runtime.query to configure this one.",
        "scheduler": "Remove it: use runtime.snapshots to share data between nodes.",
        "task_history": "Use runtime.history; GET /v1/sql/history shows it.",
        "temp_directory": "Remove it: temporary files are stored in runtime.state_dir.",
        "tracing": "Use runtime.traces.",
    },
)

# --- the root ---------------------------------------------------------------------------------------------------------


def _build_root(values: dict[str, Any], node: Mapping, path: YamlPath) -> RuntimeConfig:
    dependencies: tuple[Declared, ...] = values.pop("dependencies", ())
    _refuse_duplicate_names([(node, path), *((one.root, one.path) for one in dependencies)])
    listed = node.get("dependencies")
    if not isinstance(listed, Sequence) or len(dependencies) == len(listed.items):  # Otherwise some names are unknown.
        in_cluster = values.get("runtime", {}).get("engine") is not None
        check_datasets(node, [one.root for one in dependencies], path, in_cluster=in_cluster)
    for name in ("version", "kind", "secrets", "metadata"):
        values.pop(name, None)  # validated, but not part of the result
    runtime: dict[str, Any] = values.pop("runtime", {})
    state_dir = _state_dir(runtime.pop("state_dir", DEFAULT_STATE_DIR), node, path)
    # The data of a materialized view is in the state directory.
    declared = [*values.pop("datasets", ()), *values.pop("views", ())]
    declared += [table for one in dependencies for table in one.tables]
    if (query := runtime.get("query")) is not None and query.max_staleness_s is not None:
        datasets = [one for one in declared if isinstance(one, DatasetConfig)]
        _check_staleness(query.max_staleness_s, datasets, node, path)
    return RuntimeConfig(
        file=path.validation.file,
        state_dir=state_dir,
        dependencies=tuple(one.path.validation.file for one in dependencies),
        datasets=tuple(
            one if one.view is None else replace(one, location=str(state_dir))
            for one in declared
            if isinstance(one, DatasetConfig)
        ),
        views=tuple(one for one in declared if isinstance(one, ViewConfig)),
        **values,
        **runtime,
    )


def _check_staleness(limit_s: float, datasets: Iterable[DatasetConfig], root: Mapping, path: YamlPath) -> None:
    where, runtime = path.field("runtime").field("query").field("max_staleness"), root.get("runtime")
    line = runtime.line_of("query") if isinstance(runtime, Mapping) else 0
    refreshed = [one.acceleration for one in datasets if one.acceleration.is_periodic]
    if not refreshed:
        where.warn(line, "has no effect unless a dataset has a refresh_check_interval or a refresh_cron")
    elif max(one.refresh_check_interval_s or 0.0 for one in refreshed) >= limit_s:
        where.warn(
            line, "is not longer than every refresh_check_interval, so the runtime will not be ready between refreshes"
        )


def _refuse_duplicate_names(roots: Iterable[tuple[Mapping, YamlPath]]) -> None:
    """Record duplicate names. Datasets and views of all files share one case-insensitive namespace."""
    first_of: dict[str, tuple[str, int]] = {}
    for (root, path), section in product(roots, ("datasets", "views")):
        listed = root.get(section)
        for index, item in enumerate(listed.items if isinstance(listed, Sequence) else ()):
            name = item.get("name") if isinstance(item, Mapping) else None
            if not isinstance(name, Scalar) or IDENTIFIER.fullmatch(name.text) is None:
                continue  # already recorded as an error
            where = path.field(section).item(index).field("name")
            if (first := first_of.get(name.text.lower())) is not None:
                message = f"the name {name.text} is used twice: by {first[0]} on line {first[1]}, and here on line"
                where.fault(name.line, f"{message} {name.line}")
            else:
                first_of[name.text.lower()] = (path.field(section).item(index).text, name.line)


def state_dir_in(directory: Path, text: str) -> Path:
    """Return the absolute path of the state directory *text*, which is relative to *directory*."""
    return Path(os.path.normpath(directory / text))


def _state_dir(text: str, root: Mapping, path: YamlPath) -> Path:
    """
    Return the absolute state directory.

    It must not contain the configuration file, because the runtime owns all of it.
    """
    state_dir = state_dir_in(path.validation.directory, text)
    where = path.field("runtime").field("state_dir")
    runtime = root.get("runtime")
    line = runtime.line_of("state_dir") if isinstance(runtime, Mapping) else 0
    length = len(os.fsencode(state_dir)) + SOCKET_NAME_BYTES
    if length > MAX_SOCKET_PATH_BYTES:
        limit = MAX_SOCKET_PATH_BYTES - SOCKET_NAME_BYTES
        message = f"is too long for Unix sockets: its absolute path may have {limit} bytes"
        where.fault(line, f"{message}, and has {length - SOCKET_NAME_BYTES}")
    if _MISREAD_BY_DUCKDB.intersection(str(state_dir)):
        where.fault(line, "its absolute path must not contain ? or \\, which the engine interprets")
    if any("\ud800" <= character <= "\udfff" for character in str(state_dir)):  # a byte that is not UTF-8
        where.fault(line, "its absolute path must be UTF-8")
    if state_dir == path.validation.directory or state_dir in path.validation.directory.parents:
        where.fault(line, "contains this configuration: use a directory that only the runtime uses")
    return state_dir


#: The whole configuration.
ROOT = Section[RuntimeConfig](
    _build_root,
    Setting("version", ChoiceField("v1", "v2", "v1beta1")),
    Setting("kind", ChoiceField("Spicepod")),
    Setting("name", TextField("a name", max_length=100)),
    Setting("metadata", IgnoredField(), note="It has no effect: it is not shown anywhere."),
    Setting("secrets", SECRETS),
    Setting("runtime", RUNTIME),
    Setting("datasets", ListField(DATASET)),
    Setting("views", ListField(VIEW)),
    Setting("dependencies", DEPENDENCIES),
    unavailable=NOT_HERE,
)


@cache
def paths_by_name() -> dict[str, tuple[str, ...]]:
    """Return the valid paths of each field name. Errors suggest these paths and show no other names."""
    paths: dict[str, tuple[str, ...]] = {"api_key": ("runtime.auth.api-key",)}
    for path, _ in ROOT.walk(""):
        name = path.rpartition(".")[2]
        if not name.endswith("[]"):
            paths[name] = (*paths.get(name, ()), path)
    return paths
