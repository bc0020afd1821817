"""The sections of the configuration: their values and their faults."""

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from runtimeconf.addresses import ADDRESS, NETWORK
from runtimeconf.errors import ConfigError
from runtimeconf.loader import load
from runtimeconf.model import (
    AccelerationConfig,
    DatasetConfig,
    FlightConfig,
    HistoryConfig,
    HttpConfig,
    IndexConfig,
    MetricsConfig,
    QueryConfig,
    ResultsCacheConfig,
    RuntimeConfig,
    TlsConfig,
    TracesConfig,
    ViewConfig,
)
from runtimeconf.schema import MAX_SOCKET_PATH_BYTES, SOCKET_NAME_BYTES
from system.addresses import Address
from tests.corpus import each
from tests.runtimeconf.configurations import KEY, Fault, Faults, Load, fault_cases

NO_SNOWFLAKE = "the connector snowflake is not supported; export the table to Parquet and write file: or s3:"
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
  http:   {bind: "127.0.0.1:8091", max_body_bytes: 2048, allowed_hosts: [localhost, 127.0.0.1, "[::1]"],
           trusted_proxies: [127.0.0.1, 10.0.0.0/255.0.0.0, "FD00::/8"], keep_alive: 620s}
  flight: {enabled: false, bind: "127.0.0.1:50052", max_message_bytes: 1MiB}
  tls:    {enabled: false, certificate_file: tls/cert.pem, key_file: /etc/key.pem}
  query:
    timeout: 3s
    memory_limit: 512MiB
    workers: 2
    max_queued: 8
    queue_timeout: 500ms
    temp_directory_limit: 0
    slow: 1s
    datafusion_sql: false
  results_cache: {enabled: true, max_bytes: 1MiB}
  metrics: {enabled: true, bind: "127.0.0.1:9091", upstream_names: true}
  history: {enabled: false, sql: true, max_entries: 5, file: logs/../history.jsonl, file_max_bytes: 1MiB, files: 2}
  traces: {endpoint: "http://127.0.0.1:4318", headers: {x-scope: a}, sample: 0.5, timeout: 2s}
  ready_state: on_registered
  shutdown_timeout: 10s
  compatibility: 1.10
  state_dir: state
datasets:
  - from: file:data/flights.parquet
    name: flights
    on_schema_change: accept
    on_empty: fail
    required_for_ready: false
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
            bind=Address("127.0.0.1", 8091),
            max_body_bytes=2048,
            allowed_hosts=("localhost", "127.0.0.1", "[::1]"),
            trusted_proxies=("127.0.0.1/32", "10.0.0.0/8", "fd00::/8"),
            keep_alive_s=620.0,
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
            slow_s=1.0,
            datafusion_sql=False,
        ),
        results_cache=ResultsCacheConfig(enabled=True, max_bytes=1024**2),
        metrics=MetricsConfig(enabled=True, bind=Address("127.0.0.1", 9091), upstream_names=True),
        history=HistoryConfig(
            enabled=False,
            sql=True,
            max_entries=5,
            file=tmp_path / "history.jsonl",
            file_max_bytes=1024**2,
            files=2,
        ),
        traces=TracesConfig(endpoint="http://127.0.0.1:4318", headers={"x-scope": "a"}, sample=0.5, timeout_s=2.0),
        ready_state="on_registered",
        shutdown_timeout_s=10.0,
        compatibility="1.10",
        datasets=(
            DatasetConfig(
                name="flights",
                from_="file:data/flights.parquet",
                required_for_ready=False,
                location=str(tmp_path / "data" / "flights.parquet"),
                on_schema_change="accept",
                on_empty="fail",
                time_column="departed_at",
                params={"file_format": "parquet"},
                acceleration=AccelerationConfig(
                    refresh_mode="append",
                    refresh_check_interval_s=600.0,
                    refresh_timeout_s=300.0,
                    refresh_sql="SELECT * FROM flights",
                    primary_key=("id",),
                    indexes=(IndexConfig(columns=("carrier",)), IndexConfig(columns=("Tail Number",), unique=True)),
                ),
                line=36,
                yaml_path="datasets[0]",
            ),
        ),
        views=(ViewConfig(name="delays", sql="SELECT 1", line=52, yaml_path="views[0].sql"),),
        warnings=config.warnings,
    )


@pytest.mark.parametrize(
    "text", ["{}\n", "version: v2\n", "runtime: {}\n", "kind: Spicepod\ndatasets: []\nviews: []\n"]
)
def test_everything_may_be_left_out(load_text: Load, tmp_path: Path, text: str) -> None:
    assert load_text(text) == RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path / ".runtime")


FAULTS = (
    """
version: v3
=> 1: version: must be v1, v2 or v1beta1; found 'v3'
version: 1
=> 1: version: must be v1, v2 or v1beta1; found '1' (did you mean v1?)
kind: spicepod
=> 1: kind: must be Spicepod; found 'spicepod' (did you mean Spicepod?)
runtime:
=> 1: runtime: is empty: fill it in, or omit it
runtime: []
=> 1: runtime: must be a mapping; found a list
datasets:
=> 1: datasets: is empty: it must be a list, with one item per line after a dash, or be omitted
runtime: {compatibility: 1.1}
=> 1: runtime.compatibility: must be 2.0 or 1.10; found '1.1' (did you mean 1.10?)
runtime: {ready_state: x}
=> 1: runtime.ready_state: must be on_load, on_registered or on_registration; found 'x'
runtime: {cors: {enabled: true}}
=> 1: runtime.cors.enabled: must be false; found 'true'
runtime: {caching: {sql_results: {}}, results_cache: {enabled: true}}
=> 1: runtime.caching: and results_cache are the same setting: remove one
# only a port
runtime: {http: {bind: 8090}}
=> 1: runtime.http.bind: must be ADDRESS; found '8090'
runtime: {http: {allowed_hosts: []}}
=> 1: runtime.http.allowed_hosts: is an empty list: list at least 1, or omit the field
runtime: {http: {trusted_proxies: [proxy.example.com, 10.1.2.3/8, 0.0.0.0/0, "::ffff:10.0.0.1", "fe80::1%eth0"]}}
=> 1: runtime.http.trusted_proxies[0]: must be NETWORK; found 'proxy.example.com'
=> 1: runtime.http.trusted_proxies[1]: must be NETWORK; found '10.1.2.3/8' (did you mean 10.0.0.0/8?)
=> 1: runtime.http.trusted_proxies[2]: must be NETWORK; found '0.0.0.0/0' (it contains every address: list the proxies)
=> 1: runtime.http.trusted_proxies[3]: must be NETWORK; found '::ffff:10.0.0.1' (write it as an IPv4 address)
=> 1: runtime.http.trusted_proxies[4]: must be NETWORK; found 'fe80::1%eth0' (remove the zone)
runtime: {query: {workers: 0}}
=> 1: runtime.query.workers: must be a whole number from 1 to 64; found '0'
runtime: {shutdown_timeout: 0s}
=> 1: runtime.shutdown_timeout: must be a duration such as 30s, 500ms, 1.5m, 1h or 1d, from 1ms to 1h; found '0s'
runtime:
  tls: {enabled: true}
  state_dir: ''
=> 2: runtime.tls: lacks the field certificate_file, which TLS requires
=> 2: runtime.tls: lacks the field key_file, which TLS requires
=> 3: runtime.state_dir: must be the path of a directory used only by the runtime; found '' (it is blank)
runtime: {results_cache: {max_bytes: 1KiB}}
=> 1: runtime.results_cache: lacks the field enabled: true or false
=> 1: runtime.results_cache.max_bytes: must be SIZE, from 64KiB to 1TiB; found '1KiB'
runtime: {results_cache: {}}
=> 1: runtime.results_cache: is empty: fill it in, or omit it
runtime: {metrics: {bind: "9090", port: 1}}
=> 1: runtime.metrics.port: unknown field; the fields here are: enabled, bind, upstream_names
=> 1: runtime.metrics: lacks the field enabled: true or false
=> 1: runtime.metrics.bind: must be ADDRESS; found '9090'
runtime: {metrics: {enabled: true, bind: "127.0.0.1:8090"}}
=> 1: runtime.metrics.bind: uses the same port as runtime.http.bind (127.0.0.1:8090): each listener needs its own
runtime: {metrics: {enabled: true, bind: "0.0.0.0:50051"}}
=> 1: runtime.metrics.bind: uses the same port as runtime.flight.bind (127.0.0.1:50051): each listener needs its own
runtime: {history: {max_entries: 0, file_max_bytes: 1KiB, files: 0, sql: 1}}
=> 1: runtime.history.sql: must be true or false; found '1'
=> 1: runtime.history.max_entries: must be a whole number from 1 to 1000000; found '0'
=> 1: runtime.history.file_max_bytes: must be SIZE, from 1MiB to 1TiB; found '1KiB'
=> 1: runtime.history.files: must be a whole number from 1 to 1000; found '0'
# a field one level too high
runtime: {timeout: 3s}
=> 1: runtime.timeout: unknown field; did you mean runtime.query.timeout or runtime.traces.timeout?
runtime: {http: {bnid: x}}
=> 1: runtime.http.bnid: unknown field; did you mean bind?
name: "a\\nb"
=> 1: name: must be a name; found 'a\\nb' (it contains a control character)
runtime: {http: {"a b\\n": x}}
=> 1: runtime.http.'a b\\n': unknown field; the fields here are: HTTP_FIELDS
""".replace("ADDRESS", ADDRESS.expected)
    .replace("HTTP_FIELDS", "bind, max_body_bytes, allowed_hosts, trusted_proxies, keep_alive")
    .replace("NETWORK", NETWORK.expected)
    .replace("HTTP_FIELDS", "bind, max_body_bytes, allowed_hosts, trusted_proxies, keep_alive")
    .replace("SIZE", "a size in bytes such as 1048576, 128MiB or 1GiB")
)


@each(("text", "expected"), fault_cases(FAULTS))
def test_faults_of_single_fields(faults: Faults, text: str, expected: list[str]) -> None:
    assert [f"{fault.line}: {fault.yaml_path}: {fault.message}" for fault in faults(text)] == expected


def test_a_very_long_name_is_shortened(fault: Fault) -> None:
    assert fault(f"? {'k' * 100_000}\n: x\n") == (
        f"1: '{'k' * 57}...': unknown field; the fields here are: "
        "version, kind, name, metadata, secrets, runtime, datasets, views, dependencies"
    )


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
runtime:
  caching: {sql_results: {enabled: true}}
  task_history: {enabled: true}
  cors: {enabled: true}
  telemetry: {enabled: false}
  scheduler: {}
datasets:
  - from: snowflake:a
    name: a
    description: canary
    load: on_demand
    acceleration: {engine: duckdb, mode: file, refresh_cron: "* * * * *"}
views:
  - {name: v, sql_ref: v.sql}
"""

    found = faults(text)

    refused = "is not available here: "
    assert [fault.yaml_path for fault in found if fault.message.startswith(refused)] == [
        *("models", "tools", "embeddings", "catalogs", "workers", "functions", "snapshots", "extensions"),
        *("runtime.task_history", "runtime.scheduler", "datasets[0].load", "views[0].sql_ref"),
    ]
    assert [str(fault).partition("runtime.yaml:")[2] for fault in found if refused not in fault.message] == [
        "16: runtime.cors.enabled: must be false; found 'true'",
        f"20: datasets[0].from: must be {SOURCE}; found a string ({NO_SNOWFLAKE})",
        "26: views[0]: lacks the field sql: one SELECT statement",
    ]


@each(
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
    text += "  auth: {api-key: {enabled: false}}\n"

    if is_fault:
        (only,) = faults(text)
        assert str(only).endswith(
            f":3: runtime.flight.bind: uses the same port as runtime.http.bind ({http}): each listener needs its own"
        )
    else:
        load_text(text)
    load_text(text.replace("{bind", "{enabled: false, bind").replace("http: {enabled: false, ", "http: {"))


@each(
    ("address", "is_open"),
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
def test_c30_an_open_listener_that_others_reach_takes_an_explicit_word(
    load_text: Load, faults: Faults, yaml_file: Path, address: str, *, is_open: bool
) -> None:
    text = f'runtime:\n  http: {{bind: "{address}"}}\n  flight: {{enabled: false, bind: "0.0.0.0:2"}}\n'
    with_flight = text.replace("enabled: false, bind", "bind")
    refusal = (
        f"listens on {address}, which other machines can reach, but authentication is off: add API keys to "
        "runtime.auth, or set api-key: {enabled: false} there to let anyone read all data"
    )

    if is_open:
        assert [str(fault) for fault in faults(text)] == [f"{yaml_file}:2: runtime.http.bind: {refusal}"]
    else:
        assert load_text(text).warnings == ()
    assert [fault.yaml_path for fault in faults(with_flight)] == [
        *(["runtime.http.bind"] if is_open else []),
        "runtime.flight.bind",
    ]

    off = "  auth: {api-key: {enabled: false}}\n"
    sentence = f"listens on {address} without authentication: anyone who can reach it can read all data"
    assert load_text(text + off).warnings == ((f"{yaml_file}:2: runtime.http.bind: {sentence}",) if is_open else ())
    assert len(load_text(with_flight + off).warnings) == 1 + is_open

    on = f"  auth: {{api-key: {{enabled: true, keys: [{KEY}]}}}}\n"
    assert load_text(with_flight + on).warnings == ()


def test_an_invalid_auth_block_is_the_only_fault_of_an_open_listener(faults: Faults) -> None:
    text = 'runtime:\n  http: {bind: "0.0.0.0:1"}\n  auth: {api-key: {enabled: nein}}\n'

    assert [fault.yaml_path for fault in faults(text)] == ["runtime.auth.api-key.enabled"]


TLS = "runtime:\n  tls:\n    enabled: true\n    certificate_file: {cert}\n    key_file: {key}\n"


@pytest.fixture
def tls_files(tmp_path: Path) -> None:
    """Files of two certificates, `a` and `b`, and the key of `a` with a passphrase."""
    authority = trustme.CA()
    for name in ("a", "b"):
        certificate = authority.issue_cert("localhost")
        certificate.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(tmp_path / f"{name}.crt", append=True)
    key = serialization.load_pem_private_key((tmp_path / "a.key").read_bytes(), password=None)
    encryption = serialization.BestAvailableEncryption(b"passphrase")
    encrypted = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    (tmp_path / "encrypted.key").write_bytes(encrypted)


@pytest.mark.usefixtures("tls_files")
def test_tls_files_that_belong_together(load_text: Load, tmp_path: Path) -> None:
    assert load_text(TLS.format(cert="a.crt", key="a.key")).tls == TlsConfig(
        enabled=True, certificate_file=tmp_path / "a.crt", key_file=tmp_path / "a.key"
    )


CERTIFICATE, KEY_FILE = "4: runtime.tls.certificate_file:", "5: runtime.tls.key_file:"
NOT_PEM = f"{KEY_FILE} and the certificate cannot be loaded: one of them is not valid PEM"


@pytest.mark.usefixtures("tls_files")
@each(
    ("cert", "key", "message"),
    [
        ("absent.crt", "a.key", f"{CERTIFICATE} cannot be read: there is no such file ('absent.crt')"),
        ("runtime.yaml", "a.key", f"{CERTIFICATE} is not a PEM file ('runtime.yaml')"),
        ("&a absent.crt", "a.key", f"{CERTIFICATE} cannot be read: there is no such file"),
        ("a.crt", "absent.key", f"{KEY_FILE} cannot be read: there is no such file ('absent.key')"),
        ("a.crt", ".", f"{KEY_FILE} cannot be read: it is a directory, not a regular file ('.')"),
        ("a.crt", "b.key", f"{KEY_FILE} does not match the certificate"),
        ("a.crt", "a.crt", NOT_PEM),
        ("a.key", "a.key", NOT_PEM),
        # Nobody is asked for the passphrase.
        (
            "a.crt",
            "encrypted.key",
            f"{KEY_FILE} is encrypted: use a key without a passphrase that only this user can read",
        ),
    ],
)
def test_tls_files_that_cannot_be_used(fault: Fault, cert: str, key: str, message: str) -> None:
    assert fault(TLS.format(cert=cert, key=key)) == message


@pytest.mark.parametrize(
    ("text", "expected"),
    [("state", "state"), ("./a/../state", "state"), ("/var/lib/x", "/var/lib/x"), ("../state", "../state")],
)
def test_the_state_directory_is_relative_to_the_yaml(
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


def test_the_default_state_directory_can_be_too_long(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 90)
    directory.mkdir()
    (directory / "runtime.yaml").write_text("{}\n")

    with pytest.raises(ConfigError, match=r"runtime\.state_dir: is too long for Unix sockets"):
        load(directory / "runtime.yaml", {})


@pytest.mark.parametrize("text", [".", "..", "/", "./x/.."])
def test_a_state_directory_around_the_yaml_is_a_fault(fault: Fault, text: str) -> None:
    assert fault(f"runtime:\n  state_dir: {text}\n") == (
        "2: runtime.state_dir: contains this configuration: use a directory that only the runtime uses"
    )
