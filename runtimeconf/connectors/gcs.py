"""`gs:` and `gcs:`: objects in a bucket of Google Cloud Storage."""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from runtimeconf.connectors.connector import Connector, Package, Param
from runtimeconf.connectors.downloads import ALLOW_HTTP, CLIENT_TIMEOUT, MAX_DOWNLOAD_SIZE, lacks_tls, parse_origin
from runtimeconf.connectors.file_formats import EXCEL, FILE_PARAMS, check_files
from runtimeconf.fields import ChoiceField, InvalidValueError, ParsedField, PathField

#: https://cloud.google.com/storage/docs/buckets#naming: a name with dots may be longer.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_MAX_KEY_BYTES = 1024

#: Exactly one of these may be given.
_WAYS = ("gcs_service_account_path", "gcs_service_account_key", "gcs_use_metadata_server", "gcs_skip_signature")


def endpoint_of(params: Mapping[str, str]) -> str:
    """Return the origin of the server."""
    return params.get("gcs_endpoint", "https://storage.googleapis.com")


def _parse_endpoint(text: str) -> str:
    origin, rest = parse_origin(text)
    if rest not in {"", "/"}:
        raise InvalidValueError("only the scheme, the host and the port")
    return origin


def _parse_key(text: str) -> str:
    """Return the JSON of the key of a service account; no message shows it."""
    try:
        found = json.loads(text)
    except ValueError:
        raise InvalidValueError("it is not JSON") from None
    if not isinstance(found, dict) or not all(isinstance(found.get(k), str) for k in ("client_email", "private_key")):
        raise InvalidValueError("it has no client_email and private_key")
    return text


def _locate(scheme: str, text: str, _directory: Path) -> str:
    match = re.fullmatch(r"//([^/]*)/?(.*)", text)
    if match is None:
        raise InvalidValueError(f"write {scheme}:// before the bucket")
    bucket, key = match.groups()
    if _BUCKET.fullmatch(bucket) is None or ".." in bucket:
        raise InvalidValueError("not the name of a bucket, which is all that may stand before the key")
    if len(key.encode()) > _MAX_KEY_BYTES:
        raise InvalidValueError(f"a key has at most {_MAX_KEY_BYTES:,} bytes")
    return f"gs://{bucket}/{key}"


def _check(_location: str, params: Mapping[str, str]) -> str | None:
    if lacks_tls(params.get("gcs_endpoint", ""), params):
        return "has a gcs_endpoint without TLS: everybody on the way reads the data; allow_http: true allows it"
    given = [name for name in _WAYS if name in params and params[name] != "false"]
    if len(given) > 1:
        return f"has {' and '.join(given)}: keep one"
    return check_files(params)


def _has_key(_location: str, params: Mapping[str, str]) -> bool:
    return "gcs_service_account_path" in params or "gcs_service_account_key" in params


_PARAMS = (
    *FILE_PARAMS,
    Param("gcs_endpoint", ParsedField("a URL such as https://storage.example.org", _parse_endpoint), is_hidden=True),
    Param("gcs_service_account_path", PathField("the path of the key of a service account, JSON"), is_path=True),
    Param("gcs_service_account_key", ParsedField("the key of a service account, JSON", _parse_key), is_secret=True),
    Param("gcs_use_metadata_server", ChoiceField("true", "false")),
    Param("gcs_skip_signature", ChoiceField("true", "false")),
    ALLOW_HTTP,
    Param("gcs_tls_root_certificate_file", PathField("the path of a PEM file of certificates"), is_path=True),
    CLIENT_TIMEOUT,
    MAX_DOWNLOAD_SIZE,
)

GS, GCS = (
    Connector(
        name=scheme,
        expected="a bucket with a key, a prefix or a glob, such as //bucket/data/flights.parquet",
        locate=partial(_locate, scheme),
        params=_PARAMS,
        check=_check,
        packages=(Package("google.auth", "google-auth~=2.63", _has_key), EXCEL),
    )
    for scheme in ("gs", "gcs")
)
