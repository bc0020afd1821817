"""
Which `Host` headers are answered, and which requests of web pages.

A page of another site can make a browser send requests here: by a name that it lets point to 127.0.0.1 (DNS rebinding;
the Host header shows the name), or openly (Origin and Sec-Fetch-Site show the site). With authentication on, such a
request lacks the key.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

from django.conf import settings
from django.http.request import validate_host

from sqlapi.errors import CrossSiteRequestError, InvalidHostError

#: In the YAML's list: every well-formed host.
ANY_HOST = "*"

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?)(?::([0-9]{1,5}))?")
_MAX_LENGTH = 261
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Authority:
    """A host in lower case, an IPv6 address in brackets and its shortest form; `port` is None when it is left out."""

    host: str
    port: int | None


@lru_cache(maxsize=64)
def parse_authority(text: str) -> Authority | None:
    """Return the host and port that *text* names, or None when it is malformed."""
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
    Return the well-formed and allowed host of a request.

    *allowed_hosts* is the YAML's list, which always counts; an item without a port allows every port, and `*` every
    host. None means: any host while authentication is on, those of Django's ALLOWED_HOSTS while it is off.

    Raises:
        InvalidHostError: It is missing, malformed or not allowed.
    """
    authority = parse_authority(host)
    if authority is None or not _is_allowed(authority, allowed_hosts, auth_on=auth_on):
        raise InvalidHostError
    return authority


def _is_allowed(authority: Authority, allowed_hosts: tuple[str, ...] | None, *, auth_on: bool) -> bool:
    if allowed_hosts is None:
        return auth_on or validate_host(authority.host, settings.ALLOWED_HOSTS)
    return not {ANY_HOST, authority.host, f"{authority.host}:{authority.port}"}.isdisjoint(allowed_hosts)


def check_same_site(host: Authority, origin: str | None, fetch_site: str | None) -> None:
    """
    Refuse what a page of another origin sent; a request that no browser sent has neither header.

    Raises:
        CrossSiteRequestError: `Sec-Fetch-Site` is other than `same-origin` or `none`, or `Origin` is not this host.
    """
    if fetch_site is not None and fetch_site not in {"same-origin", "none"}:
        raise CrossSiteRequestError
    if origin is None:
        return
    scheme, _, rest = origin.lower().partition("://")
    sender = parse_authority(rest)
    # A proxy may speak TLS for us, so that the scheme of the request is not known here: only the port it implies is.
    implied = _DEFAULT_PORTS.get(scheme)
    if (
        sender is None
        or implied is None
        or sender.host != host.host
        or (sender.port or implied) != (host.port or implied)
    ):
        raise CrossSiteRequestError
