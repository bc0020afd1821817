"""
The schema of the YAML: every setting, with the field that reads it. Defaults are in `runtimeconf.model`.

Start at `ROOT`, at the end. Settings are read in order; `secrets` comes before everything that may refer to a secret.
"""

import os
import ssl
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from runtimeconf.api_keys import API_KEY
from runtimeconf.connectors.connector import Package
from runtimeconf.dataset_schema import DATASET, IDENTIFIER, VIEW
from runtimeconf.fields import (
    ADDRESS,
    ALLOWED_HOST,
    NETWORK,
    BooleanField,
    ChoiceField,
    DurationField,
    IntegerField,
    InvalidValueError,
    ListField,
    ParsedField,
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
    MetricsConfig,
    QueryConfig,
    ResultsCacheConfig,
    RuntimeConfig,
    TlsConfig,
    ViewConfig,
)
from runtimeconf.named_keys import check_datasets
from runtimeconf.references import ALL_STORES, STORE_NAME
from runtimeconf.secret_stores import EnvStore, FileStore, KeyringStore, SecretStore, SecretStores
from runtimeconf.traces import TRACES
from runtimeconf.validation import YamlPath, nearest
from runtimeconf.yaml_reader import Mapping, Node, Scalar, Sequence
from system.addresses import Address
from system.files import UnreadableFileError, read_regular_file

#: The longest name of a socket in the state directory, including the slash, and the longest path of a Unix socket.
SOCKET_NAME_BYTES = 20
MAX_SOCKET_PATH_BYTES = 107

#: Characters that DuckDB misreads in the path of a database: it would look for the file or its log elsewhere.
_MISREAD_BY_DUCKDB = frozenset("?\\")

MAX_PEM_BYTES = 1024 * 1024

_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})  # noqa: S104 (compared with, not bound)


# --- secrets ----------------------------------------------------------------------------------------------------------


_STORE_PARAMS = {"env": (), "file": ("directory",), "keyring": ("service",)}
_UNSUPPORTED_STORES = ("aws_secrets_manager", "azure_keyvault", "hashicorp_vault", "kubernetes")  # of Spice.ai


def _parse_store_kind(text: str) -> str:
    if text in _STORE_PARAMS:
        return text
    kind = text.partition(":")[0]
    if kind in _UNSUPPORTED_STORES:
        raise InvalidValueError(f"the store {kind} is not supported")
    meant = nearest(kind, _STORE_PARAMS)
    raise InvalidValueError(f"did you mean {meant}?" if meant else "")


def _parse_store_name(text: str) -> str:
    if STORE_NAME.fullmatch(text) is None:
        raise InvalidValueError
    if text.lower() == ALL_STORES:
        raise InvalidValueError("the name secrets asks all stores")
    return text


_KEYRING = Package("keyring", "keyring~=25.7")


def _build_store(values: dict[str, Any], node: Mapping, path: YamlPath) -> SecretStore | None:
    validation, kind, name = path.validation, values["from"], values["name"]
    params: dict[str, str] = values.get("params", {})
    for param in params:
        if param not in _STORE_PARAMS[kind]:
            path.field("params").field(param).fault(node.line_of("params"), f"is not a parameter of the store {kind}")
    if kind == "env":
        return EnvStore(name, validation.environ, validation.directory, validation.warn)
    if kind == "keyring":
        if not _KEYRING.is_installed:
            message = f"the keyring store needs the keyring package: {_KEYRING.install_command}"
            path.field("from").fault(node.line_of("from"), message)
        return KeyringStore(name, params.get("service", "runtime"))
    if "directory" not in params:
        path.field("params").fault(node.line_of("params"), "lacks the field directory: where the secret files are")
        return None
    directory = validation.directory / params["directory"]
    if os.path.exists(directory) and not os.path.isdir(directory):  # noqa: PTH110, PTH112 (they never raise)
        path.field("params").field("directory").fault(node.line_of("params"), "is not a directory")
    return FileStore(name, directory)


class _StoresField(ListField[SecretStore]):
    """The list of stores. References can be resolved once it is read without a fault."""

    def read(self, node: Node, path: YamlPath) -> tuple[SecretStore, ...] | None:
        validation = path.validation
        validation.stores = None
        faults_before = len(validation.faults)
        stores = super().read(node, path) or ()
        names: set[str] = set()
        for store in stores:
            if store.name in names:
                path.fault(node.line, f"the store name {store.name} is used twice: each store needs its own")
            names.add(store.name)
        if len(validation.faults) == faults_before:
            validation.stores = SecretStores(stores)
        return stores


_STORE = Section[SecretStore](
    _build_store,
    Setting("from", ParsedField("env, file or keyring", _parse_store_kind), is_required=True),
    Setting(
        "name",
        ParsedField("a store name of letters, digits, _ and -, with a letter first", _parse_store_name),
        is_required=True,
    ),
    Setting(
        "params",
        Section(
            into(dict),
            Setting("directory", PathField("the directory of the secret files")),
            Setting("service", TextField("the service name of the keyring entries")),
        ),
    ),
)

# --- runtime ----------------------------------------------------------------------------------------------------------


def _certificate_problem(file: Path) -> str:
    """Return why *file* cannot be read, in a few words; an empty text if it can."""
    try:
        content = read_regular_file(file, MAX_PEM_BYTES)
    except UnreadableFileError as exc:
        return f"cannot be read: {exc}"
    return "" if b"-----BEGIN " in content.data else "is not a PEM file"


def _pair_problem(certificate_file: Path, key_file: Path) -> str:
    """Return why the readable files cannot be used together, in a few words; an empty text if they can."""

    def no_password() -> str:
        # Without this callback OpenSSL asks on the terminal, and a start in the background hangs.
        raise InvalidValueError("is encrypted: give a key without a passphrase, readable by this user only")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate_file, key_file, password=no_password)
    except InvalidValueError as exc:
        return str(exc)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            return "does not belong to the certificate"
        return "and the certificate cannot be used: one of them is not valid PEM"
    return ""


def _build_tls(values: dict[str, Any], node: Mapping, path: YamlPath) -> TlsConfig:
    directory = path.validation.directory
    files = {name: directory / values[name] for name in ("certificate_file", "key_file") if name in values}
    tls = TlsConfig(**(values | files))
    if not tls.enabled:
        return tls
    named = {entry.name for entry in node.entries}
    problems = {name: _certificate_problem(file) for name, file in files.items()}
    for name in ("certificate_file", "key_file"):
        if name not in named:
            path.fault(node.line, f"lacks the field {name}, which TLS needs")
        elif problems.get(name):
            path.field(name).fault(node.line_of(name), problems[name])
    if tls.certificate_file is not None and tls.key_file is not None and not any(problems.values()):
        problem = _pair_problem(tls.certificate_file, tls.key_file)
        if problem:
            path.field("key_file").fault(node.line_of("key_file"), problem)
    return tls


def _build_history(values: dict[str, Any], _node: Mapping, path: YamlPath) -> HistoryConfig:
    if "file" in values:
        values["file"] = Path(os.path.normpath(path.validation.directory / values["file"]))
    return HistoryConfig(**values)


def _build_runtime(values: dict[str, Any], node: Mapping, path: YamlPath) -> dict[str, Any]:
    http: HttpConfig = values.get("http", HttpConfig())
    flight: FlightConfig = values.get("flight", FlightConfig())
    if flight.enabled and http.bind.port == flight.bind.port != 0:
        hosts = {http.bind.host, flight.bind.host}
        if len(hosts) == 1 or hosts & _WILDCARD_HOSTS:
            message = f"has the port of runtime.http.bind ({http.bind}): each listener needs its own"
            path.field("flight").field("bind").fault(node.line_of("flight"), message)
    metrics: MetricsConfig = values.get("metrics", MetricsConfig())
    if metrics.enabled:
        _check_metrics(metrics, {"http": http.bind} | ({"flight": flight.bind} if flight.enabled else {}), node, path)
    auth: AuthConfig = values.get("auth", AuthConfig())
    if not auth.enabled:
        for name, address, is_on in (("http", http.bind, True), ("flight", flight.bind, flight.enabled)):
            if is_on and not address.is_loopback:
                message = f"listens on {address} without authentication: anybody who reaches it can read all data"
                path.field(name).field("bind").warn(node.line_of(name), message)
    return values


def _check_metrics(metrics: MetricsConfig, others: dict[str, Address], node: Mapping, path: YamlPath) -> None:
    where, line = path.field("metrics").field("bind"), node.line_of("metrics")
    for name, other in others.items():
        if other.port == metrics.bind.port != 0 and (
            other.host == metrics.bind.host or {other.host, metrics.bind.host} & _WILDCARD_HOSTS
        ):
            where.fault(line, f"has the port of runtime.{name}.bind ({other}): each listener needs its own")
    if not metrics.bind.is_loopback:
        message = "listens on {}, without a key: anybody who reaches it can read the names of datasets and keys"
        where.warn(line, message.format(metrics.bind))


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
        ),
    ),
    Setting(
        "flight",
        Section(
            into(FlightConfig),
            Setting("enabled", BooleanField()),
            Setting("bind", ADDRESS),
            Setting("max_message_bytes", SizeField("1KiB", "1GiB")),
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
        ),
    ),
    Setting(
        "results_cache",
        Section(
            into(ResultsCacheConfig),
            Setting("enabled", BooleanField(), is_required=True),
            Setting("max_bytes", SizeField("64KiB", "1TiB")),
            may_be_empty=False,
        ),
    ),
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
            Setting("file", PathField("the path of a file of JSON lines")),
            Setting("file_max_bytes", SizeField("1MiB", "1TiB")),
            Setting("files", IntegerField(1, 1000)),
        ),
    ),
    Setting("traces", TRACES),
    Setting("ready_state", ChoiceField("on_load", "on_registered")),
    Setting("shutdown_timeout", DurationField("1ms", "1h"), attribute="shutdown_timeout_s"),
    Setting("compatibility", ChoiceField("2.0", "1.10")),
    Setting("state_dir", PathField("the path of a directory that is the runtime's alone")),
)

# --- the root ---------------------------------------------------------------------------------------------------------


def _build_root(values: dict[str, Any], node: Mapping, path: YamlPath) -> RuntimeConfig:
    _refuse_duplicate_names(node, path)
    check_datasets(node, path)
    for name in ("version", "kind", "secrets"):
        values.pop(name, None)  # validated, but not part of the result
    runtime: dict[str, Any] = values.pop("runtime", {})
    state_dir = _state_dir(runtime.pop("state_dir", DEFAULT_STATE_DIR), node, path)
    declared = values.pop("views", ())
    # Their data is in the state directory.
    materialized = [replace(view, location=str(state_dir)) for view in declared if isinstance(view, DatasetConfig)]
    return RuntimeConfig(
        file=path.validation.file,
        state_dir=state_dir,
        datasets=(*values.pop("datasets", ()), *materialized),
        views=tuple(view for view in declared if isinstance(view, ViewConfig)),
        **values,
        **runtime,
    )


def _refuse_duplicate_names(root: Mapping, path: YamlPath) -> None:
    """Datasets and views share one namespace, in which case does not matter."""
    first_of: dict[str, tuple[str, int]] = {}
    for section in ("datasets", "views"):
        listed = root.get(section)
        for index, item in enumerate(listed.items if isinstance(listed, Sequence) else ()):
            name = item.get("name") if isinstance(item, Mapping) else None
            if not isinstance(name, Scalar) or IDENTIFIER.fullmatch(name.text) is None:
                continue  # recorded as a fault already
            where = path.field(section).item(index).field("name")
            if (first := first_of.get(name.text.lower())) is not None:
                message = f"the name {name.text} is used twice: by {first[0]} on line {first[1]} and here on line"
                where.fault(name.line, f"{message} {name.line}")
            else:
                first_of[name.text.lower()] = (f"{section}[{index}]", name.line)


def state_dir_in(directory: Path, text: str) -> Path:
    """Return the absolute path of the state directory that the YAML in *directory* calls *text*."""
    return Path(os.path.normpath(directory / text))


def _state_dir(text: str, root: Mapping, path: YamlPath) -> Path:
    """Return the absolute state directory. It must not contain the YAML, because the runtime owns all of it."""
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
        where.fault(line, "its absolute path may have neither ? nor \\ in it: the engine would look elsewhere")
    if state_dir == path.validation.directory or state_dir in path.validation.directory.parents:
        where.fault(line, "holds this configuration: name a directory that is the runtime's alone")
    return state_dir


#: The whole configuration.
ROOT = Section[RuntimeConfig](
    _build_root,
    Setting("version", ChoiceField("v1", "v2")),
    Setting("kind", ChoiceField("Spicepod")),
    Setting("name", TextField("a name", max_length=100)),
    Setting("secrets", _StoresField(_STORE)),
    Setting("runtime", RUNTIME),
    Setting("datasets", ListField(DATASET)),
    Setting("views", ListField(VIEW)),
)


@cache
def paths_by_name() -> dict[str, tuple[str, ...]]:
    """Return the valid paths of each field name, for suggestions; faults show no other names."""
    paths: dict[str, tuple[str, ...]] = {"api_key": ("runtime.auth.api-key",)}
    for path, _ in ROOT.walk(""):
        name = path.rpartition(".")[2]
        if not name.endswith("[]"):
            paths[name] = (*paths.get(name, ()), path)
    return paths
