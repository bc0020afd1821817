"""Addresses that a server listens on."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port; an IPv6 host is without brackets here and with them in text."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it; a host name other than `localhost` counts as reachable."""
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return self.host.removesuffix(".") == "localhost"
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
