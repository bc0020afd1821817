"""What the connectors that go over the network share: how URLs and parameters are written, and when TLS is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from runtimeconf.connectors.connector import Param
from runtimeconf.connectors.texts import AsText
from runtimeconf.fields import Choice, Duration, Size, UnfitError, parse_host
from system.addresses import Address

#: The longest silence of a server; the whole load has `refresh_timeout`.
CLIENT_TIMEOUT = Param(name="client_timeout", shape=AsText(Duration("100ms", "1h")))

#: Whether what others are not to read may leave this machine without TLS.
ALLOW_HTTP = Param(name="allow_http", shape=Choice("true", "false"))

#: The most bytes of one load, over all its files.
MAX_DOWNLOAD_SIZE = Param(name="max_download_size", shape=AsText(Size("1B", "1024TiB")))


def parse_origin(text: str) -> tuple[str, str]:
    """
    Part a URL into its origin, as `scheme://host:port` with the host in lower case, and what follows it.

    A port that is not written is left out of the origin. No message shows the text: it may hold a password.

    Raises:
        UnfitError: It is not a URL of http or https.
    """
    match = re.fullmatch(r"(https?)://([^/?#]*)(.*)", text)
    if match is None:
        raise UnfitError("a URL begins with http:// or https://")
    scheme, authority, rest = match.groups()
    if "@" in authority:
        raise UnfitError("no user or password before the host: parameters hold these")
    host = re.fullmatch(r"(?:\[([^\[\]]*)\]|([^\[\]:]+))(?::([0-9]{1,5}))?", authority, re.ASCII)
    if host is None:
        raise UnfitError("not a host and a port")
    name = parse_host(host[1] or host[2])
    if host[3] is None:
        return f"{scheme}://{str(Address(name, 0)).removesuffix(':0')}", rest
    if not 0 < int(host[3]) <= 65535:
        raise UnfitError("a port is from 1 to 65535")
    return f"{scheme}://{Address(name, int(host[3]))}", rest


def is_loopback(host: str) -> bool:
    """Whether what is sent to *host* stays on this machine; of names, only `localhost` is known to do so."""
    return Address(host, 0).is_loopback


def lacks_tls(url: str, params: Mapping[str, str]) -> bool:
    """Whether what goes to *url* can be read on the way, and `allow_http` of *params* does not allow that."""
    parts = urlsplit(url)
    is_plain = parts.scheme in {"http", "grpc", "grpc+tcp"} and not is_loopback(parts.hostname or "")
    return is_plain and params.get("allow_http") != "true"


def check_credentials(url: str, what: str, params: Mapping[str, str], credentials: Sequence[str]) -> str | None:
    """Say which of *credentials*, names of parameters, would go to *url*, which *what* names, without TLS; or None."""
    sent = [name for name in credentials if name in params]
    if not sent or not lacks_tls(url, params):
        return None
    return f"has {what} without TLS: everybody on the way reads {' and '.join(sent)}; allow_http: true allows it"
