"""
The schema: every field of the configuration, in the shape it must have. Defaults are in `runtimeconf.model`.

`ROOT` is read top down; `secrets` comes before everything that may refer to one.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from runtimeconf.api_keys import API_KEY
from runtimeconf.connectors.connector import Package
from runtimeconf.dataset_schema import DATASET, IDENTIFIER, VIEW
from runtimeconf.fields import (
    Boolean,
    Choice,
    Duration,
    Field,
    FilePath,
    HostName,
    HostPort,
    Integer,
    ListOf,
    ScalarShape,
    Section,
    Size,
    Text,
    UnfitError,
    into,
    line_of,
)
from runtimeconf.model import (
    DEFAULT_STATE_DIR,
    AuthConfig,
    FlightConfig,
    HttpConfig,
    QueryConfig,
    ResultsCacheConfig,
    RuntimeConfig,
    TlsConfig,
)
from runtimeconf.reading import Place, nearest
from runtimeconf.references import ALL_STORES, STORE_NAME
from runtimeconf.secret_stores import (
    DEFAULT_KEYRING_SERVICE,
    EnvStore,
    FileStore,
    KeyringStore,
    SecretStore,
    SecretStores,
)
from runtimeconf.tls_files import certificate_problem, pair_problem
from runtimeconf.yaml_reader import Mapping, Node, Scalar, Sequence

T = TypeVar("T")

#: The longest name of a socket in the state directory, its slash included, and what the system takes for a path.
SOCKET_NAME_BYTES = 20
MAX_SOCKET_PATH_BYTES = 107

#: What DuckDB does not take as it is in the path of a database: it looks for the file, or its log, elsewhere.
_MISREAD = frozenset("?\\")

_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})  # noqa: S104 (compared with, not bound)


# --- secrets ----------------------------------------------------------------------------------------------------------


class _StoreKind(ScalarShape[str]):
    """A kind of secret store; those of Spicepods that this runtime does not have are named."""

    expected = "env, file or keyring"
    _elsewhere = ("aws_secrets_manager", "azure_keyvault", "hashicorp_vault", "kubernetes")

    def convert(self, node: Scalar) -> str:
        if node.text in {"env", "file", "keyring"}:
            return node.text
        kind = node.text.partition(":")[0]
        if kind in self._elsewhere:
            raise UnfitError(f"the store {kind} is not supported")
        meant = nearest(kind, ("env", "file", "keyring"))
        raise UnfitError(f"did you mean {meant}?" if meant else "")


class _StoreName(ScalarShape[str]):
    """The name by which references call a store."""

    expected = "a store name of letters, digits, _ and -, with a letter first"

    def convert(self, node: Scalar) -> str:
        if STORE_NAME.fullmatch(node.text) is None:
            raise UnfitError
        if node.text.lower() == ALL_STORES:
            raise UnfitError("the name secrets asks all stores")
        return node.text


_KEYRING = Package("keyring", "keyring~=25.7")
_STORE_PARAMS = {"env": (), "file": ("directory",), "keyring": ("service",)}


def _build_store(values: dict[str, Any], node: Mapping, place: Place) -> SecretStore | None:
    reading, kind, name = place.reading, values["from"], values["name"]
    params: dict[str, str] = values.get("params", {})
    for param in params:
        if param not in _STORE_PARAMS[kind]:
            place.field("params").field(param).fault(line_of(node, "params"), f"is not a parameter of the store {kind}")
    if kind == "env":
        return EnvStore(name, reading.environ, reading.directory, lambda file, text: reading.warn(str(file), text))
    if kind == "keyring":
        if not KeyringStore.is_installed():
            message = f"the keyring store needs the keyring package: {_KEYRING.install_command}"
            place.field("from").fault(line_of(node, "from"), message)
        return KeyringStore(name, params.get("service", DEFAULT_KEYRING_SERVICE))
    if "directory" not in params:
        place.field("params").fault(line_of(node, "params"), "lacks the field directory: where the secret files are")
        return None
    directory = reading.directory / params["directory"]
    if os.path.exists(directory) and not os.path.isdir(directory):  # noqa: PTH110, PTH112 (they never raise)
        place.field("params").field("directory").fault(line_of(node, "params"), "is not a directory")
    return FileStore(name, directory)


class _Stores(ListOf[SecretStore]):
    """The list of stores. Once it is read without a fault, references can be resolved."""

    def read(self, node: Node, place: Place) -> tuple[SecretStore, ...] | None:
        reading = place.reading
        reading.stores = None
        faults_before = len(reading.faults)
        stores = super().read(node, place) or ()
        names: set[str] = set()
        for store in stores:
            if store.name in names:
                place.fault(node.line, f"the store name {store.name} is used twice: each store needs its own")
            names.add(store.name)
        if len(reading.faults) == faults_before:
            reading.stores = SecretStores(stores)
        return stores


_STORE = Section[SecretStore](
    _build_store,
    Field(name="from", shape=_StoreKind(), is_required=True),
    Field(name="name", shape=_StoreName(), is_required=True),
    Field(
        name="params",
        shape=Section(
            into(dict),
            Field(name="directory", shape=FilePath("the directory of the secret files")),
            Field(name="service", shape=Text("the service name of the keyring entries")),
        ),
    ),
)

# --- runtime ----------------------------------------------------------------------------------------------------------


def _build_auth(values: dict[str, Any], node: Mapping, place: Place) -> AuthConfig | None:  # noqa: ARG001 (builders)
    auth: AuthConfig = values["api-key"]
    return auth


def _build_tls(values: dict[str, Any], node: Mapping, place: Place) -> TlsConfig:
    directory = place.reading.directory
    files = {name: directory / values[name] for name in ("certificate_file", "key_file") if name in values}
    tls = TlsConfig(**(values | files))
    if not tls.enabled:
        return tls
    named = {entry.name for entry in node.entries}
    problems = {name: certificate_problem(file) for name, file in files.items()}
    for name in ("certificate_file", "key_file"):
        if name not in named:
            place.fault(node.line, f"lacks the field {name}, which TLS needs")
        elif problems.get(name):
            place.field(name).fault(line_of(node, name), problems[name])
    if tls.certificate_file is not None and tls.key_file is not None and not any(problems.values()):
        problem = pair_problem(tls.certificate_file, tls.key_file)
        if problem:
            place.field("key_file").fault(line_of(node, "key_file"), problem)
    return tls


def _build_runtime(values: dict[str, Any], node: Mapping, place: Place) -> dict[str, Any]:
    http: HttpConfig = values.get("http", HttpConfig())
    flight: FlightConfig = values.get("flight", FlightConfig())
    if flight.enabled and http.bind.port == flight.bind.port != 0:
        hosts = {http.bind.host, flight.bind.host}
        if len(hosts) == 1 or hosts & _WILDCARD_HOSTS:
            message = f"has the port of runtime.http.bind ({http.bind}): each listener needs its own"
            place.field("flight").field("bind").fault(line_of(node, "flight"), message)
    auth: AuthConfig = values.get("auth", AuthConfig())
    if not auth.enabled:
        for name, address, is_on in (("http", http.bind, True), ("flight", flight.bind, flight.enabled)):
            if is_on and not address.is_loopback:
                message = f"listens on {address} without authentication: anybody who reaches it can read all data"
                place.field(name).field("bind").warn(line_of(node, name), message)
    return values


RUNTIME = Section[dict[str, Any]](
    _build_runtime,
    Field(
        name="auth",
        shape=Section(
            _build_auth,
            Field(name="api-key", shape=API_KEY, alias="api_key", is_required=True),
            may_be_empty=False,
        ),
    ),
    Field(
        name="http",
        shape=Section(
            into(HttpConfig),
            Field(name="bind", shape=HostPort()),
            Field(name="max_body_bytes", shape=Size("1KiB", "1GiB")),
            Field(name="allowed_hosts", shape=ListOf(HostName(), minimum=1)),
        ),
    ),
    Field(
        name="flight",
        shape=Section(
            into(FlightConfig),
            Field(name="enabled", shape=Boolean()),
            Field(name="bind", shape=HostPort()),
            Field(name="max_message_bytes", shape=Size("1KiB", "1GiB")),
        ),
    ),
    Field(
        name="tls",
        shape=Section(
            _build_tls,
            Field(name="enabled", shape=Boolean(), is_required=True),
            Field(name="certificate_file", shape=FilePath("the path of a PEM file with the certificate chain")),
            Field(name="key_file", shape=FilePath("the path of a PEM file with the private key")),
            may_be_empty=False,
        ),
    ),
    Field(
        name="query",
        shape=Section(
            into(QueryConfig),
            Field(name="timeout", attribute="timeout_s", shape=Duration("1ms", "1d")),
            Field(name="memory_limit", attribute="memory_limit_bytes", shape=Size("16MiB", "16TiB")),
            Field(name="workers", shape=Integer(1, 64)),
            Field(name="max_queued", shape=Integer(0, 10_000)),
            Field(name="queue_timeout", attribute="queue_timeout_s", shape=Duration("1ms", "1h")),
            Field(name="temp_directory_limit", attribute="temp_directory_limit_bytes", shape=Size("0B", "1024TiB")),
        ),
    ),
    Field(
        name="results_cache",
        shape=Section(
            into(ResultsCacheConfig),
            Field(name="enabled", shape=Boolean(), is_required=True),
            Field(name="max_bytes", shape=Size("64KiB", "1TiB")),
            may_be_empty=False,
        ),
    ),
    Field(name="ready_state", shape=Choice("on_load")),
    Field(name="shutdown_timeout", attribute="shutdown_timeout_s", shape=Duration("1ms", "1h")),
    Field(name="compatibility", shape=Choice("2.0", "1.10")),
    Field(name="state_dir", shape=FilePath("the path of a directory that is the runtime's alone")),
)

# --- the root ---------------------------------------------------------------------------------------------------------


def _build_root(values: dict[str, Any], node: Mapping, place: Place) -> RuntimeConfig:
    _refuse_shared_names(node, place)
    for name in ("version", "kind", "secrets"):
        values.pop(name, None)  # checked, and of no further use
    runtime: dict[str, Any] = values.pop("runtime", {})
    state_dir = _state_dir(runtime.pop("state_dir", DEFAULT_STATE_DIR), node, place)
    return RuntimeConfig(file=place.reading.file, state_dir=state_dir, **values, **runtime)


def _refuse_shared_names(root: Mapping, place: Place) -> None:
    """Datasets and views share one schema, in which case does not count."""
    first_of: dict[str, tuple[str, int]] = {}
    for section in ("datasets", "views"):
        listed = next((entry.value for entry in root.entries if entry.name == section), None)
        for index, item in enumerate(listed.items if isinstance(listed, Sequence) else ()):
            name = _field(item, "name")
            if not isinstance(name, Scalar) or IDENTIFIER.fullmatch(name.text) is None:
                continue  # a fault already
            where = place.field(section).item(index).field("name")
            if (first := first_of.get(name.text.lower())) is not None:
                message = f"the name {name.text} is used twice: by {first[0]} on line {first[1]} and here on line"
                where.fault(name.line, f"{message} {name.line}")
            else:
                first_of[name.text.lower()] = (f"{section}[{index}]", name.line)


def _state_dir(text: str, root: Mapping, place: Place) -> Path:
    """Give the absolute state directory. A directory that holds the YAML is not the runtime's alone."""
    state_dir = Path(os.path.normpath(place.reading.directory / text))
    where = place.field("runtime").field("state_dir")
    runtime = _field(root, "runtime")
    line = line_of(runtime, "state_dir") if isinstance(runtime, Mapping) else 0
    length = len(os.fsencode(state_dir)) + SOCKET_NAME_BYTES
    if length > MAX_SOCKET_PATH_BYTES:
        limit = MAX_SOCKET_PATH_BYTES - SOCKET_NAME_BYTES
        message = f"is too long for Unix sockets: its absolute path may have {limit} bytes"
        where.fault(line, f"{message}, and has {length - SOCKET_NAME_BYTES}")
    if _MISREAD.intersection(str(state_dir)):
        where.fault(line, "its absolute path may have neither ? nor \\ in it: the engine would look elsewhere")
    if state_dir == place.reading.directory or state_dir in place.reading.directory.parents:
        where.fault(line, "holds this configuration: name a directory that is the runtime's alone")
    return state_dir


def _field(node: Node, name: str) -> Node | None:
    entries = node.entries if isinstance(node, Mapping) else ()
    return next((entry.value for entry in entries if entry.name == name), None)


#: The whole configuration. Fields are read in this order: `secrets` first, then what refers to them.
ROOT = Section[RuntimeConfig](
    _build_root,
    Field(name="version", shape=Choice("v1", "v2")),
    Field(name="kind", shape=Choice("Spicepod")),
    Field(name="name", shape=Text("a name", max_length=100)),
    Field(name="secrets", shape=_Stores(_STORE)),
    Field(name="runtime", shape=RUNTIME),
    Field(name="datasets", shape=ListOf(DATASET)),
    Field(name="views", shape=ListOf(VIEW)),
)


def described_fields() -> dict[str, str]:
    """Every YAML path with what is expected there; `[]` stands for an item of a list."""
    return {path: shape.expected for path, shape in ROOT.walk("")}


def field_paths() -> tuple[str, ...]:
    """Every YAML path that the configuration may have, parents before their fields."""
    return tuple(described_fields())


@cache
def paths_by_name() -> dict[str, tuple[str, ...]]:
    """Where each field name may stand: for the name of a misplaced field, and for what a fault may name at all."""
    paths: dict[str, tuple[str, ...]] = {"api_key": ("runtime.auth.api-key",)}
    for path in field_paths():
        name = path.rpartition(".")[2]
        if not name.endswith("[]"):
            paths[name] = (*paths.get(name, ()), path)
    return paths
