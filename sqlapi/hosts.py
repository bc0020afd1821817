"""
Checks `Host`, `Origin` and `Sec-Fetch-Site`.

A web page on another site can make a browser send requests here in two ways: through a name that resolves to 127.0.0.1
(DNS rebinding, which the Host header reveals), or directly (which Origin and Sec-Fetch-Site reveal). If authentication
is on, such requests lack the key. `/v1/mcp` checks them even then, because its specification demands it.
"""

import ipaddress
import re
from functools import lru_cache

from django.conf import settings
from django.http.request import validate_host
from msgspec import Struct

from sqlapi.errors import CrossSiteRequestError, InvalidHostError

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?)(?::([0-9]{1,5}))?")
_MAX_LENGTH = 261
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Authority(Struct, frozen=True):
    """A host in lower case, or an IPv6 address in brackets in its shortest form. `port` is None if absent."""

    host: str
    port: int | None


@lru_cache(maxsize=64)
def parse_authority(text: str) -> Authority | None:
    """Return the host and port in *text*; None if it is malformed."""
    found = _AUTHORITY.fullmatch(text.lower()) if len(text) <= _MAX_LENGTH else None
    if found is None:
        return None
    host, port = found[1], int(found[2]) if found[2] else None
    if port is not None and not 0 < port < 65536:
        return None
    if host.startswith("["):
        try:
            return Authority(f"[{ipaddress.IPv6Address(host[1:-1])}]", port)
        except ValueError:
            return None
    return Authority(host.removesuffix("."), port)


def check_host(host: str, allowed_hosts: tuple[str, ...] | None, *, auth_on: bool) -> Authority:
    """
    Return the host of a request if it is well-formed and allowed.

    *allowed_hosts* is the configured list. An item without a port allows every port, and `*` allows every host. None
    allows any host while authentication is on, and Django's ALLOWED_HOSTS while it is off.

    Raises:
        InvalidHostError: The host is missing, malformed or not allowed.
    """
    authority = parse_authority(host)
    if authority is None:
        raise InvalidHostError
    if allowed_hosts is None:
        is_allowed = auth_on or validate_host(authority.host, settings.ALLOWED_HOSTS)
    else:
        names = {"*", authority.host, f"{authority.host}:{authority.port}"}
        is_allowed = not names.isdisjoint(allowed_hosts)
    if not is_allowed:
        raise InvalidHostError
    return authority


def check_same_site(host: Authority, origin: str | None, fetch_site: str | None) -> None:
    """
    Refuse requests from web pages of another origin. Only browsers send these headers.

    Raises:
        CrossSiteRequestError: `Sec-Fetch-Site` is neither `same-origin` nor `none`, or `Origin` is not this host.
    """
    if fetch_site is not None and fetch_site not in {"same-origin", "none"}:
        raise CrossSiteRequestError
    if origin is None:
        return
    scheme, _, rest = origin.lower().partition("://")
    sender = parse_authority(rest)
    # A proxy may terminate TLS, so the scheme of the request is unknown. Only the port that Origin implies is checked.
    port = _DEFAULT_PORTS.get(scheme)
    if sender is None or port is None or (sender.host, sender.port or port) != (host.host, host.port or port):
        raise CrossSiteRequestError
