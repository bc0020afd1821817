"""`delta:` and `iceberg:`, tables that are made of files, on disk or in buckets of S3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from runtimeconf.connectors.connector import Connector, Package, Param
from runtimeconf.model import Address
from runtimeconf.reading import Place
from runtimeconf.shapes import Choice, ScalarShape, Text, UnfitError, parse_host
from runtimeconf.yaml_reader import Node, Scalar


class _Endpoint(ScalarShape[str]):
    """The URL of a server, without a path. No fault shows it: it may hold a password."""

    expected = "a URL such as https://minio.example.org:9000"

    def read(self, node: Node, place: Place) -> str | None:
        """As `ScalarShape.read`."""
        return super().read(replace(node, may_be_shown=False) if isinstance(node, Scalar) else node, place)

    def convert(self, node: Scalar) -> str:
        """Give its origin."""
        match = re.fullmatch(r"(https?://(?:\[([^\[\]]*)\]|([^/?#@\[\]:]+))(?::([0-9]{1,5}))?)/?", node.text, re.ASCII)
        if match is None:
            raise UnfitError("only the scheme, the host and the port")
        parse_host(match[2] or match[3])
        if not 0 < int(match[4] or 443) <= 65535:
            raise UnfitError("a port is from 1 to 65535")
        return match[1]


def _is_in_clear(url: str) -> bool:
    """Whether what is sent to *url* can be read on the way: it is not encrypted, and leaves the machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not Address(parts.hostname or "", 0).is_loopback


S3_PARAMS = (
    Param(name="s3_endpoint", shape=_Endpoint()),
    Param(name="s3_region", shape=Text("the region of the bucket, such as eu-central-1", max_length=64)),
    Param(name="s3_auth", shape=Choice("public", "key")),
    Param(name="s3_key", shape=Text("an access key id", max_length=256), is_secret=True),
    Param(name="s3_secret", shape=Text("the secret access key", max_length=256), is_secret=True),
    Param(name="s3_session_token", shape=Text("a session token", max_length=8192), is_secret=True),
    Param(name="allow_http", shape=Choice("true", "false")),
)


def check_s3(params: Mapping[str, str]) -> str | None:
    """Say what is wrong with the parameters of S3 together, None when nothing is."""
    has_key = "s3_key" in params
    if has_key != ("s3_secret" in params):
        return "has only one of s3_key and s3_secret"
    if "s3_session_token" in params and not has_key:
        return "has s3_session_token, but no s3_key and s3_secret"
    if params.get("s3_auth") == "key" and not has_key:
        return "has s3_auth: key, but no s3_key and s3_secret"
    if params.get("s3_auth") == "public" and has_key:
        return "has both s3_auth: public and s3_key: keep one"
    if _is_in_clear(params.get("s3_endpoint", "")) and params.get("allow_http") != "true":
        return "has an s3_endpoint without TLS: everybody on the way reads the data; allow_http: true allows it"
    return None


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
