"""Shared by the connectors that use the network: fields of parameters, URLs, and where TLS is required."""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from runtimeconf.addresses import split_host_port
from runtimeconf.connectors.connector import Param
from runtimeconf.fields import ChoiceField, DurationField, InvalidValueError, ParsedField, SizeField
from system.addresses import Address

_MAX_CREDENTIAL_LENGTH = 16_384


def _parse_port(text: str) -> str:
    if re.fullmatch(r"[1-9][0-9]{0,4}", text) is None or int(text) > 65535:
        raise InvalidValueError
    return text


PORT = ParsedField("a port from 1 to 65535", _parse_port)


def parse_password(text: str) -> str:
    """Return a password, verbatim: one line of any characters, sent in UTF-8. Raises InvalidValueError."""
    if not text:
        raise InvalidValueError("it is empty")
    if re.search(r"[\0\r\n]", text) or len(text) > _MAX_CREDENTIAL_LENGTH:
        raise InvalidValueError(f"it has several lines, or is longer than {_MAX_CREDENTIAL_LENGTH:,} characters")
    return text


def parse_token(text: str) -> str:
    """Return a token or key in printable ASCII, sent in a header or used to sign. Raises InvalidValueError."""
    if not (text.isascii() and text.isprintable()):
        raise InvalidValueError("printable ASCII")
    return parse_password(text)


#: How long a server may be silent, in seconds; `refresh_timeout` limits the whole load.
CLIENT_TIMEOUT = Param("client_timeout", DurationField("100ms", "1h"))

#: Whether confidential data may be sent without TLS.
ALLOW_HTTP = Param("allow_http", ChoiceField("true", "false"))

#: The limit on the bytes of one load, over all its files.
MAX_DOWNLOAD_SIZE = Param("max_download_size", SizeField("1B", "1024TiB"))


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


def is_near(host: str) -> bool:
    """Return whether *host* is this machine, or an address that no router forwards (RFC 3927): no proxy reaches it."""
    return is_loopback(host) or Address(host, 0).is_link_local


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
