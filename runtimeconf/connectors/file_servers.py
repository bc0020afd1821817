"""`ftp:` and `sftp:`: files on a server, by FTP with TLS or over SSH."""

import base64
import binascii
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from runtimeconf.addresses import split_host_port
from runtimeconf.connectors.connector import Connector, Package, Param
from runtimeconf.connectors.downloads import CLIENT_TIMEOUT, MAX_DOWNLOAD_SIZE, PORT, parse_password
from runtimeconf.connectors.file_formats import EXCEL, FILE_PARAMS, check_files
from runtimeconf.fields import ChoiceField, InvalidValueError, ParsedField, PathField

_MAX_PATH_BYTES = 4096


def server_of(location: str, default_port: str | None) -> tuple[str, int]:
    """Return the host and the port of *location*; its own port comes before *default_port*."""
    host, port = split_host_port(location.partition("://")[2].partition("/")[0]) or ("", None)
    return host, port or int(default_port or (21 if location.startswith("ftp:") else 22))


def parse_host_keys(text: str) -> list[tuple[str, bytes]]:
    """
    Return the type and the bytes of each key in *text*, lines such as `ssh-ed25519 AAAA...` (RFC 4253, 6.6).

    Raises:
        InvalidValueError: A line is not a key.
    """
    keys = []
    for line in filter(None, map(str.strip, text.splitlines())):
        kind, _, rest = line.partition(" ")
        try:
            key = base64.b64decode(rest.split()[0], validate=True)
        except (binascii.Error, IndexError):
            raise InvalidValueError("a line is a type such as ssh-ed25519, a blank, and the key in base64") from None
        # The key repeats its type.
        if key[4 : 4 + len(kind)] != kind.encode():
            raise InvalidValueError("the key is not of the type before it")
        keys.append((kind, key))
    if not keys:
        raise InvalidValueError("it is blank")
    return keys


def _parse_host_keys_text(text: str) -> str:
    parse_host_keys(text)
    return text


def _locate(scheme: str, text: str, _directory: Path) -> str:
    match = re.fullmatch(r"//([^/]*)/*(.*)", text)
    if match is None:
        raise InvalidValueError(f"write {scheme}:// before the host")
    authority, path = match.groups()
    if "@" in authority:
        raise InvalidValueError(f"no user or password before the host: {scheme}_user and {scheme}_pass hold these")
    found = split_host_port(authority)
    if found is None:
        raise InvalidValueError("not a host and a port")
    # Commands of FTP are lines.
    if not path.isprintable() or len(path.encode()) > _MAX_PATH_BYTES or ".." in path.split("/"):
        raise InvalidValueError(f"a path is printable, has no .. and at most {_MAX_PATH_BYTES:,} bytes")
    host, port = found
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}{f':{port}' if port else ''}/{path}"


def _check_ftp(_location: str, params: Mapping[str, str]) -> str | None:
    if "ftp_pass" in params and "ftp_user" not in params:
        return "has ftp_pass, but no ftp_user"
    if params.get("ftp_tls") == "disabled" and "ftp_tls_root_certificate_file" in params:
        return "has ftp_tls_root_certificate_file, but ftp_tls: disabled does without TLS"
    return check_files(params)


def _check_sftp(_location: str, params: Mapping[str, str]) -> str | None:
    if ("sftp_pass" in params) == ("sftp_private_key_file" in params):
        return "must have one of sftp_pass and sftp_private_key_file"
    if "sftp_private_key_passphrase" in params and "sftp_private_key_file" not in params:
        return "has sftp_private_key_passphrase, but no sftp_private_key_file"
    return check_files(params)


_EXPECTED = "a host with a path, a directory or a glob, such as //host/data/flights.parquet"

FTP = Connector(
    name="ftp",
    expected=_EXPECTED,
    locate=partial(_locate, "ftp"),
    params=(
        *FILE_PARAMS,
        Param("ftp_port", PORT),
        Param("ftp_user", ParsedField("the name of a user", parse_password)),
        Param("ftp_pass", ParsedField("a password", parse_password), is_secret=True),
        Param("ftp_tls", ChoiceField("required", "disabled")),
        Param("ftp_tls_root_certificate_file", PathField("the path of a PEM file of certificates"), is_path=True),
        CLIENT_TIMEOUT,
        MAX_DOWNLOAD_SIZE,
    ),
    check=_check_ftp,
    packages=(EXCEL,),
)

SFTP = Connector(
    name="sftp",
    expected=_EXPECTED,
    locate=partial(_locate, "sftp"),
    params=(
        *FILE_PARAMS,
        Param("sftp_port", PORT),
        Param("sftp_user", ParsedField("the name of a user", parse_password), is_required=True),
        Param("sftp_pass", ParsedField("a password", parse_password), is_secret=True),
        Param("sftp_private_key_file", PathField("the path of a private key"), is_path=True),
        Param("sftp_private_key_passphrase", ParsedField("a passphrase", parse_password), is_secret=True),
        Param(
            "sftp_host_key",
            ParsedField("the key of the server, such as ssh-ed25519 AAAA..., one a line", _parse_host_keys_text),
        ),
        CLIENT_TIMEOUT,
        MAX_DOWNLOAD_SIZE,
    ),
    check=_check_sftp,
    packages=(Package("paramiko", "paramiko~=5.1"), EXCEL),
)
