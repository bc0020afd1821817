"""Shared by the connectors that use the network: fields of parameters, URLs, and where TLS is required."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from runtimeconf.connectors.connector import Param
from runtimeconf.fields import ChoiceField, DurationField, InvalidValueError, ScalarField, SizeField, split_host_port
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_reader import Node, Scalar
from system.addresses import Address

_MAX_CREDENTIAL_LENGTH = 16_384


class TextOf(ScalarField[str]):
    """The value of *field* as text: a duration in seconds, a size in bytes."""

    def __init__(self, field: ScalarField[Any]) -> None:
        self._field = field
        self.expected = field.expected

    def convert(self, node: Scalar) -> str:
        """Return the value as text."""
        return str(self._field.convert(node))


class HiddenField(ScalarField[str]):
    """A text that no fault shows, because an invalid one may hold a secret, such as a URL with a password."""

    def read(self, node: Node, path: YamlPath) -> str | None:
        """Read the node as one that may not be shown."""
        return super().read(replace(node, may_be_shown=False) if isinstance(node, Scalar) else node, path)


class PortField(ScalarField[str]):
    """A TCP port."""

    expected = "a port from 1 to 65535"

    def convert(self, node: Scalar) -> str:
        """Accept decimal digits only."""
        if re.fullmatch(r"[1-9][0-9]{0,4}", node.text) is None or int(node.text) > 65535:
            raise InvalidValueError
        return node.text


class PasswordField(ScalarField[str]):
    """A password, verbatim: one line of any characters, sent in UTF-8."""

    def __init__(self, expected: str) -> None:
        self.expected = expected

    def convert(self, node: Scalar) -> str:
        """Return the text unchanged."""
        if not node.text:
            raise InvalidValueError("it is empty")
        if re.search(r"[\0\r\n]", node.text) or len(node.text) > _MAX_CREDENTIAL_LENGTH:
            raise InvalidValueError(f"it has several lines, or is longer than {_MAX_CREDENTIAL_LENGTH:,} characters")
        return node.text


class CredentialField(PasswordField):
    """A token or key in printable ASCII, which is sent in a header or used to sign requests."""

    def convert(self, node: Scalar) -> str:
        """Return the text unchanged."""
        if not (node.text.isascii() and node.text.isprintable()):
            raise InvalidValueError("printable ASCII")
        return super().convert(node)


#: How long a server may be silent; `refresh_timeout` limits the whole load.
CLIENT_TIMEOUT = Param("client_timeout", TextOf(DurationField("100ms", "1h")))

#: Whether confidential data may be sent without TLS.
ALLOW_HTTP = Param("allow_http", ChoiceField("true", "false"))

#: The limit on the bytes of one load, over all its files.
MAX_DOWNLOAD_SIZE = Param("max_download_size", TextOf(SizeField("1B", "1024TiB")))


def parse_origin(text: str) -> tuple[str, str]:
    """
    Split a URL into its origin, `scheme://host:port` with the host in lower case, and the rest.

    The origin has a port only if the URL has one. No message shows the URL: it may hold a password.

    Raises:
        InvalidValueError: *text* is not an http or https URL.
    """
    match = re.fullmatch(r"(https?)://([^/?#]*)(.*)", text)
    if match is None:
        raise InvalidValueError("a URL begins with http:// or https://")
    scheme, authority, rest = match.groups()
    if "@" in authority:
        raise InvalidValueError("no user or password before the host: parameters hold these")
    host_port = split_host_port(authority)
    if host_port is None:
        raise InvalidValueError("not a host and a port")
    host, port = host_port
    return f"{scheme}://{str(Address(host, port or 0)).removesuffix(':0')}", rest


def is_loopback(host: str) -> bool:
    """Return whether *host* is this machine: a loopback address or the name `localhost`."""
    return Address(host, 0).is_loopback


def lacks_tls(url: str, params: Mapping[str, str]) -> bool:
    """Return whether *url* is a remote one without TLS that `allow_http` of *params* does not allow."""
    parts = urlsplit(url)
    is_plain = parts.scheme in {"http", "grpc", "grpc+tcp"} and not is_loopback(parts.hostname or "")
    return is_plain and params.get("allow_http") != "true"


def check_credentials(url: str, what: str, params: Mapping[str, str], credentials: Sequence[str]) -> str | None:
    """Return the fault of sending any of the parameters *credentials* to *url*, called *what*, without TLS; or None."""
    sent = [name for name in credentials if name in params]
    if not sent or not lacks_tls(url, params):
        return None
    return f"has {what} without TLS: everybody on the way reads {' and '.join(sent)}; allow_http: true allows it"
