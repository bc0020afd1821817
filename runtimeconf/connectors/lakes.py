"""`delta:` and `iceberg:`, tables that are made of files, on disk or in buckets of S3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from runtimeconf.connectors.connector import Connector, Package, Param
from runtimeconf.connectors.downloads import is_loopback
from runtimeconf.connectors.s3 import (
    S3_AUTH,
    S3_ENDPOINT,
    S3_KEY,
    S3_REGION,
    S3_SECRET,
    S3_SESSION_TOKEN,
    check_credentials,
)
from runtimeconf.shapes import Choice, Text, UnfitError

S3_PARAMS = (
    S3_ENDPOINT,
    S3_REGION,
    S3_AUTH,
    S3_KEY,
    S3_SECRET,
    S3_SESSION_TOKEN,
    Param(name="allow_http", shape=Choice("true", "false")),
)


def check_s3(params: Mapping[str, str]) -> str | None:
    """Say what is wrong with the parameters of S3 together, None when nothing is."""
    if params.get("s3_auth") == "iam_role":
        return "has s3_auth: iam_role, which tables do not take: s3_key and s3_secret"
    endpoint = urlsplit(params.get("s3_endpoint", ""))
    if endpoint.scheme == "http" and not is_loopback(endpoint.hostname or "") and params.get("allow_http") != "true":
        return "has an s3_endpoint without TLS: everybody on the way reads the data; allow_http: true allows it"
    return check_credentials(params)


def locate_table(text: str, directory: Path) -> str:
    """
    Give `s3://bucket/prefix`, or the absolute path of a directory or a file.

    Raises:
        UnfitError: It is neither.
    """
    path = text.removeprefix("file://")
    if "://" not in path:
        if not path.strip():
            raise UnfitError("there is no path after the colon")
        return str(directory / path)
    match = re.fullmatch(r"s3a?://([^/]*)/+(.*?)/*", path)
    if match is None:
        raise UnfitError("of URLs, only s3://bucket/prefix")
    bucket, prefix = match.groups()
    if "@" in bucket:
        raise UnfitError("credentials go into s3_key and s3_secret")
    if re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket) is None:
        raise UnfitError("not the name of a bucket")
    if not prefix or ".." in prefix.split("/"):
        raise UnfitError("a prefix within the bucket, without ..")
    return f"s3://{bucket}/{prefix}"


DELTA = Connector(
    name="delta",
    expected="the directory of a table, or s3://bucket/prefix",
    locate=locate_table,
    params=S3_PARAMS,
    check=check_s3,
    packages=(Package("deltalake", "deltalake~=1.6"),),
)
#: The name that Spice.ai has for it.
DELTA_LAKE = replace(DELTA, name="delta_lake")


def _check_iceberg(params: Mapping[str, str]) -> str | None:
    """Say what is wrong with the parameters of `iceberg:` together, None when nothing is."""
    if ("iceberg_catalog" in params) != ("iceberg_table" in params):
        return "has only one of iceberg_catalog and iceberg_table"
    if "iceberg_catalog_name" in params and "iceberg_catalog" not in params:
        return "has iceberg_catalog_name, but no iceberg_catalog"
    if "iceberg_table" in params and re.fullmatch(r".+\.[^.]+", params["iceberg_table"]) is None:
        return "has an iceberg_table that is not a namespace, a dot and a name"
    return check_s3(params)


ICEBERG = Connector(
    name="iceberg",
    expected="the directory or the metadata file of a table, or s3://bucket/prefix; with a catalog, its warehouse",
    locate=locate_table,
    params=(
        Param(name="iceberg_catalog", shape=Text("the path of a SQLite file", max_length=4096), is_path=True),
        Param(name="iceberg_catalog_name", shape=Text("the name of a catalog", max_length=255)),
        Param(name="iceberg_table", shape=Text("a table such as sales.orders", max_length=511)),
        *S3_PARAMS,
    ),
    check=_check_iceberg,
    packages=(Package("pyiceberg", "pyiceberg~=0.12"),),
)
