"""Where a runtime is: the base URL of its HTTP API, checked."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

import httpx

from runtimeclient.errors import UsageError

DEFAULT_ENDPOINT = "http://127.0.0.1:8090"

_HOST = re.compile(rb"[a-z0-9._-]+|[0-9a-f:.]+", re.IGNORECASE)
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """
    The base URL of a runtime, without a slash at its end.

    Attributes:
        origin: Scheme, host and port: who gets what is sent there.
        is_tls: The scheme is https.
        is_loopback: Requests do not leave this machine, so no proxy may see them.
    """

    url: str
    origin: str
    is_tls: bool
    is_loopback: bool


def parse_endpoint(text: str) -> Endpoint:
    """
    Check a base URL: `http` or `https`, a host, perhaps a port and a path prefix, nothing else.

    Raises:
        UsageError: *text* is not such a URL. User name and password are not repeated in the message.
    """
    if "@" in text:
        raise UsageError("The HTTP endpoint must not hold a user name or password: the API key has its own options.")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError) as exc:
        raise UsageError(f"The HTTP endpoint is not a URL: {exc}") from exc
    if url.scheme not in {"http", "https"}:
        hint = f": did you mean http://{text}?" if text and "://" not in text else "."
        raise UsageError(f"The HTTP endpoint must begin with http:// or https://{hint}")
    if not _HOST.fullmatch(url.raw_host) or not (url.port is None or 0 < url.port < 65536):
        raise UsageError(f"The HTTP endpoint {text} must name a host, and if it names a port, one from 1 to 65535.")
    if url.query or url.fragment or "?" in text or "#" in text:
        # Not shown: a query string is where somebody may have put the key.
        raise UsageError("The HTTP endpoint must end with the host, the port or a path prefix: no query string.")
    is_tls = url.scheme == "https"
    port = url.port or (443 if is_tls else 80)
    origin = f"{url.scheme}://{url.raw_host.decode().lower()}:{port}"
    return Endpoint(str(url).rstrip("/"), origin, is_tls, _is_loopback(url.host))


def _is_loopback(host: str) -> bool:
    name = host.lower().rstrip(".")
    if name in _LOOPBACK_NAMES or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        try:
            # The resolver takes 127.1 and 0x7f000001 for addresses too.
            address = ipaddress.ip_address(socket.inet_aton(name))
        except OSError:
            return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    # Connecting to 0.0.0.0 or [::] reaches this machine.
    return bool(mapped.is_loopback or mapped.is_unspecified)
