"""`s3:`: objects in a bucket of S3 or of a compatible server."""

import re
from collections.abc import Mapping

from runtimeconf.connectors.connector import Connector, Package, Param
from runtimeconf.connectors.downloads import (
    ALLOW_HTTP,
    CLIENT_TIMEOUT,
    MAX_DOWNLOAD_SIZE,
    lacks_tls,
    parse_origin,
    parse_token,
)
from runtimeconf.connectors.file_formats import EXCEL, FILE_PARAMS, check_files
from runtimeconf.fields import ChoiceField, InvalidValueError, ParsedField, PathField

#: Compatible servers, and old buckets of S3, allow underscores and capitals.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")

#: The longest key, in UTF-8.
_MAX_KEY_BYTES = 1024


def _parse_endpoint(text: str) -> str:
    """Return the origin of the URL of a server, which has no path."""
    origin, rest = parse_origin(text)
    if rest not in {"", "/"}:
        raise InvalidValueError("only the scheme, the host and the port")
    return origin


def _parse_region(text: str) -> str:
    """Return the name of a region, which becomes part of host names."""
    if re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", text) is None:
        raise InvalidValueError
    return text


#: The location of the bucket and the credentials, for every connector that reads from S3.
S3_PARAMS = (
    Param("s3_endpoint", ParsedField("a URL such as https://minio.example.org:9000", _parse_endpoint), is_hidden=True),
    Param("s3_region", ParsedField("the region of the bucket, such as eu-central-1", _parse_region)),
    Param("s3_url_style", ChoiceField("path", "vhost")),
    Param("s3_auth", ChoiceField("public", "key", "iam_role")),
    Param("s3_key", ParsedField("an access key id", parse_token), is_secret=True),
    Param("s3_secret", ParsedField("the secret access key", parse_token), is_secret=True),
    Param("s3_session_token", ParsedField("a session token", parse_token), is_secret=True),
    ALLOW_HTTP,
    Param("s3_tls_root_certificate_file", PathField("the path of a PEM file of certificates"), is_path=True),
    CLIENT_TIMEOUT,
)

#: Signs the requests and finds the credentials of the machine.
SIGNER = Package("botocore", "botocore~=1.44")


def check_s3(_location: str, params: Mapping[str, str]) -> str | None:
    """Return what is wrong with the combination of `S3_PARAMS`; None if nothing is."""
    if lacks_tls(params.get("s3_endpoint", ""), params):
        return "has an s3_endpoint without TLS: everybody on the way reads the data; allow_http: true allows it"
    has_key = "s3_key" in params
    auth = params.get("s3_auth")
    if has_key != ("s3_secret" in params):
        return "has only one of s3_key and s3_secret"
    if "s3_session_token" in params and not has_key:
        return "has s3_session_token, but no s3_key and s3_secret"
    if auth == "key" and not has_key:
        return "has s3_auth: key, but no s3_key and s3_secret"
    if auth in {"public", "iam_role"} and has_key:
        return f"has both s3_auth: {auth} and s3_key: keep one"
    return None


def parse_location(text: str) -> tuple[str, str]:
    """
    Split `//bucket/key` into the bucket and the key.

    Raises:
        InvalidValueError: *text* has another form. No message shows it: it may hold a password.
    """
    match = re.fullmatch(r"//([^/]*)/?(.*)", text)
    if match is None:
        raise InvalidValueError("write s3:// before the bucket")
    bucket, key = match.groups()
    if "@" in bucket or ":" in bucket:
        raise InvalidValueError(
            "nothing but the name of a bucket before the key: s3_key, s3_secret and s3_endpoint hold the rest"
        )
    if _BUCKET.fullmatch(bucket) is None or ".." in bucket:
        raise InvalidValueError("not the name of a bucket")
    if len(key.encode()) > _MAX_KEY_BYTES:
        raise InvalidValueError(f"a key has at most {_MAX_KEY_BYTES:,} bytes")
    return bucket, key


S3 = Connector(
    name="s3",
    expected="a bucket with a key, a prefix or a glob, such as //bucket/data/flights.parquet",
    locate=lambda text, _directory: "s3://" + "/".join(parse_location(text)),
    params=(*FILE_PARAMS, *S3_PARAMS, MAX_DOWNLOAD_SIZE),
    check=lambda location, params: check_s3(location, params) or check_files(params),
    packages=(SIGNER, EXCEL),
)
