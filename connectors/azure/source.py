"""
`abfs:`, `abfss:` and `az:` sources: blobs in Azure Storage, read through the Blob service.

The Blob service also has the blobs of Data Lake Storage. It lists directories as blobs, which are left out.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote, unquote, urlencode

from connectors.azure.params import AzureParams
from connectors.bucket import Bucket, StoredObject, tag_of
from connectors.oauth import AccessToken, TokenRequest
from connectors.objects import ObjectSource
from connectors.origin import Answer
from datasources.deadline import Deadline
from datasources.errors import SourceError
from runtimeconf.fields import InvalidValueError
from runtimeconf.network import parse_origin, parse_token
from system.files import UnreadableFileError, read_regular_file

_VERSION = "2023-11-03"

#: The headers that a signature covers by position (Authorize with Shared Key, "Blob, Queue, and File Services").
_SIGNED_HEADERS = (
    *("Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date"),
    *("If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range"),
)

_AUTHORITY = "https://login.microsoftonline.com"
_RESOURCE = "https://storage.azure.com/"
_JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_MAX_FEDERATED_BYTES = 16 * 1024

_WHERE = "see the credentials of the dataset, such as abfs_access_key"


class AzureSource(ObjectSource[AzureParams]):
    """Blobs in Azure Storage."""

    def _store(self, deadline: Deadline) -> "AzureContainer":
        return AzureContainer(self._name, self._params, deadline)


class AzureContainer(Bucket):
    """The container *name*, with `@` and the host if `from:` has one; see `Bucket`. *params* are the dataset's."""

    _service = "Azure Storage"
    _no_bucket = "ContainerNotFound"
    _codes = {
        "BlobNotFound": "it does not exist",
        "ContainerNotFound": "the container does not exist",
        "AuthenticationFailed": (
            "the credentials are wrong or have expired, or this machine's clock is wrong: " + _WHERE
        ),
        "BlobArchived": "it is archived: rehydrate it first",
        "PublicAccessNotPermitted": "the account has no public containers: " + _WHERE,
        "ServerBusy": "the server is rate limiting requests",
    }
    _statuses = {
        400: "the server cannot process the request",
        401: f"the server rejected the credentials: {_WHERE}",
        403: f"the server does not allow it: {_WHERE}",
        404: "it does not exist, or is not public",
        407: "the proxy from the environment requires credentials",
        429: "the server is rate limiting requests",
    }

    def __init__(self, name: str, params: AzureParams, deadline: Deadline) -> None:
        url = f"abfss://{name}"
        self._account, origin, path = params.place(url)
        self._key = None if params.abfs_access_key is None else base64.b64decode(params.abfs_access_key)
        self._sas = params.abfs_sas_string or ""
        self._bearer_token = params.abfs_bearer_token
        request = _token_request(params)
        self._requested = None if request is None else AccessToken(request, deadline, params.client_timeout)
        server = origin, f"{path}/{name.partition('@')[0]}"
        super().__init__(url, server, deadline, params.client_timeout, params.abfs_tls_root_certificate_file)

    def _list_request(self, prefix: str, delimiter: str, token: str) -> tuple[str | None, Mapping[str, str]]:
        query = {"restype": "container", "comp": "list", "prefix": prefix, "delimiter": delimiter, "marker": token}
        return None, {name: value for name, value in query.items() if value}

    def _page_of(self, content: bytes, shown: str) -> tuple[list[StoredObject], str | None]:
        fields, entries = self._parsed(content, shown, "EnumerationResults", ["Blobs", "Blob"])
        blobs = (one for one in entries if one.get("ResourceType") != "directory")
        found = [StoredObject(one.get("Name", ""), tag_of(one.get("Etag", ""))) for one in blobs]
        return found, fields.get("NextMarker") or None

    def _is_folder(self, answer: Answer) -> bool:
        return answer.headers.get("x-ms-meta-hdi_isfolder", "").lower() == "true"

    def _authorized(self, method: str, target: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        sent = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
        if self._sas:
            return f"{target}{'&' if '?' in target else '?'}{self._sas}", sent
        token = self._bearer_token if self._requested is None else self._requested.current()
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        elif self._key is not None:
            sent["Authorization"] = f"SharedKey {self._account}:{self._signature(method, target, headers, sent)}"
        return target, sent

    def _signature(self, method: str, target: str, headers: Mapping[str, str], own: Mapping[str, str]) -> str:
        assert self._key is not None  # noqa: S101 (the caller has looked)
        path, _, query = target.partition("?")
        pairs = [part.partition("=") for part in query.split("&") if part]
        lines = [
            *(method, *(headers.get(name, "") for name in _SIGNED_HEADERS)),
            *(f"{name}:{value}" for name, value in sorted(own.items())),
            f"/{self._account}{path}",
            *sorted(f"{name}:{unquote(value)}" for name, _, value in pairs),
        ]
        return base64.b64encode(hmac.digest(self._key, "\n".join(lines).encode(), hashlib.sha256)).decode()


def _token_request(params: AzureParams) -> TokenRequest | None:
    """Return the request for a Microsoft Entra ID token; None if *params* specify other credentials."""
    if params.abfs_msi_endpoint is not None:
        return _managed_identity(params.abfs_msi_endpoint, params.abfs_client_id)
    return _application(params, params.abfs_tenant_id) if params.abfs_tenant_id is not None else None


def _managed_identity(endpoint: str, client_id: str | None) -> TokenRequest:
    """Return the request to the Instance Metadata Service, which knows this machine's identity."""
    origin, path = parse_origin(endpoint)
    query = {"api-version": "2018-02-01", "resource": _RESOURCE}
    if client_id is not None:
        query["client_id"] = client_id
    return TokenRequest(
        server=origin,
        target=f"{path}?{urlencode(query)}",
        shown="abfs_msi_endpoint",
        see="assign an identity to this machine; if it has several, set abfs_client_id",
        headers={"Metadata": "true"},
    )


def _application(params: AzureParams, tenant: str) -> TokenRequest:
    """Return a service principal's request, with its secret or with a token of the cluster (RFC 7523, 2.2)."""
    form = {"grant_type": "client_credentials", "client_id": str(params.abfs_client_id)}
    form["scope"] = f"{_RESOURCE}.default"
    way = "abfs_client_secret"
    if params.abfs_client_secret is not None:
        form["client_secret"] = params.abfs_client_secret
    else:
        way = "abfs_federated_token_file"
        form |= {"client_assertion_type": _JWT_BEARER, "client_assertion": _federated_token(params)}
    return TokenRequest(
        server=params.abfs_authority_host or _AUTHORITY,
        target=f"/{quote(tenant, safe='')}/oauth2/v2.0/token",
        shown="abfs_authority_host",
        see=f"see abfs_tenant_id, abfs_client_id and {way}",
        headers={},
        form=form,
    )


def _federated_token(params: AzureParams) -> str:
    """Return the token in the file. The cluster replaces the file before the token expires."""
    try:
        data = read_regular_file(Path(params.abfs_federated_token_file or ""), _MAX_FEDERATED_BYTES).data
        return parse_token(data.decode().strip())
    except UnreadableFileError as exc:
        raise SourceError(f"The file in abfs_federated_token_file {exc}.") from None
    except (ValueError, InvalidValueError):
        raise SourceError("The file in abfs_federated_token_file contains no token.") from None
