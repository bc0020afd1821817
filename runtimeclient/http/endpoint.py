"""The base URL of a runtime's HTTP API, validated."""

import ipaddress
import re
import socket
from contextlib import suppress
from dataclasses import dataclass

import httpx

from runtimeclient.errors import UsageError

DEFAULT_ENDPOINT = "http://127.0.0.1:8090"

_HOST = re.compile(rb"[a-z0-9._-]+|[0-9a-f:.]+", re.IGNORECASE)
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The base URL of a runtime, without a trailing slash."""

    url: str
    origin: str  # scheme, host and port
    is_tls: bool
    is_loopback: bool  # requests stay on this machine, so no proxy may see them


def parse_endpoint(text: str) -> Endpoint:
    """
    Parse a base URL: `http` or `https`, a host, optionally a port and a path prefix.

    Raises:
        UsageError: *text* is not such a URL. The message does not repeat a user name or password.
    """
    if "@" in text:
        raise UsageError("The HTTP endpoint must not contain a user name or password: use the API key options.")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError) as exc:
        raise UsageError(f"The HTTP endpoint is not a URL: {exc}") from exc
    if url.scheme not in {"http", "https"}:
        hint = f": did you mean http://{text}?" if text and "://" not in text else "."
        raise UsageError(f"The HTTP endpoint must start with http:// or https://{hint}")
    if not _HOST.fullmatch(url.raw_host) or not (url.port is None or 0 < url.port < 65536):
        raise UsageError(f"The HTTP endpoint {text} must have a host, and a port from 1 to 65535 if any.")
    if url.query or url.fragment or "?" in text or "#" in text:
        # Do not show the URL: the user may have put the key into the query string.
        raise UsageError("The HTTP endpoint must not have a query string or fragment.")
    is_tls = url.scheme == "https"
    port = url.port or (443 if is_tls else 80)
    origin = f"{url.scheme}://{url.raw_host.decode().lower()}:{port}"
    return Endpoint(str(url).rstrip("/"), origin, is_tls, _is_loopback(url.host))


def _is_loopback(host: str) -> bool:
    name = host.lower().rstrip(".")
    if name in _LOOPBACK_NAMES or name.endswith(".localhost"):
        return True
    with suppress(OSError):
        name = socket.inet_ntoa(socket.inet_aton(name))  # The resolver also accepts 127.1 and 0x7f000001.
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    # Connecting to 0.0.0.0 or [::] reaches this machine.
    return bool(mapped.is_loopback or mapped.is_unspecified)
