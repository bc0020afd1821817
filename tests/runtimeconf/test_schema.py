"""Every section of the configuration: what its fields become, and what is wrong with others."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from runtimeconf.connectors import CONNECTORS
from runtimeconf.errors import ConfigError
from runtimeconf.loader import load
from runtimeconf.model import (
    AccelerationConfig,
    DatasetConfig,
    FlightConfig,
    HttpConfig,
    IndexConfig,
    QueryConfig,
    ResultsCacheConfig,
    RuntimeConfig,
    TlsConfig,
    ViewConfig,
)
from runtimeconf.references import MalformedReferenceError
from runtimeconf.schema import MAX_SOCKET_PATH_BYTES, SOCKET_NAME_BYTES, described_fields, field_paths, paths_by_name
from system.addresses import Address
from tests.runtimeconf.configurations import KEY, Fault, Faults, Load, with_keys

NO_SNOWFLAKE = f"the connector snowflake is not supported; the connectors are: {', '.join(CONNECTORS)}"
SOURCE = "a connector and where the data is, such as file:data/flights.parquet"

FULL = """
version: v1
kind: Spicepod
name: flights
secrets:
  - {from: env, name: env}
  - {from: file, name: files, params: {directory: secrets}}
runtime:
  auth:
    api-key:
      enabled: true
      keys:
        - ${ secrets:api_key }
        - 1234567890
  http:   {bind: "127.0.0.1:8091", max_body_bytes: 2048, allowed_hosts: [localhost, 127.0.0.1, "[::1]"]}
  flight: {enabled: false, bind: "127.0.0.1:50052", max_message_bytes: 1MiB}
  tls:    {enabled: false, certificate_file: tls/cert.pem, key_file: /etc/key.pem}
  query:
    timeout: 3s
    memory_limit: 512MiB
    workers: 2
    max_queued: 8
    queue_timeout: 500ms
    temp_directory_limit: 0
  results_cache: {enabled: true, max_bytes: 1MiB}
  ready_state: on_load
  shutdown_timeout: 10s
  compatibility: 1.10
  state_dir: state
datasets:
  - from: file:data/flights.parquet
    name: flights
    on_schema_change: accept
    time_column: departed_at
    params: {file_format: parquet}
    acceleration:
      enabled: true
      refresh_mode: append
      refresh_check_interval: 10m
      refresh_timeout: 5m
      refresh_sql: "SELECT * FROM flights"
      primary_key: id
      indexes: {carrier: enabled, Tail Number: unique}
views:
  - {name: delays, sql: "SELECT 1"}
"""


def test_every_field_becomes_a_value(load_text: Load, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "api_key").write_text(KEY + "\n")

    config = load_text(FULL.lstrip())

    assert [key.reveal() for key in config.auth.keys] == [KEY, "1234567890"]
    assert config == RuntimeConfig(
        file=tmp_path / "runtime.yaml",
        state_dir=tmp_path / "state",
        name="flights",
        auth=config.auth,
        http=HttpConfig(
            bind=Address("127.0.0.1", 8091), max_body_bytes=2048, allowed_hosts=("localhost", "127.0.0.1", "[::1]")
        ),
        flight=FlightConfig(enabled=False, bind=Address("127.0.0.1", 50052), max_message_bytes=1024**2),
        tls=TlsConfig(enabled=False, certificate_file=tmp_path / "tls" / "cert.pem", key_file=Path("/etc/key.pem")),
        query=QueryConfig(
            timeout_s=3.0,
            memory_limit_bytes=512 * 1024**2,
            workers=2,
            max_queued=8,
            queue_timeout_s=0.5,
            temp_directory_limit_bytes=0,
        ),
        results_cache=ResultsCacheConfig(enabled=True, max_bytes=1024**2),
        ready_state="on_load",
        shutdown_timeout_s=10.0,
        compatibility="1.10",
        datasets=(
            DatasetConfig(
                name="flights",
                from_="file:data/flights.parquet",
                location=str(tmp_path / "data" / "flights.parquet"),
                on_schema_change="accept",
                time_column="departed_at",
                params={"file_format": "parquet"},
                acceleration=AccelerationConfig(
                    refresh_mode="append",
                    refresh_check_interval_s=600.0,
                    refresh_timeout_s=300.0,
                    refresh_sql="SELECT * FROM flights",
                    primary_key="id",
                    indexes=(IndexConfig(column="carrier"), IndexConfig(column="Tail Number", unique=True)),
                ),
                line=30,
                yaml_path="datasets[0]",
            ),
        ),
        views=(ViewConfig(name="delays", sql="SELECT 1", line=44, yaml_path="views[0].sql"),),
        warnings=config.warnings,
    )


@pytest.mark.parametrize(
    "text", ["{}\n", "version: v2\n", "runtime: {}\n", "kind: Spicepod\ndatasets: []\nviews: []\n"]
)
def test_everything_may_be_left_out(load_text: Load, tmp_path: Path, text: str) -> None:
    assert load_text(text) == RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path / ".runtime")


@pytest.mark.parametrize("value", ["2.0", '"2.0"', "'2.0'"])
def test_compatibility_may_be_quoted(load_text: Load, value: str) -> None:
    assert load_text(f"runtime: {{compatibility: {value}}}\n").compatibility == "2.0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("version: v3\n", "1: version: must be v1 or v2; found 'v3'", id="version"),
        pytest.param(
            "version: 1\n", "1: version: must be v1 or v2; found '1' (did you mean v1?)", id="version as a number"
        ),
        pytest.param(
            "kind: spicepod\n", "1: kind: must be Spicepod; found 'spicepod' (did you mean Spicepod?)", id="kind"
        ),
        pytest.param(
            'name: "a\\nb"\n', "1: name: must be a name; found 'a\\nb' (it holds a control character)", id="name"
        ),
        pytest.param("runtime:\n", "1: runtime: is empty: fill it in, or leave it out", id="runtime null"),
        pytest.param("runtime: []\n", "1: runtime: must be a mapping; found a list", id="runtime a list"),
        pytest.param(
            "datasets:\n",
            "1: datasets: is empty: it must be a list, one item a line after a dash, or be left out",
            id="datasets null",
        ),
        pytest.param(
            "runtime:\n  compatibility: 1.1\n",
            "2: runtime.compatibility: must be 2.0 or 1.10; found '1.1' (did you mean 1.10?)",
            id="compatibility 1.1",
        ),
        pytest.param(
            "runtime:\n  ready_state: on_registration\n",
            "2: runtime.ready_state: must be on_load; found 'on_registration'",
            id="ready_state of upstream",
        ),
        pytest.param(
            "runtime:\n  http: {bind: 8090}\n",
            "2: runtime.http.bind: must be an address such as 127.0.0.1:8090 or [::1]:8090, "
            "with a port from 0 to 65535; found '8090'",
            id="only a port",
        ),
        pytest.param(
            "runtime:\n  http: {allowed_hosts: []}\n",
            "2: runtime.http.allowed_hosts: is an empty list: give at least 1, or leave it out",
            id="no allowed host",
        ),
        pytest.param(
            "runtime:\n  query: {workers: 0}\n",
            "2: runtime.query.workers: must be a whole number from 1 to 64; found '0'",
            id="no worker",
        ),
        pytest.param(
            "runtime:\n  shutdown_timeout: 0s\n",
            "2: runtime.shutdown_timeout: must be a duration such as 30s, 500ms, 1.5m, 1h or 1d, "
            "from 1ms to 1h; found '0s'",
            id="no time to shut down",
        ),
        pytest.param(
            "runtime:\n  tls: {enabled: true}\n  state_dir: ''\n",
            "2: runtime.tls: lacks the field certificate_file, which TLS needs\n"
            "2: runtime.tls: lacks the field key_file, which TLS needs\n"
            "3: runtime.state_dir: must be the path of a directory that is the runtime's alone; found '' (it is blank)",
            id="several",
        ),
        pytest.param(
            "runtime:\n  results_cache: {max_bytes: 1KiB, item_ttl: 1s}\n",
            "2: runtime.results_cache.item_ttl: unknown field; "
            "the fields here are: enabled, max_bytes\n"
            "2: runtime.results_cache: lacks the field enabled: true or false\n"
            "2: runtime.results_cache.max_bytes: must be a size in bytes such as 1048576, 128MiB or 1GiB, from 64KiB "
            "to 1TiB; found '1KiB'",
            id="remembered answers",
        ),
        pytest.param(
            "runtime:\n  results_cache: {}\n",
            "2: runtime.results_cache: is empty: fill it in, or leave it out",
            id="no word on remembered answers",
        ),
        pytest.param(
            "runtime:\n  timeout: 3s\n",
            "2: runtime.timeout: unknown field; did you mean runtime.query.timeout?",
            id="a field one level too high",
        ),
        pytest.param(
            "runtime:\n  http: {bnid: x}\n", "2: runtime.http.bnid: unknown field; did you mean bind?", id="misspelt"
        ),
        pytest.param(
            'runtime:\n  http: {"a b\\n": x}\n',
            "2: runtime.http.'a b\\n': unknown field; the fields here are: bind, max_body_bytes, allowed_hosts",
            id="a name with a line break",
        ),
        pytest.param(
            f"? {'k' * 100_000}\n: x\n",
            f"1: '{'k' * 57}...': unknown field; "
            "the fields here are: version, kind, name, secrets, runtime, datasets, views",
            id="a very long name",
        ),
    ],
)
def test_faults_of_single_fields(faults: Faults, text: str, message: str) -> None:
    found = [f"{fault.line}: {fault.yaml_path}: {fault.message}" for fault in faults(text)]

    assert "\n".join(found) == message


def test_parts_of_a_spicepod_that_are_not_here_are_named_one_by_one(faults: Faults) -> None:
    text = """
version: v1
kind: Spicepod
name: upstream
models: [{from: openai, name: m}]
tools: []
embeddings: []
catalogs: []
workers: []
functions: []
snapshots: {}
extensions: {}
dependencies: []
runtime:
  caching: {sql_results: {enabled: true}}
  task_history: {enabled: true}
  cors: {enabled: true}
  telemetry: {enabled: false}
  metrics: []
  scheduler: {}
datasets:
  - from: snowflake:a
    name: a
    description: canary
    time_format: unix_seconds
    acceleration: {engine: duckdb, mode: file, refresh_cron: "* * * * *"}
views:
  - {name: v, sql_ref: v.sql}
"""

    found = faults(text)

    assert [fault.yaml_path for fault in found if fault.message.startswith("unknown field")] == [
        *("models", "tools", "embeddings", "catalogs", "workers", "functions", "snapshots", "extensions"),
        "dependencies",
        *(f"runtime.{name}" for name in ("caching", "task_history", "cors", "telemetry", "metrics", "scheduler")),
        *("datasets[0].description", "datasets[0].time_format", "datasets[0].acceleration.engine"),
        *("datasets[0].acceleration.mode", "datasets[0].acceleration.refresh_cron"),
        "views[0].sql_ref",
    ]
    assert [str(fault).partition("runtime.yaml:")[2] for fault in found if "unknown field" not in fault.message] == [
        f"22: datasets[0].from: must be {SOURCE}; found a text ({NO_SNOWFLAKE})",
        "28: views[0]: lacks the field sql: one SELECT statement",
    ]


# --- secrets ----------------------------------------------------------------------------------------------------------


KIND = "must be env, file or keyring"
STORE = "a store name of letters, digits, _ and -, with a letter first"
NO_SUCH = "unknown field; the fields here are"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        pytest.param(
            "{from: enf, name: a}",
            f"secrets[0].from: {KIND}; found a text (did you mean env?)",
            id="misspelt",
        ),
        pytest.param("{from: canary, name: a}", f"secrets[0].from: {KIND}; found a text", id="unknown"),
        pytest.param(
            "{from: 'kubernetes:canary', name: a}",
            f"secrets[0].from: {KIND}; found a text (the store kubernetes is not supported)",
            id="of upstream",
        ),
        pytest.param(
            "{from: 'env:canary', name: a}",
            f"secrets[0].from: {KIND}; found a text (did you mean env?)",
            id="a selector",
        ),
        pytest.param(
            "{from: env}",
            f"secrets[0]: lacks the field name: {STORE}",
            id="no name",
        ),
        pytest.param("{name: a}", "secrets[0]: lacks the field from: env, file or keyring", id="no kind"),
        pytest.param(
            "{from: env, name: secrets}",
            f"secrets[0].name: must be {STORE}; found a text (the name secrets asks all stores)",
            id="reserved name",
        ),
        pytest.param(
            "{from: env, name: 'can ary'}",
            f"secrets[0].name: must be {STORE}; found a text",
            id="bad name",
        ),
        pytest.param(
            "{from: env, name: 1}",
            f"secrets[0].name: must be {STORE}; found a number",
            id="a number",
        ),
        pytest.param(
            "{from: env, name: a, params: {directory: canary}}",
            "secrets[0].params.directory: is not a parameter of the store env",
            id="parameter of another store",
        ),
        pytest.param(
            "{from: env, name: a, params: {file_path: canary}}",
            f"secrets[0].params: {NO_SUCH}: directory, service",
            id="unknown parameter",
        ),
        pytest.param(
            "{from: file, name: a}",
            "secrets[0].params: lacks the field directory: where the secret files are",
            id="file without a directory",
        ),
        pytest.param(
            "{from: file, name: a, params: {directory: runtime.yaml}}",
            "secrets[0].params.directory: is not a directory",
            id="a file as directory",
        ),
        pytest.param(
            "{from: keyring, name: a}",
            "secrets[0].from: the keyring store needs the keyring package: python -m pip install 'keyring~=25.7'",
            id="keyring not installed",
        ),
        pytest.param(
            "{from: env, name: a, params: ~}",
            "secrets[0].params: is empty: fill it in, or leave it out",
            id="null params",
        ),
        pytest.param("canary", "secrets[0]: must be a mapping; found a text", id="a text"),
        pytest.param(
            "{from: env, name: a, canary: x}",
            f"secrets[0]: {NO_SUCH}: from, name, params",
            id="unknown field",
        ),
    ],
)
def test_faults_of_a_secret_store(fault: Fault, monkeypatch: pytest.MonkeyPatch, entry: str, message: str) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)  # as where it is not installed
    # The reference is not a second fault: the store it needs may be the one at fault.
    text = f"secrets:\n  - {entry}\n" + with_keys("- ${ secrets:x }")

    assert fault(text) == f"2: {message}"


def test_two_stores_need_two_names(fault: Fault) -> None:
    assert fault("secrets:\n  - {from: env, name: a}\n  - {from: env, name: a}\n") == (
        "2: secrets: the store name a is used twice: each store needs its own"
    )


def test_listing_stores_replaces_the_default_one(fault: Fault) -> None:
    text = "secrets:\n  - {from: file, name: files, params: {directory: /nonexistent}}\n"

    assert fault(text + with_keys("- ${ env:x }"), {"X": KEY}).endswith(
        "refers to a secret store that is not configured; the stores are: secrets, files"
    )
    assert fault(text + with_keys("- ${ secrets:x }"), {"X": KEY}).endswith(
        "secret 'x' was not found; stores asked: files"
    )


def test_the_keyring_is_a_store_where_its_package_is_installed(
    load_text: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = ModuleType("keyring")
    keyring.__spec__ = ModuleSpec("keyring", None)
    passwords = {("runtime", "x"): KEY, ("mine", "x"): f"{KEY}-mine"}
    vars(keyring)["get_password"] = lambda *entry: passwords.get(entry)
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    text = "secrets: [{from: keyring, name: k}, {from: keyring, name: m, params: {service: mine}}]\n"

    config = load_text(text + with_keys("- ${ k:x }\n- ${ secrets:x }"))

    assert [key.reveal() for key in config.auth.keys] == [KEY, f"{KEY}-mine"]


def test_a_directory_of_secrets_with_an_impossible_name_has_no_secrets(fault: Fault) -> None:
    text = f"secrets: [{{from: file, name: files, params: {{directory: {'d' * 300}}}}}]\n"

    assert "secret 'x' in store files: its file cannot be read: file name too long" in fault(
        text + with_keys("- ${ secrets:x }")
    )


def test_stores_are_known_wherever_the_section_stands(load_text: Load, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(KEY)
    text = with_keys("- ${ files:x }") + "secrets:\n  - {from: file, name: files, params: {directory: .}}\n"

    assert [key.reveal() for key in load_text(text).auth.keys] == [KEY]


def test_no_store_at_all(fault: Fault) -> None:
    assert fault("secrets: []\n" + with_keys("- ${ secrets:x }"), {"X": KEY}).endswith("stores asked: none")


# --- runtime ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("http", "flight", "is_fault"),
    [
        ("127.0.0.1:8090", "127.0.0.1:8090", True),
        ("0.0.0.0:8090", "127.0.0.1:8090", True),
        ("127.0.0.1:8090", "[::]:8090", True),
        ("127.0.0.1:8090", "127.0.0.2:8090", False),
        ("127.0.0.1:8090", "127.0.0.1:8091", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_c35_http_and_flight_need_two_ports(
    faults: Faults, load_text: Load, http: str, flight: str, *, is_fault: bool
) -> None:
    text = f'runtime:\n  http: {{bind: "{http}"}}\n  flight: {{bind: "{flight}"}}\n'

    if is_fault:
        (only,) = faults(text)
        assert str(only).endswith(
            f":3: runtime.flight.bind: has the port of runtime.http.bind ({http}): each listener needs its own"
        )
    else:
        load_text(text)
    load_text(text.replace("{bind", "{enabled: false, bind").replace("http: {enabled: false, ", "http: {"))


@pytest.mark.parametrize(
    ("address", "is_warned"),
    [
        ("127.0.0.1:1", False),
        ("127.8.8.8:1", False),
        ("[::1]:1", False),
        ("[::ffff:127.0.0.1]:1", False),
        ("localhost:1", False),
        ("0.0.0.0:1", True),
        ("[::]:1", True),
        ("10.0.0.1:1", True),
        ("[2001:db8::1]:1", True),
        ("example.org:1", True),
    ],
)
def test_c30_an_open_listener_that_others_reach_is_a_warning(
    load_text: Load, yaml_file: Path, address: str, *, is_warned: bool
) -> None:
    text = f'runtime:\n  http: {{bind: "{address}"}}\n  flight: {{enabled: false, bind: "0.0.0.0:2"}}\n'
    sentence = f"listens on {address} without authentication: anybody who reaches it can read all data"

    assert load_text(text).warnings == ((f"{yaml_file}:2: runtime.http.bind: {sentence}",) if is_warned else ())
    off = "  auth: {api-key: {enabled: false}}\n"
    assert len(load_text(text + off).warnings) == is_warned
    on = f"  auth: {{api-key: {{enabled: true, keys: [{KEY}]}}}}\n"
    assert load_text(text + on).warnings == ()


def test_c30_flight_is_warned_about_too(load_text: Load, yaml_file: Path) -> None:
    text = 'runtime:\n  http: {bind: "0.0.0.0:1"}\n  flight: {bind: "[::]:2"}\n'

    assert [warning.partition(": listens")[0] for warning in load_text(text).warnings] == [
        f"{yaml_file}:2: runtime.http.bind",
        f"{yaml_file}:3: runtime.flight.bind",
    ]


TLS = "runtime:\n  tls:\n    enabled: true\n    certificate_file: {cert}\n    key_file: {key}\n"


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    """Files of two certificates, `a` and `b`."""
    authority = trustme.CA()
    for name in ("a", "b"):
        certificate = authority.issue_cert("localhost")
        certificate.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(tmp_path / f"{name}.crt", append=True)
    return authority


@pytest.mark.usefixtures("authority")
def test_tls_files_that_belong_together(load_text: Load, tmp_path: Path) -> None:
    assert load_text(TLS.format(cert="a.crt", key="a.key")).tls == TlsConfig(
        enabled=True, certificate_file=tmp_path / "a.crt", key_file=tmp_path / "a.key"
    )


@pytest.mark.usefixtures("authority")
@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        pytest.param(
            "absent.crt",
            "a.key",
            "4: runtime.tls.certificate_file: cannot be read: there is no such file",
            id="no certificate",
        ),
        pytest.param(
            "a.crt", "absent.key", "5: runtime.tls.key_file: cannot be read: there is no such file", id="no key"
        ),
        pytest.param(
            "a.crt",
            ".",
            "5: runtime.tls.key_file: cannot be read: it is a directory, not a regular file",
            id="a directory",
        ),
        pytest.param("runtime.yaml", "a.key", "4: runtime.tls.certificate_file: is not a PEM file", id="no PEM"),
        pytest.param("a.crt", "b.key", "5: runtime.tls.key_file: does not belong to the certificate", id="of another"),
        pytest.param(
            "a.crt",
            "a.crt",
            "5: runtime.tls.key_file: and the certificate cannot be used: one of them is not valid PEM",
            id="no key in it",
        ),
        pytest.param(
            "a.key",
            "a.key",
            "5: runtime.tls.key_file: and the certificate cannot be used: one of them is not valid PEM",
            id="no certificate in it",
        ),
    ],
)
def test_tls_files_that_cannot_be_used(fault: Fault, cert: str, key: str, message: str) -> None:
    assert fault(TLS.format(cert=cert, key=key)) == message


@pytest.mark.usefixtures("authority")
def test_an_encrypted_key_is_a_fault_and_nobody_is_asked_for_a_password(fault: Fault, tmp_path: Path) -> None:
    private_key = serialization.load_pem_private_key((tmp_path / "a.key").read_bytes(), password=None)
    (tmp_path / "a.key").write_bytes(
        private_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )

    assert fault(TLS.format(cert="a.crt", key="a.key")) == (
        "5: runtime.tls.key_file: is encrypted: give a key without a passphrase, readable by this user only"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("state", "state"), ("./a/../state", "state"), ("/var/lib/x", "/var/lib/x"), ("../state", "../state")],
)
def test_the_state_directory_begins_beside_the_yaml(
    load_text: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    monkeypatch.chdir("/")

    config = load_text(f"runtime: {{state_dir: {text}}}\n")

    assert config.state_dir == Path((tmp_path / expected).parts[0], *(tmp_path / expected).parts[1:]).resolve()


def test_a_state_directory_too_long_for_sockets_is_a_fault(fault: Fault, load_text: Load) -> None:
    longest = MAX_SOCKET_PATH_BYTES - SOCKET_NAME_BYTES
    fitting = f"/{'d' * (longest - 1)}"

    assert str(load_text(f"runtime: {{state_dir: {fitting}}}\n").state_dir) == fitting
    assert fault(f"runtime:\n  state_dir: {fitting}d\n") == (
        f"2: runtime.state_dir: is too long for Unix sockets: its absolute path may have {longest} bytes, "
        f"and has {longest + 1}"
    )
    assert "and has" in fault(f"runtime:\n  state_dir: /{'é' * (longest // 2 + 1)}\n")


def test_the_default_state_directory_may_be_too_long_too(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 90)
    directory.mkdir()
    (directory / "runtime.yaml").write_text("{}\n")

    with pytest.raises(ConfigError, match=r"runtime\.state_dir: is too long for Unix sockets"):
        load(directory / "runtime.yaml", {})


@pytest.mark.parametrize("text", [".", "..", "/", "./x/.."])
def test_a_state_directory_around_the_yaml_is_a_fault(fault: Fault, text: str) -> None:
    assert fault(f"runtime:\n  state_dir: {text}\n") == (
        "2: runtime.state_dir: holds this configuration: name a directory that is the runtime's alone"
    )


# --- datasets and views -----------------------------------------------------------------------------------------------


FORMAT = "params.file_format"
FORMATS = "must be parquet, csv, json or ndjson"
SQL = "acceleration.refresh_sql"
DURATION = "a duration such as 30s, 500ms, 1.5m, 1h or 1d"
INDEXES = "acceleration.indexes"
INTERVAL = "acceleration.refresh_check_interval"


def dataset(fields: str) -> str:
    return f"datasets:\n  - {{from: 'file:a.csv', name: a, {fields}}}\n"


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("file:a.csv", "{directory}/a.csv"),
        ("file:data/", "{directory}/data/"),
        ("file:./a.csv", "{directory}/./a.csv"),
        ("file://a.csv", "{directory}/a.csv"),
        ("file:/data/a.csv", "/data/a.csv"),
        ("file:///data/a.csv", "/data/a.csv"),
        ("file:data/*.csv", "{directory}/data/*.csv"),
        ("file:a b.csv", "{directory}/a b.csv"),
    ],
)
def test_sources_begin_beside_the_yaml(load_text: Load, tmp_path: Path, source: str, file: str) -> None:
    (only,) = load_text(f"datasets: [{{from: '{source}', name: a}}]\n").datasets

    assert (only.from_, only.location) == (source, file.format(directory=tmp_path))
    assert only.acceleration == AccelerationConfig(enabled=False)
    assert only.params == {}


def test_brackets_in_the_yamls_place(tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("b")  # short: a socket in the state directory has a longest path
    directory = tmp_path / "[data]"
    directory.mkdir()
    (directory / "runtime.yaml").write_text(
        "datasets: [{from: 'file:*.csv', name: a}, {from: 'file:b.csv', name: b}]\n"
    )

    pattern, plain = load(directory / "runtime.yaml", {}).datasets

    assert pattern.location == f"{tmp_path}/[[]data]/*.csv"
    assert plain.location == f"{directory}/b.csv"


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("snowflake:x", NO_SNOWFLAKE),
        ("FILE:a.csv", "write file: before a path"),
        ("data/a.csv", "write file: before a path"),
        ("file", "write file: before a path"),
        ("file:${ env:x }", "a secret reference is resolved in API keys and dataset params only"),
    ],
)
def test_other_sources_are_faults(fault: Fault, source: str, hint: str) -> None:
    message = fault(f'datasets: [{{from: "{source}", name: a}}]\n')

    assert message.startswith(f"1: datasets[0].from: must be {SOURCE}; found")
    assert message.endswith(f"({hint})")


@pytest.mark.parametrize("source", ["file:", "file://", "file: "])
def test_a_connector_says_what_follows_it(fault: Fault, source: str) -> None:
    assert fault(f'datasets: [{{from: "{source}", name: a}}]\n') == (
        "1: datasets[0].from: must be file: and the path of a file, a directory or a glob "
        "(there is no path after the colon)"
    )


@pytest.mark.parametrize("name", ["a", "_", "A1_b", "x" * 63, "select", "_s", "_s1x"])
def test_names(load_text: Load, name: str) -> None:
    config = load_text(f"datasets: [{{from: 'file:a', name: {name}}}]\nviews: [{{name: v, sql: x}}]\n")

    assert config.datasets[0].name == name


@pytest.mark.parametrize(
    "name", ["1a", "a-b", "a.b", '"a b"', "é", "x" * 64, '"a\\"b"', '"a;b"', "[a]", "''", "a\u0301"]
)
@pytest.mark.parametrize("section", ["datasets: [{from: 'file:a', name: %s}]", "views: [{sql: x, name: %s}]"])
def test_what_is_no_name(fault: Fault, name: str, section: str) -> None:
    assert "[0].name: must be a name of letters, digits and _, no digit first" in fault(section % name)


@pytest.mark.parametrize(
    "name",
    [
        *("information_schema", "pg_catalog", "Information_Schema", "runtime", "main", "_catalog", "_catalog2"),
        *("duckdb_tables", "PG_class", "sqlite_master", "pragma_x", "_s1", "_S20"),
    ],
)
@pytest.mark.parametrize("section", ["datasets: [{from: 'file:a', name: %s}]", "views: [{sql: x, name: %s}]"])
def test_names_of_the_engine_are_refused(fault: Fault, name: str, section: str) -> None:
    assert fault(section % name).endswith(f"found {name!r} (the engine reserves this name)")


def test_c20_names_are_unique_whatever_their_case(faults: Faults) -> None:
    text = """
datasets:
  - {from: 'file:a', name: a}
  - {from: 'file:b', name: A}
views:
  - {name: a, sql: SELECT 1}
  - {name: b, sql: SELECT 1}
  - {name: 1, sql: SELECT 1}
  - {name: 1, sql: SELECT 1}
  - B
"""

    assert [f"{fault.yaml_path}: {fault.message}" for fault in faults(text) if "twice" in fault.message] == [
        "datasets[1].name: the name A is used twice: by datasets[0] on line 3 and here on line 4",
        "views[0].name: the name a is used twice: by datasets[0] on line 3 and here on line 6",
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("on_schema_change: ignore", "on_schema_change: must be fail or accept; found 'ignore'"),
        ("params: {file_format: orc}", f"{FORMAT}: {FORMATS}; found 'orc'"),
        ("params: {file_fromat: csv}", "params.file_fromat: unknown field; did you mean file_format?"),
        ("params: {file_format: [csv]}", f"{FORMAT}: {FORMATS}; found a list"),
        ("params: {file_format: '${x}'}", f"{FORMAT}: {MalformedReferenceError()}"),
        ("params: {file_format: '${ env:absent }'}", f"{FORMAT}: secret 'absent' was not found; stores asked: env"),
        ("params: {file_format: '${ env:canary }'}", f"{FORMAT}: {FORMATS}; found a text"),
        ("params: ~", "params: is empty: fill it in, or leave it out"),
        ("acceleration: ~", "acceleration: is empty: fill it in, or leave it out"),
        ("acceleration: {refresh_mode: cdc}", "acceleration.refresh_mode: must be full or append; found 'cdc'"),
        ("time_column: ''", "time_column: must be the name of a column; found '' (it is blank)"),
        ("acceleration: {refresh_sql: ' '}", f"{SQL}: must be one SELECT statement; found ' ' (it is blank)"),
        (
            "acceleration: {primary_key: ''}",
            "acceleration.primary_key: must be the name of one column; found '' (it is blank)",
        ),
        (
            "acceleration: {primary_key: '(a, b)'}",
            "acceleration.primary_key: must be the name of one column; found '(a, b)' (an index has one column)",
        ),
        (
            "acceleration: {indexes: [a]}",
            f"{INDEXES}: must be a mapping of names of columns to enabled or unique; found a list",
        ),
        (
            "acceleration: {indexes: {a: uniqe}}",
            f"{INDEXES}.a: must be enabled or unique; found 'uniqe' (did you mean unique?)",
        ),
        (
            "acceleration: {indexes: {'(a, b)': unique}}",
            f"{INDEXES}.'(a, b)': must be the name of one column; found '(a, b)' (an index has one column)",
        ),
        (
            "acceleration: {indexes: {' ': unique}}",
            f"{INDEXES}.' ': must be the name of one column; found ' ' (it is blank)",
        ),
        ("acceleration: {enabled: yes}", "acceleration.enabled: must be true or false; found 'yes'"),
        (
            "acceleration: {refresh_check_interval: 10}",
            f"{INTERVAL}: must be {DURATION}, from 100ms to 365d; found '10' (add a unit, one of ms, s, m, h, d)",
        ),
    ],
)
def test_faults_of_a_dataset(fault: Fault, fields: str, message: str) -> None:
    assert fault(dataset(fields), {"CANARY": "canary"}) == f"2: datasets[0].{message}"


def test_append_needs_a_time_column(fault: Fault) -> None:
    assert fault(dataset("acceleration: {refresh_mode: append}")) == (
        "2: datasets[0]: lacks the field time_column, which tells refresh_mode append which rows are newer"
    )


@pytest.mark.parametrize("fields", ["time_column: t", "time_column: t, acceleration: {refresh_mode: full}"])
def test_a_time_column_without_append_is_taken_with_a_warning(load_text: Load, fields: str) -> None:
    config = load_text(dataset(fields))

    assert config.datasets[0].time_column == "t"
    assert [line.removesuffix(" for a refresh") for line in config.warnings if "time_column" in line] == [
        f"{config.file}:2: datasets[0].time_column: has no effect unless refresh_mode is append, here or in a request"
    ]


def test_params_take_references(load_text: Load) -> None:
    (only,) = load_text(dataset("params: {file_format: 'nd${ env:x }'}"), {"X": "json"}).datasets

    assert only.params == {"file_format": "ndjson"}


def test_params_are_not_resolved_while_the_stores_are_at_fault(fault: Fault) -> None:
    text = "secrets: [{from: nothing, name: a}]\n" + dataset("params: {file_format: '${ env:x }'}")

    assert fault(text).startswith("1: secrets[0].from")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("acceleration: {}", AccelerationConfig(enabled=True)),
        ("acceleration: {enabled: false}", AccelerationConfig(enabled=False)),
        ("acceleration: {refresh_check_interval: 1s}", AccelerationConfig(enabled=True, refresh_check_interval_s=1.0)),
    ],
)
def test_a_block_without_enabled_switches_acceleration_on(
    load_text: Load, fields: str, expected: AccelerationConfig
) -> None:
    assert load_text(dataset(fields)).datasets[0].acceleration == expected


def test_faults_of_a_view(faults: Faults) -> None:
    text = "views:\n  - {name: v, sql: ''}\n  - {name: w, sql: ~}\n  - {}\n  - {name: x, sql: '${ env:x }'}\n"

    assert [str(fault).partition("runtime.yaml:")[2].partition(";")[0] for fault in faults(text)] == [
        "2: views[0].sql: must be one SELECT statement",
        "3: views[1].sql: is empty: it must be one SELECT statement, or be left out",
        "4: views[2]: lacks the field name: a name of letters, digits and _, no digit first, 63 characters at most",
        "4: views[2]: lacks the field sql: one SELECT statement",
        "5: views[3].sql: must be one SELECT statement",
    ]


# --- the schema itself ------------------------------------------------------------------------------------------------


def test_every_path_is_listed_once_with_what_is_expected() -> None:
    paths = field_paths()

    assert len(paths) == len(set(paths))
    assert "runtime.auth.api-key.keys[]" in paths
    assert "datasets[].acceleration.refresh_sql" in paths
    assert all(described_fields().values())


def test_names_lead_to_their_paths() -> None:
    assert paths_by_name()["keys"] == ("runtime.auth.api-key.keys",)
    assert paths_by_name()["api_key"] == ("runtime.auth.api-key",)
    assert paths_by_name()["sql"] == ("views[].sql",)
