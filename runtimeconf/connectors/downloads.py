"""Shared by the connectors that use the network: URLs, common parameters, and where TLS is required."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from runtimeconf.connectors.connector import Param
from runtimeconf.connectors.param_fields import TextOf
from runtimeconf.fields import ChoiceField, DurationField, InvalidValueError, SizeField, parse_host
from system.addresses import Address

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
    host = re.fullmatch(r"(?:\[([^\[\]]*)\]|([^\[\]:]+))(?::([0-9]{1,5}))?", authority, re.ASCII)
    if host is None:
        raise InvalidValueError("not a host and a port")
    name = parse_host(host[1] or host[2])
    if host[3] is None:
        return f"{scheme}://{str(Address(name, 0)).removesuffix(':0')}", rest
    if not 0 < int(host[3]) <= 65535:
        raise InvalidValueError("a port is from 1 to 65535")
    return f"{scheme}://{Address(name, int(host[3]))}", rest


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
