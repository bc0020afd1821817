"""The address of a client behind trusted proxies."""

import ipaddress
from functools import lru_cache

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


def client_address(peer: str, forwarded_for: str, trusted_proxies: tuple[str, ...]) -> str:
    """
    Return the address of the client whose request came from *peer*. For logs only: a proxy may be wrong.

    The result is the last address in *forwarded_for* that is not a trusted proxy, or the first address if all are
    trusted. The result is *peer* if *peer* is not a trusted proxy, or if a relevant address is malformed.

    Args:
        peer: The address at the other end of the connection.
        forwarded_for: The value of `X-Forwarded-For`: comma-separated addresses. Each proxy appends the address of its
            peer.
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
    """Return the address in *text*, with IPv4-mapped IPv6 as IPv4; None if it is not an address or has a zone."""
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
