"""`abfs:`, `abfss:` and `az:`: blobs in a container of Azure Storage, Data Lake Storage included."""

import base64
import binascii
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from runtimeconf.connectors.connector import Connector, Param
from runtimeconf.connectors.downloads import (
    ALLOW_HTTP,
    CLIENT_TIMEOUT,
    MAX_DOWNLOAD_SIZE,
    is_near,
    lacks_tls,
    parse_origin,
    parse_token,
)
from runtimeconf.connectors.file_formats import EXCEL, FILE_PARAMS, check_files
from runtimeconf.fields import ChoiceField, InvalidValueError, ParsedField, PathField

#: https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules#microsoftstorage
_ACCOUNT = "[a-z0-9]{3,24}"
_CONTAINER = re.compile(r"\$(?:root|web)|[a-z0-9](?:-?[a-z0-9]){2,62}")
_HOST = re.compile(rf"({_ACCOUNT})\.(?:dfs|blob)\.core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)")
_MAX_KEY_BYTES = 4 * 1024

_MSI_ENDPOINT = "http://169.254.169.254/metadata/identity/oauth2/token"

#: Exactly one of these may be given.
_WAYS = (
    *("abfs_access_key", "abfs_sas_string", "abfs_bearer_token", "abfs_client_secret", "abfs_federated_token_file"),
    *("abfs_msi_endpoint", "abfs_skip_signature"),
)
#: The ways of a service principal, which needs its ids.
_PRINCIPAL_WAYS = ("abfs_client_secret", "abfs_federated_token_file")


def server_of(location: str, params: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the account of *location*, the origin of its server, and the path of the containers there."""
    authority = location.partition("://")[2].partition("/")[0]
    host = _HOST.fullmatch(authority.partition("@")[2])
    account, domain = host.groups() if host else (params.get("abfs_account", ""), "windows.net")
    origin, path = parse_origin(params.get("abfs_endpoint", f"https://{account}.blob.core.{domain}"))
    return account, origin, path.rstrip("/")


def _parse_endpoint(text: str) -> str:
    origin, rest = parse_origin(text)
    if re.fullmatch(rf"(?:/{_ACCOUNT})?/?", rest) is None:
        raise InvalidValueError("only the scheme, the host, the port and, of an emulator, the account")
    return origin + rest.rstrip("/")


def _parse_authority(text: str) -> str:
    origin, rest = parse_origin(text)
    if rest not in {"", "/"}:
        raise InvalidValueError("only the scheme, the host and the port")
    return origin


def _parse_msi_endpoint(text: str) -> str:
    origin, rest = parse_origin(text)
    if not is_near(urlsplit(origin).hostname or ""):
        raise InvalidValueError("an address of this machine, or one that only it reaches, as 169.254.169.254")
    if re.fullmatch(r"/[A-Za-z0-9/._-]*", rest) is None:
        raise InvalidValueError("a path after the host, and no query")
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
    """Return the query of a shared access signature without a question mark."""
    query = parse_token(text).removeprefix("?")
    if re.search(r"(?:^|&)sig=[^&]", query) is None or re.search(r"[ #?/\\]", query.partition("sig=")[0]) is not None:
        raise InvalidValueError("a shared access signature has sig=, and is not a whole URL")
    if re.search(r"[ #?]", query) is not None:
        raise InvalidValueError("it has a character that a query cannot hold")
    return query


def _locate(scheme: str, text: str, _directory: Path) -> str:
    match = re.fullmatch(r"//([^/@]*)(@[^/]*)?/?(.*)", text)
    if match is None:
        raise InvalidValueError(f"write {scheme}:// before the container")
    container, host, key = match[1], match[2] or "", match[3]
    if _CONTAINER.fullmatch(container) is None:
        raise InvalidValueError("not the name of a container")
    if host and _HOST.fullmatch(host[1:]) is None:
        raise InvalidValueError("after @ only account.dfs.core.windows.net: abfs_endpoint names another server")
    if re.search(r"[?&]sig=", key) is not None:
        raise InvalidValueError("no signature after the path: everybody who may ask for the datasets sees this")
    if len(key.encode()) > _MAX_KEY_BYTES:
        raise InvalidValueError(f"a path has at most {_MAX_KEY_BYTES:,} bytes")
    return f"{scheme}://{container}{host}/{key}"


def _check(location: str, params: Mapping[str, str]) -> str | None:
    has_host = "@" in location.partition("://")[2].partition("/")[0]
    if has_host == ("abfs_account" in params):
        return "must name the account once: after @ in from:, or in abfs_account"
    if has_host and "abfs_endpoint" in params:
        return "has both a host in from: and abfs_endpoint: keep one"
    if lacks_tls(params.get("abfs_endpoint", ""), params):
        return "has an abfs_endpoint without TLS: everybody on the way reads the data; allow_http: true allows it"
    return _credentials_fault(params) or check_files(params)


def _credentials_fault(params: Mapping[str, str]) -> str | None:
    given = [name for name in _WAYS if name in params and params[name] != "false"]
    if len(given) != 1:
        return f"must have one of {', '.join(_WAYS[:-1])}, or abfs_skip_signature: true for a public container"
    (way,) = given
    allowed = {"abfs_client_id"} if way == "abfs_msi_endpoint" else set()
    if way in _PRINCIPAL_WAYS:
        allowed = {"abfs_tenant_id", "abfs_client_id", "abfs_authority_host"}
        if missing := [name for name in ("abfs_tenant_id", "abfs_client_id") if name not in params]:
            return f"has {way}, but not {' and '.join(missing)}"
    for name in ("abfs_tenant_id", "abfs_client_id", "abfs_authority_host"):
        if name in params and name not in allowed:
            return f"has {name}, which {way} does not use"
    if lacks_tls(params.get("abfs_authority_host", ""), params):
        return (
            "has an abfs_authority_host without TLS: everybody on the way reads the secret; allow_http: true allows it"
        )
    return None


_PARAMS = (
    *FILE_PARAMS,
    Param("abfs_account", ParsedField("the name of a storage account", _parse_account)),
    Param(
        "abfs_endpoint", ParsedField("a URL such as http://127.0.0.1:10000/account", _parse_endpoint), is_hidden=True
    ),
    Param("abfs_access_key", ParsedField("an access key of the account, base64", _parse_key), is_secret=True),
    Param("abfs_sas_string", ParsedField("a shared access signature", _parse_sas), is_secret=True),
    Param("abfs_bearer_token", ParsedField("a bearer token", parse_token), is_secret=True),
    Param("abfs_tenant_id", ParsedField("the id or the domain of a tenant", _parse_id)),
    Param("abfs_client_id", ParsedField("the id of an application", _parse_id)),
    Param("abfs_client_secret", ParsedField("a secret of the application", parse_token), is_secret=True),
    Param("abfs_federated_token_file", PathField("the path of a file with a token of the cluster"), is_path=True),
    Param("abfs_msi_endpoint", ParsedField(f"a URL such as {_MSI_ENDPOINT}", _parse_msi_endpoint), is_hidden=True),
    Param(
        "abfs_authority_host", ParsedField("a URL such as https://login.example.org", _parse_authority), is_hidden=True
    ),
    Param("abfs_skip_signature", ChoiceField("true", "false")),
    ALLOW_HTTP,
    Param("abfs_tls_root_certificate_file", PathField("the path of a PEM file of certificates"), is_path=True),
    CLIENT_TIMEOUT,
    MAX_DOWNLOAD_SIZE,
)

ABFS, ABFSS, AZ = (
    Connector(
        name=scheme,
        expected="a container with a path, a directory or a glob, such as //container/data/flights.parquet",
        locate=partial(_locate, scheme),
        params=_PARAMS,
        check=_check,
        packages=(EXCEL,),
    )
    for scheme in ("abfs", "abfss", "az")
)
