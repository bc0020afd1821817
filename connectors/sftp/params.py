"""The parameters of `sftp:`: files on a server reached over SSH."""

import base64
import binascii
from pathlib import Path
from typing import Annotated

from connectors.file_locations import EXPECTED, locate_file
from runtimeconf.connector import Connector, Package, Param
from runtimeconf.fields import InvalidValueError, ParsedField, PathField
from runtimeconf.file_formats import EXCEL, DownloadParams
from runtimeconf.network import PORT, parse_password


def parse_host_keys(text: str) -> list[tuple[str, bytes]]:
    """
    Return the type and bytes of each key in *text*, in lines such as `ssh-ed25519 AAAA...` (RFC 4253, 6.6).

    Raises:
        InvalidValueError: A line is not a key.
    """
    keys = []
    for line in filter(None, map(str.strip, text.splitlines())):
        kind, _, rest = line.partition(" ")
        try:
            key = base64.b64decode(rest.split()[0], validate=True)
        except (binascii.Error, IndexError):
            raise InvalidValueError(
                "each line must be a type such as ssh-ed25519, a space, and the key in base64"
            ) from None
        # The key repeats its type.
        if key[4 : 4 + len(kind)] != kind.encode():
            raise InvalidValueError("the key does not match its type")
        keys.append((kind, key))
    if not keys:
        raise InvalidValueError("it is blank")
    return keys


def _parse_host_keys(text: str) -> str:
    parse_host_keys(text)
    return text


_HOST_KEYS = ParsedField("the key of the server, such as ssh-ed25519 AAAA..., one per line", _parse_host_keys)


class SftpParams(DownloadParams):
    """The user, the server's host keys, and the file options."""

    sftp_port: Annotated[int, Param(PORT)] = 22
    sftp_user: Annotated[str, Param(ParsedField("a user name", parse_password))]
    sftp_pass: Annotated[str | None, Param(ParsedField("a password", parse_password), is_secret=True)] = None
    sftp_private_key_file: Annotated[Path | None, Param(PathField("the path of a private key"), is_path=True)] = None
    sftp_private_key_passphrase: Annotated[
        str | None, Param(ParsedField("a passphrase", parse_password), is_secret=True)
    ] = None
    sftp_host_key: Annotated[str | None, Param(_HOST_KEYS)] = None

    def problem(self, location: str) -> str | None:
        """Require exactly one kind of credentials; see `Params.problem`."""
        if (self.sftp_pass is None) == (self.sftp_private_key_file is None):
            return "must have one of sftp_pass and sftp_private_key_file"
        if self.sftp_private_key_passphrase is not None and self.sftp_private_key_file is None:
            return "has sftp_private_key_passphrase, but no sftp_private_key_file"
        return super().problem(location)


SFTP = Connector(
    expected=EXPECTED,
    locate=locate_file,
    params=SftpParams,
    source="connectors.sftp.source:SftpSource",
    packages=(Package("paramiko", "paramiko~=5.1"), EXCEL),
)
