"""The possible locations of tables that consist of files: a directory, or an S3 bucket."""

from pathlib import Path

from msgspec.structs import replace

from runtimeconf.fields import InvalidValueError
from runtimeconf.files import locate_path, refuse_url
from runtimeconf.s3_params import SIGNER, parse_location

#: The library that signs requests. A table on disk does not need it.
LAKE_SIGNER = replace(SIGNER, is_needed=lambda location, _values: location.startswith("s3://"))


def locate_lake(_name: str, text: str, directory: Path) -> str:
    """
    Return `s3://bucket/prefix`, or the absolute path of a directory or a file.

    Raises:
        InvalidValueError: *text* is neither of these.
    """
    path = text.removeprefix("file://")
    if "://" not in path:
        return locate_path("file://", _name, text, directory)
    scheme, _, rest = path.partition(":")
    if scheme not in {"s3", "s3a"}:
        raise InvalidValueError("only s3://bucket/prefix URLs are supported")
    bucket, key = parse_location(rest)
    refuse_url(key)
    prefix = key.strip("/")
    if not prefix or ".." in prefix.split("/"):
        raise InvalidValueError("write a prefix within the bucket, without ..")
    return f"s3://{bucket}/{prefix}"
