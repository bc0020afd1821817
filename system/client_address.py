"""The address of a client behind trusted proxies."""

import ipaddress
from functools import lru_cache

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


def client_address(peer: str, forwarded_for: str, trusted_proxies: tuple[str, ...]) -> str:
    """
    Return the address of the client whose request came from *peer*. Use it in logs only: a proxy may be wrong.

    It is the last address of *forwarded_for* that no trusted proxy has, or the first if all have it. It is *peer* if
    that is no trusted proxy, or if an address that counts is malformed.

    Args:
        peer: The address at the other end of the connection.
        forwarded_for: The value of `X-Forwarded-For`: addresses separated by commas, each proxy appending its peer.
        trusted_proxies: Networks, as `runtime.http.trusted_proxies` lists them.
    """
    if not forwarded_for or not trusted_proxies:
        return peer
    networks = _parse_networks(trusted_proxies)
    address = _parse(peer)
    client = peer
    for text in reversed(forwarded_for.split(",")):
        if address is None or not any(address in network for network in networks):
            break
        address = _parse(text.strip(" \t"))
        client = str(address)
    return peer if address is None else client


def _parse(text: str) -> IpAddress | None:
    """Return the address in *text*, one of IPv4 in IPv6 as IPv4; None if it is none, or has a zone."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return None if address.scope_id is not None else address.ipv4_mapped or address
    return address


@lru_cache(maxsize=4)
def _parse_networks(texts: tuple[str, ...]) -> tuple[IpNetwork, ...]:
    return tuple(map(ipaddress.ip_network, texts))
