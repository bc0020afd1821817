"""
`gs:` sources: objects in Google Cloud Storage.

Its XML API has the same lists, conditions and errors as S3 (https://cloud.google.com/storage/docs/xml-api/overview).
google-auth signs a token with the service account's key locally, without a request. On a Google machine, the metadata
server provides a token.
"""

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from connectors.bucket import Bucket
from connectors.gcs.params import GcsParams
from connectors.oauth import AccessToken, TokenRequest
from connectors.objects import ObjectSource
from datasources.deadline import Deadline
from datasources.errors import SourceError
from system.files import UnreadableFileError, read_regular_file

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
_MAX_KEY_BYTES = 64 * 1024
_WHERE = "see the credentials of the dataset, such as gcs_service_account_path"


class GcsSource(ObjectSource[GcsParams]):
    """Objects in Google Cloud Storage."""

    def _store(self, deadline: Deadline) -> "GcsBucket":
        return GcsBucket(self._name, self._params, deadline)


class GcsBucket(Bucket):
    """The bucket *name*; see `Bucket`. *params* are the dataset's."""

    _service = "Google Cloud Storage"
    _codes = {
        "NoSuchKey": "it does not exist",
        "NoSuchBucket": "the bucket does not exist",
        "ExpiredToken": "the token has expired: check this machine's clock",
        "SlowDown": "the server is rate limiting requests",
    }
    _statuses = {
        400: "the server cannot process the request",
        401: f"the server rejected the credentials, or this machine's clock is wrong: {_WHERE}",
        403: f"the server does not allow it: {_WHERE}, whose account needs Storage Object Viewer",
        404: "it does not exist",
        407: "the proxy from the environment requires credentials",
        429: "the server is rate limiting requests",
    }
    # Otherwise an object stored with gzip would be decompressed in transit and have no length.
    _encoding = "gzip"

    def __init__(self, name: str, params: GcsParams, deadline: Deadline) -> None:
        self._requested = None
        if params.gcs_use_metadata_server:
            self._requested = AccessToken(_metadata_request(), deadline, params.client_timeout)
        self._credentials = _credentials(params)
        roots = params.gcs_tls_root_certificate_file
        super().__init__(f"gs://{name}", (params.gcs_endpoint, f"/{name}"), deadline, params.client_timeout, roots)

    def _authorized(self, _method: str, target: str, _headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        if self._requested is not None:
            return target, {"Authorization": f"Bearer {self._requested.current()}"}
        if self._credentials is None:
            return target, {}
        if not self._credentials.valid:
            self._credentials.refresh(None)
        return target, {"Authorization": f"Bearer {self._credentials.token.decode()}"}


def _metadata_request() -> TokenRequest:
    """Return the request to the metadata server of Google machines, at the address in `GCE_METADATA_HOST`."""
    host = os.environ.get("GCE_METADATA_HOST") or "169.254.169.254"
    return TokenRequest(
        server=f"http://{host}",
        target=f"/computeMetadata/v1/instance/service-accounts/default/token?{urlencode({'scopes': _SCOPE})}",
        shown="gcs_use_metadata_server",
        see="only Google Cloud machines with a service account have one",
        headers={"Metadata-Flavor": "Google"},
    )


def _credentials(params: GcsParams) -> Any:
    """Return the service account credentials; None for public objects."""
    path, text = params.gcs_service_account_path, params.gcs_service_account_key
    if path is None and text is None:
        return None
    from google.auth import jwt  # noqa: PLC0415 (public objects do not need it)

    try:
        if path is not None:
            text = read_regular_file(path, _MAX_KEY_BYTES).data.decode()
        return jwt.Credentials.from_service_account_info(
            json.loads(text or ""), audience=None, additional_claims={"scope": _SCOPE}
        )
    except UnreadableFileError as exc:
        raise SourceError(f"The file in gcs_service_account_path {exc}.") from None
    except MemoryError:
        raise
    except Exception as exc:  # noqa: BLE001 (see below)
        # The error's text may quote the key.
        raise SourceError(f"The key of the service account cannot be used ({type(exc).__name__}).") from None
