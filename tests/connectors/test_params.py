"""The parameters of every connector, and that no fault shows a password."""

import sys
from pathlib import Path
from typing import Any

import pytest

from runtimeconf.connector import Package
from runtimeconf.plugins import CONNECTORS
from tests.connectors.faults import FAULTS, S3_KEYS, TOKEN, TOKEN_STRING
from tests.runtimeconf.configurations import (
    MSSQL,
    MYSQL,
    POSTGRES,
    SECRET,
    Fault,
    Load,
    dataset_text,
    load_dataset,
    required,
)


@pytest.mark.parametrize(
    ("source", "params", "kept"),
    [
        (
            "https://host/a",
            {
                "file_format": "csv",
                "http_port": "8443",
                "http_query": "?a=b c",
                "http_username": "u",
                "http_password": TOKEN,
                "http_headers": f"X-A: 1\n\nX-B: {TOKEN}\n",
                "http_tls_root_certificate_file": "root.pem",
                "client_timeout": "1.5m",
                "max_download_size": "2KiB",
            },
            {
                "http_port": 8443,
                "http_query": "a=b%20c",
                "http_password": SECRET,
                "http_headers": (("X-A", "1"), ("X-B", SECRET)),
                "http_tls_root_certificate_file": "{directory}/root.pem",
                "client_timeout": 90.0,
                "max_download_size": 2048,
            },
        ),
        (
            "s3://bucket/a",
            {
                **S3_KEYS,
                "s3_session_token": TOKEN,
                "s3_auth": "key",
                "s3_endpoint": "http://Minio:9000/",
                "allow_http": "true",
                "s3_region": "eu-central-1",
                "s3_url_style": "vhost",
                "s3_tls_root_certificate_file": "root.pem",
            },
            {
                **dict.fromkeys(("s3_key", "s3_secret", "s3_session_token"), SECRET),
                "s3_endpoint": "http://minio:9000",
                "allow_http": True,
                "s3_tls_root_certificate_file": "{directory}/root.pem",
            },
        ),
        (
            "iceberg:s3://lake/wh",
            {**S3_KEYS, "iceberg_catalog": "c/cat.db", "iceberg_table": "a.b.t"},
            {"s3_key": SECRET, "s3_secret": SECRET, "iceberg_catalog": "{directory}/c/cat.db"},
        ),
        (
            "postgres:t",
            {**POSTGRES, "pg_sslrootcert": "ca.pem", "pg_host": "DB.Example.com"},
            {"pg_sslrootcert": "{directory}/ca.pem", "pg_pass": SECRET, "pg_host": "db.example.com"},
        ),
        ("postgres:t", {**POSTGRES, "pg_host": "/run/Pg"}, {"pg_pass": SECRET}),
        (
            "mysql:t",
            {**MYSQL, "mysql_sslmode": "required", "mysql_sslrootcert": "ca.pem", "mysql_host": "DB.Example.com"},
            {"mysql_sslrootcert": "{directory}/ca.pem", "mysql_pass": SECRET, "mysql_host": "db.example.com"},
        ),
        ("mysql:shop.t", {"mysql_host": "db", "mysql_user": "u"}, {}),
        (
            "mssql:shop.dbo.t",
            {**MSSQL, "mssql_encrypt": "true", "mssql_sslrootcert": "ca.pem", "mssql_host": "DB.Example.com"},
            {
                "mssql_encrypt": True,
                "mssql_sslrootcert": "{directory}/ca.pem",
                "mssql_password": SECRET,
                "mssql_host": "db.example.com",
            },
        ),
        (
            "mssql:t",
            {"mssql_connection_string": TOKEN_STRING, "mssql_sslrootcert": "/ca.pem"},
            {"mssql_connection_string": TOKEN_STRING.replace(TOKEN, SECRET)},
        ),
        (
            "file:a.txt",
            {
                "file_format": "tsv",
                "file_compression_type": "ZSTD",
                "csv_has_header": "false",
                "csv_delimiter": r"\t",
                "csv_quote": "",
                "csv_escape": "\\",
                "encoding": "utf-16",
                "null_values": "NULL, n/a",
                "date_format": "%-d. %b '%y %I:%M %p",
                "decimal_separator": ",",
                "thousands_separator": " ",
            },
            {"csv_has_header": False, "csv_delimiter": "\t", "null_values": ("NULL", "n/a")},
        ),
        (
            "s3://bucket/a.xlsx",
            {"sheet": "Q1 'x'", "range": "b3:f", "csv_has_header": "true"},
            {"range": "B3:F", "csv_has_header": True},
        ),
        ("duckdb:t", {"duckdb_open": "/data/a.duckdb"}, {}),
        ("duckdb:t", {"duckdb_open": "a.duckdb"}, {"duckdb_open": "{directory}/a.duckdb"}),
        *(
            ("delta:t", {"s3_endpoint": endpoint, **more}, {"s3_endpoint": endpoint.rstrip("/"), **typed})
            for endpoint, more, typed in (
                ("http://127.0.0.1:9000/", {}, {}),
                ("http://localhost:9000", {}, {}),
                ("http://[::1]:9000", {}, {}),
                ("http://minio:9000", {"allow_http": "true"}, {"allow_http": True}),
                ("https://minio", {}, {}),
            )
        ),
    ],
)
def test_values_are_checked_resolved_and_typed(
    load_text: Load, tmp_path: Path, source: str, params: dict[str, Any], kept: dict[str, Any]
) -> None:
    dataset = load_dataset(load_text, source, params)

    changed = {
        name: value.replace("{directory}", str(tmp_path)) if isinstance(value, str) else value
        for name, value in kept.items()
    }
    assert dataset.params == params | changed
    assert SECRET not in repr(dataset)


@pytest.mark.parametrize(
    ("password", "user", "expected"),
    [("written", "u", ["pg_pass"]), (TOKEN, "u", []), (TOKEN, TOKEN, [])],
)
def test_a_secret_that_is_written_out_is_a_warning(
    load_text: Load, password: str, user: str, expected: list[str]
) -> None:
    text = dataset_text("postgres:t", {**POSTGRES, "pg_user": user, "pg_pass": password})

    warnings = load_text(text, {"TOKEN": SECRET}).warnings

    assert [warning.partition("params.")[2].partition(":")[0] for warning in warnings] == expected
    assert all(
        "is in plain text: use a secret reference to keep it out of this file" in warning for warning in warnings
    )


@pytest.mark.parametrize(
    ("source", "params", "said"), [(source, *case) for source, cases in FAULTS.items() for case in cases]
)
def test_parameters_that_do_not_fit_are_faults(fault: Fault, source: str, params: dict[str, str], said: str) -> None:
    message = fault(dataset_text(source, params), {"TOKEN": SECRET})

    assert message.startswith("1: datasets[0].params")
    assert said in message
    assert SECRET not in message


@pytest.mark.parametrize("value", ["canary\nb", "canary\0", "canary" * 3000])
@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("postgres:t", "pg_pass"),
        ("mysql:t", "mysql_pass"),
        ("mssql:t", "mssql_password"),
        ("flightsql:t", "flightsql_password"),
    ],
)
def test_an_invalid_credential_is_not_shown(fault: Fault, source: str, name: str, value: str) -> None:
    message = fault(dataset_text(source, {**required(source), name: TOKEN}), {"TOKEN": value})

    assert message.endswith("(contains a line break, or is longer than 16,384 characters)")
    assert "canary" not in message


SAFE = {
    "a URL": ("https://example.org", "http://127.0.0.1:80", "http://LOCALHOST", "http://[::1]"),
    "a flightsql_endpoint": (
        *("grpc+tls://host", "https://host"),
        *(f"{scheme}://{host}" for scheme in ("grpc", "grpc+tcp", "http") for host in ("localhost", "[::1]")),
    ),
}


def read_from(what: str, url: str, params: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return a source and its parameters; *url* is that of the source or of its endpoint, as *what* says."""
    if what == "a URL":
        return f"{url}/a.csv", params
    return "flightsql:t", {**params, "flightsql_endpoint": f"{url}:1"}


@pytest.mark.parametrize(
    ("what", "scheme", "params"),
    [
        ("a URL", "http", {"http_username": "u", "http_password": TOKEN}),
        ("a URL", "http", {"http_bearer_token": TOKEN}),
        ("a URL", "http", {"http_headers": f"X-A: {TOKEN}", "allow_http": "false"}),
        *(
            ("a flightsql_endpoint", scheme, params)
            for scheme in ("grpc", "grpc+tcp", "http")
            for params in ({"flightsql_token": TOKEN}, {"flightsql_username": "u", "flightsql_password": TOKEN})
        ),
    ],
)
def test_credentials_need_tls_unless_allow_http_is_set(
    fault: Fault, load_text: Load, what: str, scheme: str, params: dict[str, str]
) -> None:
    shown = " and ".join(name for name in params if name != "allow_http")
    remote = f"{scheme}://127.example.org"
    harmless = {"http_query": "a=b"} if what == "a URL" else {}

    said = fault(dataset_text(*read_from(what, remote, params)), {"TOKEN": SECRET})

    assert said == (
        f"1: datasets[0].params: has {what} without TLS, so {shown} would be sent unencrypted: "
        "set allow_http: true to allow it"
    )
    assert load_dataset(load_text, *read_from(what, remote, {**params, "allow_http": "true"}))
    assert all(load_dataset(load_text, *read_from(what, url, params)) for url in SAFE[what])
    assert load_dataset(load_text, *read_from(what, remote, harmless))


@pytest.mark.parametrize(
    ("source", "module", "requirement"),
    [
        ("s3://bucket/a", "botocore", "botocore~=1.44"),
        ("delta:t", "deltalake", "deltalake~=1.6"),
        ("delta:s3://lake/t", "botocore", "botocore~=1.44"),
        ("iceberg:t", "pyiceberg", "pyiceberg~=0.12"),
        ("postgres:t", "adbc_driver_postgresql", "adbc-driver-postgresql~=1.13"),
        ("mysql:t", "pymysql", "pymysql~=1.2"),
        ("mysql:t", "cryptography", "cryptography>=46.0.7"),
        ("graphql:https://host/graphql", "graphql", "graphql-core~=3.3"),
        ("mssql:t", "pymssql", "pymssql~=2.4"),
        ("sqlite:t", "adbc_driver_sqlite", "adbc-driver-sqlite~=1.13"),
        ("flightsql:t", "adbc_driver_flightsql", "adbc-driver-flightsql~=1.13"),
        *((f"{place}a.xlsx", "openpyxl", "openpyxl~=3.1") for place in ("file:", "https://host/", "s3://bucket/")),
    ],
)
def test_a_missing_library_is_a_fault_with_its_install_command(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, source: str, module: str, requirement: str
) -> None:
    monkeypatch.setattr(Package, "is_installed", property(lambda package: package.module != module))

    assert fault(dataset_text(source, required(source)), {"TOKEN": SECRET}) == (
        "1: datasets[0].from: this source needs a library from the sources extra: "
        f"python -m pip install '{requirement}'"
    )


def test_a_table_on_disk_needs_no_library_to_sign_requests(load_text: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)  # as where it is not installed

    assert load_dataset(load_text, "delta:t", {}).location
    assert CONNECTORS["duckdb"].packages == ()
