"""The parameters of every connector, and that no fault shows a password."""

import sys
from pathlib import Path

import pytest

from runtimeconf.connectors import CONNECTORS, all_params
from runtimeconf.connectors.connector import Package
from tests.runtimeconf.configurations import (
    FLIGHTSQL,
    POSTGRES,
    SECRET,
    Fault,
    Load,
    dataset_text,
    load_dataset,
    required,
)

TOKEN = "${ env:TOKEN }"
S3_KEYS = {"s3_key": TOKEN, "s3_secret": TOKEN}


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
                "http_query": "a=b%20c",
                "http_password": SECRET,
                "http_headers": f"X-A: 1\n\nX-B: {SECRET}\n",
                "http_tls_root_certificate_file": "{directory}/root.pem",
                "client_timeout": "90.0",
                "max_download_size": "2048",
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
            {"csv_delimiter": "\t", "null_values": "NULL\nn/a"},
        ),
        ("s3://bucket/a.xlsx", {"sheet": "Q1 'x'", "range": "b3:f", "csv_has_header": "true"}, {"range": "B3:F"}),
        ("duckdb:t", {"duckdb_open": "/data/a.duckdb"}, {}),
        ("duckdb:t", {"duckdb_open": "a.duckdb"}, {"duckdb_open": "{directory}/a.duckdb"}),
        *(
            ("delta:t", {"s3_endpoint": endpoint, **more}, {"s3_endpoint": endpoint.rstrip("/")})
            for endpoint, more in (
                ("http://127.0.0.1:9000/", {}),
                ("http://localhost:9000", {}),
                ("http://[::1]:9000", {}),
                ("http://minio:9000", {"allow_http": "true"}),
                ("https://minio", {}),
            )
        ),
    ],
)
def test_values_are_checked_resolved_and_kept_as_texts(
    load_text: Load, tmp_path: Path, source: str, params: dict[str, str], kept: dict[str, str]
) -> None:
    dataset = load_dataset(load_text, source, params)

    changed = {name: value.replace("{directory}", str(tmp_path)) for name, value in kept.items()}
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
    assert all("is written out: a secret reference keeps it out of this file" in warning for warning in warnings)


FAULTS: dict[str, tuple[tuple[dict[str, str], str], ...]] = {
    "https://host/a.csv": (
        ({"http_port": "0"}, ".http_port: must be a port from 1 to 65535; found '0'"),
        ({"http_port": "65536"}, ".http_port: must be a port from 1 to 65535; found '65536'"),
        ({"http_query": f"a={SECRET}#b"}, ".http_query: must be what follows the question mark of the URL"),
        ({"http_password": "x"}, ": has http_password, but no http_username"),
        ({"http_username": "a:b"}, ": has a colon in http_username"),
        ({"http_username": "u", "http_bearer_token": TOKEN}, ": has http_username and http_bearer_token: keep one"),
        (
            {"http_bearer_token": TOKEN, "http_headers": f"authorization: {TOKEN}"},
            ": has http_bearer_token and an Authorization header in http_headers: keep one",
        ),
        ({"http_headers": TOKEN}, ".http_headers: must be headers such as X-Token: abc, one a line"),
        ({"http_headers": f"Host: {TOKEN}"}, "(Host is set by the runtime itself)"),
        ({"http_headers": f"X-A: é{TOKEN}"}, "a name, a colon and a value of printable ASCII"),
        ({"http_headers": f"X-A: {TOKEN}" + "x" * 8192}, "it is longer than 8,192 characters"),
        ({"http_bearer_token": f"é{TOKEN}"}, ".http_bearer_token: must be a bearer token; found a text (print"),
        ({"http_bearer_token": ""}, ".http_bearer_token: must be a bearer token; found a text (it is empty)"),
        ({"client_timeout": "0s"}, ".client_timeout: must be a duration"),
        ({"max_download_size": "much"}, ".max_download_size: must be a size in bytes"),
    ),
    "file:a.csv.gz": (
        *(({"csv_delimiter": text}, ".csv_delimiter: must be one character, such as ; or") for text in (";;", "x", "")),
        *(({"csv_quote": text}, ".csv_quote: must be one character, or empty for none") for text in ("''", "1", "«")),
        ({"csv_escape": ""}, ".csv_escape: must be one character; found '' (exactly one)"),
        ({"csv_has_header": "no"}, ".csv_has_header: must be true or false"),
        ({"encoding": "utf8"}, "utf-8, utf-16, latin-1 or windows-1252; found 'utf8' (did you mean utf-8?)"),
        ({"skip_rows": "3"}, ".skip_rows: must be a whole number from 0 to 10000; found '3' (without quotes)"),
        *(({"null_values": text}, ".null_values: must be a list of texts") for text in ("", "NA,,x", "N\x07A")),
        *(
            ({"date_format": text}, ".date_format: must be a strptime format such as %d.%m.%Y")
            for text in ("dd.mm.yyyy", "%d.%m", "%d.%m.%Y %Q", "%d.%m.%y%Y", "%d.%m.%Y%", "%d.%m.%Y %z", "%-p%d%m%y")
        ),
        ({"decimal_separator": ";"}, ".decimal_separator: must be . or ,; found ';'"),
        ({"thousands_separator": "_"}, ".thousands_separator: must be a point, a comma, an apostrophe or a space"),
        ({"thousands_separator": "."}, ": has thousands_separator equal to decimal_separator, which is . unless set"),
        ({"csv_delimiter": '"'}, ": has csv_delimiter equal to csv_quote"),
        ({"csv_delimiter": "!", "csv_escape": "!"}, ": has csv_delimiter equal to csv_escape"),
        (
            {"csv_delimiter": ";", "null_values": "a;b"},
            ": has null_values that hold the csv_delimiter or the csv_quote",
        ),
        ({"file_compression_type": "gzip"}, "GZIP, ZSTD or UNCOMPRESSED; found 'gzip' (did you mean GZIP?)"),
        ({"file_format": "xls"}, ".file_format: must be parquet, csv, tsv, json, ndjson, jsonl or xlsx; found 'xls'"),
        ({"delimiter": ";"}, ".delimiter: unknown field; did you mean csv_delimiter?"),
        ({"sheet": "x"}, ".sheet: is a parameter of xlsx files, and not of csv"),
    ),
    "s3://bucket/a.parquet": (
        ({"skip_rows": "1"}, ".skip_rows: must be"),
        ({"encoding": "utf-8"}, ".encoding: is a parameter of csv files, and not of parquet"),
        ({"file_compression_type": "GZIP"}, ": is a parameter of csv and json files, and not of parquet"),
    ),
    "https://host/a.xlsx": (
        *(
            ({"range": text}, ".range: must be a range of cells such as B3:F200 or B3:F")
            for text in ("B3", "F1:B3", "B3:F2", "B:F5", "B0:F5", "AAAA1:B2")
        ),
        *(({"sheet": text}, ".sheet: must be the name of a sheet") for text in (" ", "x" * 32)),
        ({"csv_delimiter": ";"}, ".csv_delimiter: is a parameter of csv files, and not of xlsx"),
    ),
    "s3://bucket/a": (
        ({"s3_key": TOKEN}, ": has only one of s3_key and s3_secret"),
        ({"s3_secret": TOKEN}, ": has only one of s3_key and s3_secret"),
        ({"s3_session_token": TOKEN}, ": has s3_session_token, but no s3_key and s3_secret"),
        ({"s3_auth": "key"}, ": has s3_auth: key, but no s3_key and s3_secret"),
        ({"s3_auth": "public", **S3_KEYS}, ": has both s3_auth: public and s3_key: keep one"),
        ({"s3_auth": "iam_role", **S3_KEYS}, ": has both s3_auth: iam_role and s3_key: keep one"),
        ({"s3_endpoint": "http://minio:9000"}, ": has an s3_endpoint without TLS"),
        ({"s3_endpoint": "http://minio:9000", "allow_http": "false"}, ": has an s3_endpoint without TLS"),
        ({"s3_endpoint": f"https://AKIA:{SECRET}@minio"}, "no user or password before the host"),
        ({"s3_endpoint": f"https://minio/{SECRET}"}, "only the scheme, the host and the port"),
        ({"s3_endpoint": "minio:9000"}, "a URL begins with http:// or https://"),
        ({"s3_region": "eu.central"}, ".s3_region: must be the region of the bucket, such as eu-central-1"),
        ({"s3_auth": "iam-role"}, ".s3_auth: must be public, key or iam_role"),
        ({"s3_key": f"é{TOKEN}", "s3_secret": TOKEN}, ".s3_key: must be an access key id; found a text"),
    ),
    "delta:t": tuple(
        ({"s3_endpoint": url}, ".s3_endpoint: must be a URL such as https://minio.example.org:9000")
        for url in (
            *(f"https://user:{SECRET}@host", f"https://host?x={SECRET}", "ftp://host", "https://", "https://host/path"),
            *("https://host#x", "https://ho st", "https://host:99999", "https://[::1"),
        )
    ),
    "iceberg:t": (
        ({"s3_key": TOKEN}, ": has only one of s3_key and s3_secret"),
        ({"iceberg_table": "a.b"}, ": has only one of iceberg_catalog and iceberg_table"),
        ({"iceberg_catalog": "c.db"}, ": has only one of iceberg_catalog and iceberg_table"),
        ({"iceberg_catalog_name": "x"}, ": has iceberg_catalog_name, but no iceberg_catalog"),
        (
            {"iceberg_catalog": "c.db", "iceberg_table": "b"},
            ": has an iceberg_table that is not a namespace, a dot and a name",
        ),
    ),
    "postgres:t": (
        ({**POSTGRES, "pg_port": "0"}, ".pg_port: must be a port from 1 to 65535; found '0'"),
        ({**POSTGRES, "pg_port": "65536"}, ".pg_port: must be a port from 1 to 65535; found '65536'"),
        ({**POSTGRES, "pg_host": "a b"}, ".pg_host: must be a host name, an IP address, or the absolute"),
        ({**POSTGRES, "pg_host": "/a,b"}, "(a comma would name a second host)"),
        ({**POSTGRES, "pg_host": f"postgresql://u:{SECRET}@host/db"}, "found a text"),
        ({**POSTGRES, "pg_host": f"u:{SECRET}@host"}, "found a text"),
        ({**POSTGRES, "pg_sslmode": "allow"}, ".pg_sslmode: must be disable, prefer, require, verify-ca"),
        ({**POSTGRES, "duckdb_open": "a"}, ".duckdb_open: is not a parameter of the connector postgres"),
        ({**POSTGRES, "pg_password": "x"}, ".pg_password: unknown field; did you mean pg_pass?"),
        ({**POSTGRES, "user": "x"}, ".user: unknown field; did you mean pg_user?"),
        ({"pg_host": "a", "pg_db": "a"}, ": lacks the field pg_user: the name of a user"),
    ),
    "sqlite:a.db": (
        ({"sqlite_table": "t", "zzz": "x"}, "the fields here are: sqlite_table, sqlite_types"),
        ({}, ": lacks the field sqlite_table: the name of a table or view"),
        ({"sqlite_table": "t", "sqlite_types": "x"}, ".sqlite_types: must be declared or text; found 'x'"),
    ),
    "duckdb:t": (({}, ": lacks the field duckdb_open: the path of a database file"),),
    "flightsql:t": (
        *(
            ({"flightsql_endpoint": url}, ".flightsql_endpoint: must be a URL such as")
            for url in (
                *("127.0.0.1:50051", "grpc://host", "grpc://host:x", "https://host:1/path"),
                *(f"grpc://u:{SECRET}@host:1", f"grpc://host:1?token={SECRET}"),
            )
        ),
        (
            {"flightsql_endpoint": f"grpc://u:{TOKEN}@host:1"},
            "found a text (put user and password into flightsql_username and flightsql_password)",
        ),
        (
            {"flightsql_endpoint": "grpc://host:1", "flightsql_username": "u"},
            ": has only one of flightsql_username and flightsql_password",
        ),
        (
            {**FLIGHTSQL, "flightsql_tls_root_certificate_file": "ca.pem"},
            ": has flightsql_tls_root_certificate_file, but flightsql_endpoint has no TLS",
        ),
        (
            {**FLIGHTSQL, "flightsql_token": TOKEN, "flightsql_username": "u", "flightsql_password": TOKEN},
            ": has both flightsql_token and flightsql_username or flightsql_password: keep one",
        ),
        ({**FLIGHTSQL, "flightsql_token": f"{TOKEN}-é"}, "found a text (printable ASCII)"),
    ),
}


@pytest.mark.parametrize(
    ("source", "params", "said"), [(source, *case) for source, cases in FAULTS.items() for case in cases]
)
def test_parameters_that_do_not_fit_are_faults(fault: Fault, source: str, params: dict[str, str], said: str) -> None:
    message = fault(dataset_text(source, params), {"TOKEN": SECRET})

    assert message.startswith("1: datasets[0].params")
    assert said in message
    assert SECRET not in message


@pytest.mark.parametrize("value", ["canary\nb", "canary\0", "canary" * 3000])
@pytest.mark.parametrize(("source", "name"), [("postgres:t", "pg_pass"), ("flightsql:t", "flightsql_password")])
def test_an_invalid_credential_is_not_shown(fault: Fault, source: str, name: str, value: str) -> None:
    message = fault(dataset_text(source, {**required(source), name: TOKEN}), {"TOKEN": value})

    assert message.endswith("(it has several lines, or is longer than 16,384 characters)")
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
        f"1: datasets[0].params: has {what} without TLS: everybody on the way reads {shown}; allow_http: true allows it"
    )
    assert load_dataset(load_text, *read_from(what, remote, {**params, "allow_http": "true"}))
    assert all(load_dataset(load_text, *read_from(what, url, params)) for url in SAFE[what])
    assert load_dataset(load_text, *read_from(what, remote, harmless))


def test_connectors_that_share_a_parameter_share_its_declaration() -> None:
    declared = {id(param) for connector in CONNECTORS.values() for param in connector.params}

    assert len(declared) == len(all_params())


@pytest.mark.parametrize(
    ("source", "module", "requirement"),
    [
        ("s3://bucket/a", "botocore", "botocore~=1.44"),
        ("delta:t", "deltalake", "deltalake~=1.6"),
        ("delta:s3://lake/t", "botocore", "botocore~=1.44"),
        ("iceberg:t", "pyiceberg", "pyiceberg~=0.12"),
        ("postgres:t", "adbc_driver_postgresql", "adbc-driver-postgresql~=1.13"),
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
        "1: datasets[0].from: this source needs a library (the extra sources has it): "
        f"python -m pip install '{requirement}'"
    )


def test_a_table_on_disk_needs_no_library_to_sign_requests(load_text: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)  # as where it is not installed

    assert load_dataset(load_text, "delta:t", {}).location
    assert CONNECTORS["duckdb"].packages == ()
