"""Fields for hosts, addresses and networks."""

import ipaddress
import re

from runtimeconf.fields import InvalidValueError, ParsedField
from system.addresses import Address

_HOST_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


def parse_host(text: str) -> str:
    """
    Return a host name or IP address in lower case. An IPv6 address has no brackets.

    Raises:
        InvalidValueError: *text* is neither.
    """
    if ":" in text:
        try:
            return str(ipaddress.IPv6Address(text))
        except ValueError:
            raise InvalidValueError("not an IPv6 address") from None
    labels = text.removesuffix(".").split(".")
    if labels[-1].isdecimal():  # the URL standard treats such a host as an IPv4 address
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            raise InvalidValueError("not an IPv4 address") from None
    if len(text) > 253 or not all(_HOST_LABEL.fullmatch(label) for label in labels):
        raise InvalidValueError("not a host name")
    return text.lower()


#: A host and an optional port. An IPv6 host is in brackets.
_HOST_AND_PORT = re.compile(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([^\[\]:]+))(?::([0-9]{1,5}))?", re.ASCII)


def split_host_port(text: str) -> tuple[str, int | None] | None:
    """
    Split `host` or `host:port` into the parsed host (see `parse_host`) and the port. An IPv6 host is in brackets.

    Returns:
        None if *text* has another form.

    Raises:
        InvalidValueError: The host or the port is invalid.
    """
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None:
        return None
    port = None if match[3] is None else int(match[3])
    if port is not None and not 0 < port <= 65535:
        raise InvalidValueError("a port is from 1 to 65535")
    return parse_host(match[1] or match[2]), port


def _parse_address(text: str) -> Address:
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None or match[3] is None:
        is_bare_ipv6 = re.fullmatch(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*:[0-9]+", text) is not None
        raise InvalidValueError("put an IPv6 host in brackets" if is_bare_ipv6 else "")
    port = int(match[3])
    if port > 65535:
        raise InvalidValueError
    return Address(parse_host(match[1] or match[2]), port)


#: `host:port`, with an IPv6 host in brackets. With port 0, the system chooses a free port.
ADDRESS = ParsedField("an address such as 127.0.0.1:8090 or [::1]:8090, with a port from 0 to 65535", _parse_address)


def _parse_allowed_host(text: str) -> str:
    if text == "*":
        return text
    # A host without a port can be an IPv6 address without brackets.
    host, port = split_host_port(text) or (parse_host(text), None)
    return str(Address(host.removesuffix("."), port or 0)).removesuffix(":0")


#: A host as in a `Host` header: lower case, with an IPv6 address in brackets. A host with a port matches only that
#: port. `*` matches every host.
ALLOWED_HOST = ParsedField("a host name or IP address, with or without a port, or *", _parse_allowed_host)


#: IPv4-mapped IPv6 addresses. `system.client_address` treats them as IPv4.
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


def _parse_network(text: str) -> str:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidValueError from None
    if "%" in text:
        raise InvalidValueError("leave out the zone")
    if network.network_address != ipaddress.ip_address(text.partition("/")[0]):
        raise InvalidValueError(f"did you mean {network}?")
    if network.prefixlen == 0:
        raise InvalidValueError("it holds every address: name the proxies")
    if isinstance(network, ipaddress.IPv6Network) and network.overlaps(_MAPPED):
        raise InvalidValueError("write an IPv4 address as such")
    return str(network)


#: A network in its shortest form. A single address is a network with one address.
NETWORK = ParsedField("an IP address or a network such as 127.0.0.1, 10.0.0.0/8 or fd00::/8", _parse_network)
