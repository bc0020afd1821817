"""How `http:`, `https:` and `s3:` are declared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtimeconf.model import DatasetConfig
from tests.runtimeconf.texts import Fault, Load

SECRET = "canary-3bZ"


def text_of(source: str, params: dict[str, str]) -> str:
    dataset = {"from": source, "name": "d"} | ({"params": params} if params else {})
    return json.dumps({"datasets": [dataset]})


def read(load_text: Load, source: str, **params: str) -> DatasetConfig:
    (dataset,) = load_text(text_of(source, params), {"TOKEN": SECRET}).datasets
    return dataset


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
def test_a_url_is_taken(load_text: Load, source: str, location: str) -> None:
    dataset = read(load_text, source)

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
def test_what_is_no_url_is_a_fault_that_does_not_show_it(fault: Fault, source: str, hint: str) -> None:
    message = fault(text_of(source, {}))

    assert message.startswith(
        "1: datasets[0].from: must be https: and the rest of the URL of a file, such as //host/data/flights.parquet"
    )
    assert hint in message
    assert SECRET not in message


def test_values_are_checked_and_kept_as_texts(load_text: Load, tmp_path: Path) -> None:
    dataset = read(
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
        ({"http_query": "a#b"}, ".http_query: must be what follows the question mark of the URL"),
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
    message = fault(text_of("https://host/a.csv", params), {"TOKEN": SECRET})

    assert message.startswith("1: datasets[0].params")
    assert said in message
    assert SECRET not in message
