"""`delta:` and `iceberg:`, tables that consist of files on disk or in S3."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runtimeconf.connectors.connector import Connector, Package, Param
from runtimeconf.connectors.files import locate_path, refuse_url
from runtimeconf.connectors.s3 import S3_PARAMS, SIGNER, check_s3, parse_location
from runtimeconf.fields import InvalidValueError, PathField, TextField

#: A table on disk does not need it.
_SIGNER = replace(SIGNER, is_needed=lambda location, _params: location.startswith("s3://"))


def locate_table(text: str, directory: Path) -> str:
    """
    Return `s3://bucket/prefix`, or the absolute path of a directory or a file.

    Raises:
        InvalidValueError: *text* is neither.
    """
    path = text.removeprefix("file://")
    if "://" not in path:
        return locate_path("file://", text, directory)
    scheme, _, rest = path.partition(":")
    if scheme not in {"s3", "s3a"}:
        raise InvalidValueError("of URLs, only s3://bucket/prefix")
    bucket, key = parse_location(rest)
    refuse_url(key)
    prefix = key.strip("/")
    if not prefix or ".." in prefix.split("/"):
        raise InvalidValueError("a prefix within the bucket, without ..")
    return f"s3://{bucket}/{prefix}"


DELTA = Connector(
    name="delta",
    expected="the directory of a table, or s3://bucket/prefix",
    locate=locate_table,
    params=S3_PARAMS,
    check=check_s3,
    packages=(Package("deltalake", "deltalake~=1.6"), _SIGNER),
)
#: Its name in Spice.ai.
DELTA_LAKE = replace(DELTA, name="delta_lake")


def _check_iceberg(location: str, params: Mapping[str, str]) -> str | None:
    """Return what is wrong with the combination of parameters of `iceberg:`; None if nothing is."""
    if ("iceberg_catalog" in params) != ("iceberg_table" in params):
        return "has only one of iceberg_catalog and iceberg_table"
    if "iceberg_catalog_name" in params and "iceberg_catalog" not in params:
        return "has iceberg_catalog_name, but no iceberg_catalog"
    if "iceberg_table" in params and re.fullmatch(r".+\.[^.]+", params["iceberg_table"]) is None:
        return "has an iceberg_table that is not a namespace, a dot and a name"
    return check_s3(location, params)


ICEBERG = Connector(
    name="iceberg",
    expected="the directory or the metadata file of a table, or s3://bucket/prefix; with a catalog, its warehouse",
    locate=locate_table,
    params=(
        Param("iceberg_catalog", PathField("the path of a SQLite file"), is_path=True),
        Param("iceberg_catalog_name", TextField("the name of a catalog", max_length=255)),
        Param("iceberg_table", TextField("a table such as sales.orders", max_length=511)),
        *S3_PARAMS,
    ),
    check=_check_iceberg,
    packages=(Package("pyiceberg", "pyiceberg~=0.12"), _SIGNER),
)
