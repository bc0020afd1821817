"""The parameters of `gs:` and `gcs:`: objects in a Google Cloud Storage bucket."""

import json
import re
from pathlib import Path
from typing import Annotated

from runtimeconf.connector import Connector, Package, Param
from runtimeconf.fields import FlagField, InvalidValueError, ParsedField, PathField
from runtimeconf.file_formats import EXCEL, DownloadParams
from runtimeconf.network import AllowHttp, RootCertificateFile, lacks_tls, parse_server

#: https://cloud.google.com/storage/docs/buckets#naming: a name with dots may be longer.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_MAX_KEY_BYTES = 1024

#: At most one of these can be given.
_WAYS = ("gcs_service_account_path", "gcs_service_account_key", "gcs_use_metadata_server", "gcs_skip_signature")


def _parse_key(text: str) -> str:
    """Return the JSON of a service account key. No message shows the key."""
    try:
        found = json.loads(text)
    except ValueError:
        raise InvalidValueError("it is not JSON") from None
    if not isinstance(found, dict) or not all(isinstance(found.get(k), str) for k in ("client_email", "private_key")):
        raise InvalidValueError("it lacks client_email and private_key")
    return text


def _locate(scheme: str, text: str, _directory: Path) -> str:
    match = re.fullmatch(r"//([^/]*)/?(.*)", text)
    if match is None:
        raise InvalidValueError(f"write {scheme}:// before the bucket")
    bucket, key = match.groups()
    if _BUCKET.fullmatch(bucket) is None or ".." in bucket:
        raise InvalidValueError("not a bucket name; write only the bucket name before the key")
    if len(key.encode()) > _MAX_KEY_BYTES:
        raise InvalidValueError(f"keys are limited to {_MAX_KEY_BYTES:,} bytes")
    return f"gs://{bucket}/{key}"


_ENDPOINT = ParsedField("a URL such as https://storage.example.org", parse_server)
_KEY = ParsedField("a service account key, in JSON", _parse_key)


class GcsParams(DownloadParams):
    """The server, one kind of credentials, and the file options."""

    gcs_endpoint: Annotated[str, Param(_ENDPOINT, is_hidden=True)] = "https://storage.googleapis.com"
    gcs_service_account_path: Annotated[
        Path | None, Param(PathField("the path of a service account key, in JSON"), is_path=True)
    ] = None
    gcs_service_account_key: Annotated[str | None, Param(_KEY, is_secret=True)] = None
    gcs_use_metadata_server: Annotated[bool, Param(FlagField())] = False
    gcs_skip_signature: Annotated[bool, Param(FlagField())] = False
    allow_http: AllowHttp = False
    gcs_tls_root_certificate_file: RootCertificateFile = None

    def problem(self, location: str) -> str | None:
        """Refuse several kinds of credentials, and a server without TLS; see `Params.problem`."""
        if lacks_tls(self.gcs_endpoint, allow_http=self.allow_http):
            return "has a gcs_endpoint without TLS, so data would be sent unencrypted: set allow_http: true to allow it"
        given = [name for name in _WAYS if getattr(self, name)]
        if len(given) > 1:
            return f"has {' and '.join(given)}: remove one"
        return super().problem(location)


GCS = Connector(
    expected="a bucket with a key, a prefix or a glob, such as //bucket/data/flights.parquet",
    locate=_locate,
    params=GcsParams,
    source="connectors.gcs.source:GcsSource",
    packages=(
        Package(
            "google.auth",
            "google-auth~=2.63",
            lambda _location, values: bool({"gcs_service_account_path", "gcs_service_account_key"} & values.keys()),
        ),
        EXCEL,
    ),
)
