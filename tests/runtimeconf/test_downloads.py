"""The settings of `file:`, `http:`, `https:` and `s3:`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.runtimeconf.configurations import SECRET, Fault, Load, dataset_text, load_dataset


@pytest.mark.parametrize(
    ("source", "location"),
    [
        ("https://host/a.csv", "https://host/a.csv"),
        ("http://HOST:8080/a b/ü.csv", "http://host:8080/a%20b/%C3%BC.csv"),
        ("https://[::1]:443/a%20b@c:d.csv", "https://[::1]:443/a%20b@c:d.csv"),
        ("https://[::1]/a", "https://[::1]/a"),
        ("https://host", "https://host/"),
    ],
)
def test_valid_urls(load_text: Load, source: str, location: str) -> None:
    dataset = load_dataset(load_text, source)

    assert (dataset.from_, dataset.location) == (source, location)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (f"https://user:{SECRET}@host/a.csv", "no user or password before the host: parameters hold these"),
        (f"https://{SECRET}@host/a.csv", "no user or password before the host: parameters hold these"),
        (f"https://host/a.csv?token={SECRET}", "everybody who may ask for the datasets sees this: http_query"),
        (f"https://host/a.csv#{SECRET}", "everybody who may ask for the datasets sees this: http_query"),
        ("https://host:0/a.csv", "a port is from 1 to 65535"),
        ("https://host:70000/a.csv", "a port is from 1 to 65535"),
        ("https://ho st/a.csv", "not a host name"),
        ("https://1.2.3/a.csv", "not an IPv4 address"),
        ("https:///a.csv", "not a host and a port"),
        ("https://[::1/a.csv", "not a host and a port"),
        ("https:host/a.csv", "a URL begins with http:// or https://"),
        ("https:", "a URL begins with http:// or https://"),
    ],
)
def test_an_invalid_url_is_a_fault_and_not_shown(fault: Fault, source: str, hint: str) -> None:
    message = fault(dataset_text(source, {}))

    assert message.startswith(
        "1: datasets[0].from: must be https: and the rest of the URL of a file, such as //host/data/flights.parquet"
    )
    assert hint in message
    assert SECRET not in message


def test_values_are_checked_and_kept_as_texts(load_text: Load, tmp_path: Path) -> None:
    dataset = load_dataset(
        load_text,
        "https://host/a",
        file_format="csv",
        http_port="8443",
        http_query="?a=b c",
        http_username="u",
        http_password="${ env:TOKEN }",
        http_headers="X-A: 1\n\nX-B: ${ env:TOKEN }\n",
        http_tls_root_certificate_file="root.pem",
        client_timeout="1.5m",
        max_download_size="2KiB",
    )

    assert dataset.params == {
        "file_format": "csv",
        "http_port": "8443",
        "http_query": "a=b%20c",
        "http_username": "u",
        "http_password": SECRET,
        "http_headers": f"X-A: 1\n\nX-B: {SECRET}\n",
        "http_tls_root_certificate_file": f"{tmp_path}/root.pem",
        "client_timeout": "90.0",
        "max_download_size": "2048",
    }
    assert SECRET not in repr(dataset)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"http_port": "0"}, ".http_port: must be a port from 1 to 65535; found '0'"),
        ({"http_port": "65536"}, ".http_port: must be a port from 1 to 65535; found '65536'"),
        ({"http_query": f"a={SECRET}#b"}, ".http_query: must be what follows the question mark of the URL"),
        ({"http_password": "x"}, ": has http_password, but no http_username"),
        ({"http_username": "a:b"}, ": has a colon in http_username"),
        (
            {"http_username": "u", "http_bearer_token": "${ env:TOKEN }"},
            ": has http_username and http_bearer_token: keep one",
        ),
        (
            {"http_bearer_token": "${ env:TOKEN }", "http_headers": "authorization: ${ env:TOKEN }"},
            ": has http_bearer_token and an Authorization header in http_headers: keep one",
        ),
        ({"http_headers": "${ env:TOKEN }"}, ".http_headers: must be headers such as X-Token: abc, one a line"),
        ({"http_headers": "Host: ${ env:TOKEN }"}, "(Host is set by the runtime itself)"),
        ({"http_headers": "X-A: é${ env:TOKEN }"}, "a name, a colon and a value of printable ASCII"),
        ({"http_headers": "X-A: ${ env:TOKEN }" + "x" * 8192}, "it is longer than 8,192 characters"),
        ({"http_bearer_token": "é${ env:TOKEN }"}, ".http_bearer_token: must be a bearer token; found a text (print"),
        ({"http_bearer_token": ""}, ".http_bearer_token: must be a bearer token; found a text (it is empty)"),
        ({"client_timeout": "0s"}, ".client_timeout: must be a duration"),
        ({"max_download_size": "much"}, ".max_download_size: must be a size in bytes"),
    ],
)
def test_parameters_that_do_not_fit_are_faults(fault: Fault, params: dict[str, str], said: str) -> None:
    message = fault(dataset_text("https://host/a.csv", params), {"TOKEN": SECRET})

    assert message.startswith("1: datasets[0].params")
    assert said in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"http_username": "u", "http_password": "${ env:TOKEN }"}, "http_username and http_password"),
        ({"http_bearer_token": "${ env:TOKEN }"}, "http_bearer_token"),
        ({"http_headers": "X-A: ${ env:TOKEN }", "allow_http": "false"}, "http_headers"),
    ],
)
def test_credentials_need_tls_unless_allow_http_is_set(
    fault: Fault, load_text: Load, params: dict[str, str], shown: str
) -> None:
    said = fault(dataset_text("http://127.example.org/a.csv", params), {"TOKEN": SECRET})

    assert said == (
        f"1: datasets[0].params: has a URL without TLS: everybody on the way reads {shown}; allow_http: true allows it"
    )
    assert load_dataset(load_text, "http://example.org/a.csv", **{**params, "allow_http": "true"})
    for url in ("https://example.org/a.csv", "http://127.0.0.1:80/a.csv", "http://LOCALHOST/a.csv", "http://[::1]/a"):
        assert load_dataset(load_text, url, **params)
    assert load_dataset(load_text, "http://example.org/a.csv", http_query="a=b")


@pytest.mark.parametrize(
    ("source", "location"),
    [
        ("s3://bucket/a.csv", "s3://bucket/a.csv"),
        ("s3://bucket", "s3://bucket/"),
        ("s3://my_Old.Bucket/d/ü b%20?c#*.csv", "s3://my_Old.Bucket/d/ü b%20?c#*.csv"),
        ("s3://bucket//a@b:c.csv", "s3://bucket//a@b:c.csv"),
    ],
)
def test_a_bucket_and_a_key_stay_as_written(load_text: Load, source: str, location: str) -> None:
    dataset = load_dataset(load_text, source)

    assert (dataset.from_, dataset.location) == (source, location)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (f"s3://AKIA:{SECRET}@bucket/a.csv", "nothing but the name of a bucket before the key"),
        (f"s3://{SECRET}@bucket/a.csv", "nothing but the name of a bucket before the key"),
        ("s3://bucket:9000/a.csv", "nothing but the name of a bucket before the key"),
        (f"s3:AKIA:{SECRET}@bucket", "write s3:// before the bucket"),
        ("s3:bucket/a.csv", "write s3:// before the bucket"),
        ("s3:///a.csv", "not the name of a bucket"),
        ("s3://b/a.csv", "not the name of a bucket"),
        ("s3://..bucket/a.csv", "not the name of a bucket"),
        ("s3://bucket/" + "ü" * 513, "a key has at most 1,024 bytes"),
    ],
)
def test_an_invalid_object_is_a_fault_and_not_shown(fault: Fault, source: str, hint: str) -> None:
    message = fault(dataset_text(source, {}))

    assert message.startswith(
        "1: datasets[0].from: must be s3: and a bucket with a key, a prefix or a glob, such as "
        "//bucket/data/flights.parquet"
    )
    assert hint in message
    assert SECRET not in message


def test_parameters_of_s3_are_checked_and_kept_as_texts(load_text: Load, tmp_path: Path) -> None:
    params = {"s3_key": "${ env:TOKEN }", "s3_secret": "${ env:TOKEN }", "s3_session_token": "${ env:TOKEN }"}
    dataset = load_dataset(
        load_text,
        "s3://bucket/a",
        **params,
        s3_auth="key",
        s3_endpoint="http://Minio:9000/",
        allow_http="true",
        s3_region="eu-central-1",
        s3_url_style="vhost",
        s3_tls_root_certificate_file="root.pem",
    )

    assert dataset.params == dict.fromkeys(params, SECRET) | {
        "s3_auth": "key",
        "s3_endpoint": "http://minio:9000",
        "allow_http": "true",
        "s3_region": "eu-central-1",
        "s3_url_style": "vhost",
        "s3_tls_root_certificate_file": f"{tmp_path}/root.pem",
    }
    assert SECRET not in repr(dataset)


KEY = {"s3_key": "${ env:TOKEN }", "s3_secret": "${ env:TOKEN }"}


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"s3_key": "${ env:TOKEN }"}, ": has only one of s3_key and s3_secret"),
        ({"s3_secret": "${ env:TOKEN }"}, ": has only one of s3_key and s3_secret"),
        ({"s3_session_token": "${ env:TOKEN }"}, ": has s3_session_token, but no s3_key and s3_secret"),
        ({"s3_auth": "key"}, ": has s3_auth: key, but no s3_key and s3_secret"),
        ({"s3_auth": "public", **KEY}, ": has both s3_auth: public and s3_key: keep one"),
        ({"s3_auth": "iam_role", **KEY}, ": has both s3_auth: iam_role and s3_key: keep one"),
        ({"s3_endpoint": "http://minio:9000"}, ": has an s3_endpoint without TLS"),
        ({"s3_endpoint": "http://minio:9000", "allow_http": "false"}, ": has an s3_endpoint without TLS"),
        ({"s3_endpoint": f"https://AKIA:{SECRET}@minio"}, "no user or password before the host"),
        ({"s3_endpoint": f"https://minio/{SECRET}"}, "only the scheme, the host and the port"),
        ({"s3_endpoint": "minio:9000"}, "a URL begins with http:// or https://"),
        ({"s3_region": "eu.central"}, ".s3_region: must be the region of the bucket, such as eu-central-1"),
        ({"s3_auth": "iam-role"}, ".s3_auth: must be public, key or iam_role"),
        (
            {"s3_key": "é${ env:TOKEN }", "s3_secret": "${ env:TOKEN }"},
            ".s3_key: must be an access key id; found a text",
        ),
    ],
)
def test_parameters_of_s3_that_do_not_fit_are_faults(fault: Fault, params: dict[str, str], said: str) -> None:
    message = fault(dataset_text("s3://bucket/a", params), {"TOKEN": SECRET})

    assert message.startswith("1: datasets[0].params")
    assert said in message
    assert SECRET not in message


@pytest.mark.parametrize("source", [f"mysql://user:{SECRET}@host/db", f"S3://{SECRET}@bucket", f"ftp:{SECRET}"])
def test_an_unknown_connector_is_a_fault_and_its_source_not_shown(fault: Fault, source: str) -> None:
    message = fault(dataset_text(source, {}))

    assert message.startswith("1: datasets[0].from: must be a connector and where the data is")
    assert SECRET not in message


def test_a_missing_library_is_a_fault_with_its_command(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)

    assert fault(dataset_text("s3://bucket/a", {})) == (
        "1: datasets[0].from: the connector s3 needs a library: python -m pip install 'botocore~=1.44'"
    )


def test_a_file_with_a_password_before_its_path_is_refused_and_not_shown(fault: Fault) -> None:
    message = fault("datasets:\n  - from: file://user:canary@host/a.parquet\n    name: d\n")

    assert "(no user and password before the path: " in message
    assert "canary" not in message


@pytest.mark.parametrize("path", ["//a@b/c.parquet", "a:b@c.parquet", "data/20??/year=*/a.parquet", "a b@c:d/e.csv"])
def test_a_file_may_have_any_other_path(load_text: Load, tmp_path: Path, path: str) -> None:
    config = load_text(f"datasets:\n  - from: 'file:{path}'\n    name: d\n")

    assert config.datasets[0].location == str(tmp_path / path.removeprefix("//"))
