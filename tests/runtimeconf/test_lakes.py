"""The settings of `delta:` and `iceberg:`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.runtimeconf.configurations import SECRET, Fault, Load, dataset_text, load_dataset

NO_USER = "no user, password or port before the path: everybody who may ask for the datasets sees this"
NO_QUERY = "no query after the path: everybody who may ask for the datasets sees this"
KEYS = {"s3_key": "${ env:TOKEN }", "s3_secret": "${ env:TOKEN }"}


@pytest.mark.parametrize("connector", ["delta", "delta_lake", "iceberg"])
def test_valid_locations_of_a_table(load_text: Load, tmp_path: Path, connector: str) -> None:
    for text, location in {
        "a b/t": f"{tmp_path}/a b/t",
        "/data/t/": "/data/t",
        "file:///data/t": "/data/t",
        "s3://lake/a b/t//": "s3://lake/a b/t",
        "s3a://lake/t": "s3://lake/t",
        "s3://Old_Lake/t": "s3://Old_Lake/t",
    }.items():
        assert load_dataset(load_text, f"{connector}:{text}").location == location


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("delta:", "there is no path after the colon"),
        (
            f"delta:s3://{SECRET}@lake/t",
            "before the key: s3_key, s3_secret and s3_endpoint hold the rest",
        ),
        (f"delta:file://u:{SECRET}@h/t", NO_USER),
        (f"delta://{SECRET}@h/t", NO_USER),
        (f"delta:t?token={SECRET}", NO_QUERY),
        (f"delta:s3://lake/t?token={SECRET}", NO_QUERY),
        ("delta:s3://a..b/t", "not the name of a bucket"),
        ("delta:s3://lake", "a prefix within the bucket, without .."),
        ("delta:s3://lake/", "a prefix within the bucket, without .."),
        ("delta:s3://lake/a/../../b", "a prefix within the bucket, without .."),
        (f"delta:https://{SECRET}@host/t", "of URLs, only s3://bucket/prefix"),
    ],
)
def test_an_invalid_location_is_a_fault_and_not_shown(fault: Fault, source: str, hint: str) -> None:
    said = fault(dataset_text(source, {}))

    assert said.startswith("1: datasets[0].from: must be delta: and the directory of a table")
    assert said.endswith(f"{hint})")
    assert SECRET not in said


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"s3_key": "${ env:TOKEN }"}, "has only one of s3_key and s3_secret"),
        ({"iceberg_table": "a.b"}, "has only one of iceberg_catalog and iceberg_table"),
        ({"iceberg_catalog": "c.db"}, "has only one of iceberg_catalog and iceberg_table"),
        ({"iceberg_catalog_name": "x"}, "has iceberg_catalog_name, but no iceberg_catalog"),
        (
            {"iceberg_catalog": "c.db", "iceberg_table": "b"},
            "has an iceberg_table that is not a namespace, a dot and a name",
        ),
    ],
)
def test_parameters_that_do_not_go_together_are_a_fault(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, params: dict[str, str], said: str
) -> None:
    assert fault(dataset_text("iceberg:t", params), {"TOKEN": SECRET}) == f"1: datasets[0].params: {said}"


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{SECRET}@host",
        "ftp://host",
        "https://",
        "https://host/path",
        f"https://host?x={SECRET}",
        "https://host#x",
        "https://ho st",
        "https://host:99999",
        "https://[::1",
    ],
)
def test_an_invalid_endpoint_is_a_fault_and_not_shown(fault: Fault, url: str) -> None:
    said = fault(dataset_text("delta:t", {"s3_endpoint": url}))

    assert said.startswith("1: datasets[0].params.s3_endpoint: must be a URL such as https://minio.example.org:9000")
    assert SECRET not in said


@pytest.mark.parametrize(
    "params",
    [
        {"s3_endpoint": "http://127.0.0.1:9000/"},
        {"s3_endpoint": "http://localhost:9000"},
        {"s3_endpoint": "http://[::1]:9000"},
        {"s3_endpoint": "http://minio:9000", "allow_http": "true"},
        {"s3_endpoint": "https://minio"},
    ],
)
def test_valid_endpoints(load_text: Load, params: dict[str, str]) -> None:
    assert load_dataset(load_text, "delta:t", **params).params["s3_endpoint"] == params["s3_endpoint"].rstrip("/")


def test_secrets_are_not_shown_and_the_catalog_is_relative_to_the_yaml(load_text: Load, tmp_path: Path) -> None:
    dataset = load_dataset(load_text, "iceberg:s3://lake/wh", **KEYS, iceberg_catalog="c/cat.db", iceberg_table="a.b.t")

    assert dataset.params["iceberg_catalog"] == f"{tmp_path}/c/cat.db"
    assert dataset.params["s3_secret"] == SECRET
    assert SECRET not in repr(dataset)


@pytest.mark.parametrize(("connector", "module"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_missing_library_is_a_fault_with_its_install_command(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, connector: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as where it is not installed

    assert fault(dataset_text(f"{connector}:t", {})).startswith(
        f"1: datasets[0].from: the connector {connector} needs a library: python -m pip install '{module}~="
    )


def test_only_a_table_in_a_bucket_needs_the_signing_library(
    load_text: Load, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)  # as where it is not installed

    assert load_dataset(load_text, "delta:t").location
    assert "python -m pip install 'botocore~=" in fault(dataset_text("delta:s3://lake/t", {}))
