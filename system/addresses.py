"""The addresses on which servers listen."""

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port. An IPv6 host has no brackets here, but has them in `str()`."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. Any host name other than `localhost` counts as not loopback."""
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return self.host.removesuffix(".") == "localhost"
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
