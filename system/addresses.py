"""The addresses on which servers listen: whether they can be bound, and who holds their port."""

import errno
import ipaddress
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.1


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


def wait_until_bindable(address: Address, setting: str, deadline: float) -> None:
    """
    Return as soon as *address* can be bound.

    Args:
        address: The address of a server that is about to listen; port 0 is always free.
        setting: The YAML field that sets it.
        deadline: The `time.monotonic()` until which a predecessor may still hold the port.

    Raises:
        OSError: The address cannot be bound. The message names the holding process, if visible, and a remedy.
    """
    while True:
        try:
            return _try_bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OSError(_problem(address, error)) from error
            if time.monotonic() >= deadline:
                remedy = f"Stop that server, or change {setting}."
                raise OSError(f"Cannot listen on {address}: {_holder(address.port)}. {remedy}") from error
            time.sleep(_POLL_S)


def bind_problem(address: Address) -> str | None:
    """Return why *address* can never be bound on this machine; None if it can, or if it is in use."""
    try:
        _try_bind(address)
    except OSError as error:
        return None if error.errno == errno.EADDRINUSE else _problem(address, error)
    return None


def _problem(address: Address, error: OSError) -> str:
    return f"Cannot listen on {address}: {error.strerror or 'the system refuses it'}."


def _try_bind(address: Address) -> None:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address.host, address.port))
        probe.listen(1)


def _holder(port: int) -> str:
    """Return a clause that names the process listening on *port*, if /proc shows it to this user."""
    inodes = _listening_inodes(port)
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and inodes & _socket_inodes(process):
            return f"process {process.name} has the port"
    return "another process has the port"


def _listening_inodes(port: int) -> set[str]:
    listening = "0A"
    tables = filter(Path.exists, (Path("/proc/net/tcp"), Path("/proc/net/tcp6")))
    rows = [row.split() for table in tables for row in table.read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[3] == listening and int(row[1].rpartition(":")[2], 16) == port}


def _socket_inodes(process: Path) -> set[str]:
    inodes = set()
    with suppress(OSError):  # The process has ended, or belongs to another user.
        for descriptor in (process / "fd").iterdir():
            inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    return inodes
