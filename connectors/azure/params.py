"""The parameters of `abfs:`, `abfss:` and `az:`: blobs in Azure Storage, including Data Lake Storage."""

import base64
import binascii
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from runtimeconf.connector import Connector, Param
from runtimeconf.fields import FlagField, InvalidValueError, ParsedField, PathField
from runtimeconf.file_formats import EXCEL, DownloadParams
from runtimeconf.network import (
    AllowHttp,
    RootCertificateFile,
    is_near,
    lacks_tls,
    parse_origin,
    parse_server,
    parse_token,
)

#: https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules#microsoftstorage
_ACCOUNT = "[a-z0-9]{3,24}"
_CONTAINER = re.compile(r"\$(?:root|web)|[a-z0-9](?:-?[a-z0-9]){2,62}")
_HOST = re.compile(rf"({_ACCOUNT})\.(?:dfs|blob)\.core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)")
_MAX_KEY_BYTES = 4 * 1024

_MSI_ENDPOINT = "http://169.254.169.254/metadata/identity/oauth2/token"

#: Exactly one of these must be given.
_WAYS = (
    *("abfs_access_key", "abfs_sas_string", "abfs_bearer_token", "abfs_client_secret", "abfs_federated_token_file"),
    *("abfs_msi_endpoint", "abfs_skip_signature"),
)
#: The credentials of a service principal, which also requires its ids.
_PRINCIPAL_WAYS = ("abfs_client_secret", "abfs_federated_token_file")


def _parse_endpoint(text: str) -> str:
    origin, rest = parse_origin(text)
    if re.fullmatch(rf"(?:/{_ACCOUNT})?/?", rest) is None:
        raise InvalidValueError("use only the scheme, host and port, and the account for an emulator")
    return origin + rest.rstrip("/")


def _parse_msi_endpoint(text: str) -> str:
    origin, rest = parse_origin(text)
    if not is_near(urlsplit(origin).hostname or ""):
        raise InvalidValueError(
            "use an address on this machine, or one that only this machine can reach, such as 169.254.169.254"
        )
    if re.fullmatch(r"/[A-Za-z0-9/._-]*", rest) is None:
        raise InvalidValueError("write a path after the host, without a query")
    return origin + rest


def _parse_id(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}", text) is None:
        raise InvalidValueError
    return text


def _parse_account(text: str) -> str:
    if re.fullmatch(_ACCOUNT, text) is None:
        raise InvalidValueError
    return text


def _parse_key(text: str) -> str:
    try:
        base64.b64decode(parse_token(text), validate=True)
    except binascii.Error:
        raise InvalidValueError("it is not base64") from None
    return text


def _parse_sas(text: str) -> str:
    """Return the query string of a shared access signature, without a question mark."""
    query = parse_token(text).removeprefix("?")
    if re.search(r"(?:^|&)sig=[^&]", query) is None or re.search(r"[ #?/\\]", query.partition("sig=")[0]) is not None:
        raise InvalidValueError("a shared access signature contains sig= and is not a whole URL")
    if re.search(r"[ #?]", query) is not None:
        raise InvalidValueError("it contains a character that is not allowed in a query")
    return query


def _locate(scheme: str, text: str, _directory: Path) -> str:
    match = re.fullmatch(r"//([^/@]*)(@[^/]*)?/?(.*)", text)
    if match is None:
        raise InvalidValueError(f"write {scheme}:// before the container")
    container, host, key = match[1], match[2] or "", match[3]
    if _CONTAINER.fullmatch(container) is None:
        raise InvalidValueError("not a container name")
    if host and _HOST.fullmatch(host[1:]) is None:
        raise InvalidValueError("write only account.dfs.core.windows.net after @: use abfs_endpoint for another server")
    if re.search(r"[?&]sig=", key) is not None:
        raise InvalidValueError("remove the signature after the path: anyone who can list the datasets can see it")
    if len(key.encode()) > _MAX_KEY_BYTES:
        raise InvalidValueError(f"paths are limited to {_MAX_KEY_BYTES:,} bytes")
    return f"{scheme}://{container}{host}/{key}"


_ENDPOINT = ParsedField("a URL such as http://127.0.0.1:10000/account", _parse_endpoint)
_TOKEN_FILE = PathField("the path of a file with a cluster token")


class AzureParams(DownloadParams):
    """The account, one kind of credentials, and the file options."""

    abfs_account: Annotated[str | None, Param(ParsedField("the name of a storage account", _parse_account))] = None
    abfs_endpoint: Annotated[str | None, Param(_ENDPOINT, is_hidden=True)] = None
    abfs_access_key: Annotated[
        str | None, Param(ParsedField("an access key of the account, base64", _parse_key), is_secret=True)
    ] = None
    abfs_sas_string: Annotated[
        str | None, Param(ParsedField("a shared access signature", _parse_sas), is_secret=True)
    ] = None
    abfs_bearer_token: Annotated[str | None, Param(ParsedField("a bearer token", parse_token), is_secret=True)] = None
    abfs_tenant_id: Annotated[str | None, Param(ParsedField("a tenant ID or domain", _parse_id))] = None
    abfs_client_id: Annotated[str | None, Param(ParsedField("an application ID", _parse_id))] = None
    abfs_client_secret: Annotated[
        str | None, Param(ParsedField("an application secret", parse_token), is_secret=True)
    ] = None
    abfs_federated_token_file: Annotated[Path | None, Param(_TOKEN_FILE, is_path=True)] = None
    abfs_msi_endpoint: Annotated[
        str | None, Param(ParsedField(f"a URL such as {_MSI_ENDPOINT}", _parse_msi_endpoint), is_hidden=True)
    ] = None
    abfs_authority_host: Annotated[
        str | None, Param(ParsedField("a URL such as https://login.example.org", parse_server), is_hidden=True)
    ] = None
    abfs_skip_signature: Annotated[bool, Param(FlagField())] = False
    allow_http: AllowHttp = False
    abfs_tls_root_certificate_file: RootCertificateFile = None

    def problem(self, location: str) -> str | None:
        """Require exactly one account, one kind of credentials, and TLS; see `Params.problem`."""
        has_host = "@" in location.partition("://")[2].partition("/")[0]
        if has_host == (self.abfs_account is not None):
            return "must name the account exactly once: after @ in from:, or in abfs_account"
        if has_host and self.abfs_endpoint is not None:
            return "has both a host in from: and abfs_endpoint: remove one"
        if lacks_tls(self.abfs_endpoint, allow_http=self.allow_http):
            return (
                "has an abfs_endpoint without TLS, so data would be sent unencrypted: set allow_http: true to allow it"
            )
        return self._credentials_problem() or super().problem(location)

    def place(self, location: str) -> tuple[str, str, str]:
        """Return the account in *location*, the origin of its server, and the path of the containers on the server."""
        authority = location.partition("://")[2].partition("/")[0]
        host = _HOST.fullmatch(authority.partition("@")[2])
        account, domain = host.groups() if host else (self.abfs_account or "", "windows.net")
        origin, path = parse_origin(self.abfs_endpoint or f"https://{account}.blob.core.{domain}")
        return account, origin, path.rstrip("/")

    def _credentials_problem(self) -> str | None:
        given = [name for name in _WAYS if getattr(self, name)]
        if len(given) != 1:
            return f"must have one of {', '.join(_WAYS[:-1])}, or abfs_skip_signature: true for a public container"
        (way,) = given
        ids = {name: getattr(self, name) for name in ("abfs_tenant_id", "abfs_client_id", "abfs_authority_host")}
        used = {"abfs_client_id"} if way == "abfs_msi_endpoint" else set()
        if way in _PRINCIPAL_WAYS:
            used = set(ids)
            if missing := [name for name in ("abfs_tenant_id", "abfs_client_id") if ids[name] is None]:
                return f"has {way}, but not {' and '.join(missing)}"
        if unused := [name for name, value in ids.items() if value is not None and name not in used]:
            return f"has {unused[0]}, which {way} does not use"
        if lacks_tls(self.abfs_authority_host, allow_http=self.allow_http):
            return (
                "has an abfs_authority_host without TLS, so the secret would be sent unencrypted: set allow_http: "
                "true to allow it"
            )
        return None


ABFS = Connector(
    expected="a container with a path, a directory or a glob, such as //container/data/flights.parquet",
    locate=_locate,
    params=AzureParams,
    source="connectors.azure.source:AzureSource",
    packages=(EXCEL,),
)
