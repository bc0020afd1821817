"""The addresses on which servers listen: whether they can be bound, and which processes use their port."""

import errno
import ipaddress
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from system.process_usage import started_at

#: The first descriptor that systemd passes.
_FIRST_ACTIVATED = 3

#: The maximum number of connections waiting to be accepted. The system may allow fewer.
_BACKLOG = 2048

_POLL_S = 0.1

_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (compared with, not bound)


class Address(Struct, frozen=True):
    """A host and a TCP port. An IPv6 host has no brackets here, but has them in `str()`."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address. Host names other than `localhost` count as not loopback."""
        address = self._ip
        return self.host.removesuffix(".") == "localhost" if address is None else address.is_loopback

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach a server that listens here. `localhost` is resolved first."""
        if not self.is_loopback:
            return True
        if self._ip is not None:
            return False
        found: set[str] = set()
        with suppress(OSError):  # Nothing can listen there.
            found = {str(one[4][0]) for one in socket.getaddrinfo(self.host, None)}
        return not all(Address(host, 0).is_loopback for host in found)

    @property
    def is_link_local(self) -> bool:
        """Whether routers do not forward the address (RFC 3927, RFC 4291 2.5.6)."""
        return self._ip is not None and self._ip.is_link_local

    @property
    def _ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return None
        return (address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None) or address

    @property
    def local(self) -> "Address":
        """The address at which this machine reaches a server that listens here, possibly on all addresses."""
        return Address(_REACHED_AT.get(self.host, self.host), self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen(address: Address, setting: str, deadline: float) -> socket.socket:
    """
    Listen on *address* as soon as it can be bound.

    Args:
        address: The address of a server that is about to listen. Port 0 is always free.
        setting: The YAML field that sets the address.
        deadline: The `time.monotonic()` until which a predecessor may still hold the port.

    Raises:
        OSError: The address cannot be bound. The message names the holding process, if visible, and a remedy.
    """
    while True:
        try:
            return _listener(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OSError(_problem(address, error)) from error
            if time.monotonic() >= deadline:
                remedy = f"Stop that server, or change {setting}."
                raise OSError(f"Cannot listen on {address}: {_holder(address.port)}. {remedy}") from error
            time.sleep(_POLL_S)


def wait_until_bindable(address: Address, setting: str, deadline: float) -> None:
    """Return as soon as *address* can be bound. See `listen` for the arguments and errors."""
    listen(address, setting, deadline).close()


def bind_problem(address: Address) -> str | None:
    """Return why *address* can never be bound on this machine; None if it can, or if it is in use."""
    try:
        _listener(address).close()
    except OSError as error:
        return None if error.errno == errno.EADDRINUSE else _problem(address, error)
    return None


def _problem(address: Address, error: OSError) -> str:
    return f"Cannot listen on {address}: {error.strerror or 'the system refuses it'}."


def _listener(address: Address) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def activated(environ: Mapping[str, str]) -> int | None:
    """
    Return the descriptor of the listening socket passed by systemd; None if there is none.

    See sd_listen_fds(3). A socket unit for Querykeep has one socket, for HTTP.

    Raises:
        OSError: systemd did not pass exactly one listening TCP socket.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    if environ.get("LISTEN_FDS") != "1":
        raise OSError(f"systemd passed {environ.get('LISTEN_FDS')} sockets: the unit must have exactly one, for HTTP.")
    if bound_address(_FIRST_ACTIVATED) is None:
        raise OSError("The socket that systemd passed is not a listening TCP socket: see ListenStream= in its unit.")
    return _FIRST_ACTIVATED


def bound_address(descriptor: int) -> Address | None:
    """Return the address on which the socket *descriptor* listens; None if it is not a listening TCP socket."""
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return None
    try:
        listener = socket.socket(fileno=duplicate)
    except OSError:  # The descriptor is not a socket.
        os.close(duplicate)
        return None
    with listener:
        if listener.family not in {socket.AF_INET, socket.AF_INET6} or listener.type != socket.SOCK_STREAM:
            return None
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return None
        host, port = listener.getsockname()[:2]
        return Address(host, port)


def listening_addresses() -> Iterator[Address]:
    """Yield the TCP addresses on which this process listens."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (the names are numbers)
        if (address := bound_address(int(name))) is not None:
            yield address


def holders(port: int) -> Iterator[int]:
    """Yield the ids of the processes that listen on *port*, as far as /proc shows them to this user."""
    inodes = _listening_inodes(port)
    for process in Path("/proc").iterdir() if inodes else ():
        if process.name.isdigit() and inodes & _socket_inodes(process):
            yield int(process.name)


def is_listening(port: int) -> bool:
    """Return whether any process in this network namespace listens on TCP *port*, on any address."""
    return bool(_listening_inodes(port))


def _holder(port: int) -> str:
    # Of processes that share a socket, the oldest made it. The ids do not tell, because they begin anew.
    oldest = min(holders(port), key=lambda process: int(started_at(process) or 0), default=None)
    return "another process has the port" if oldest is None else f"process {oldest} has the port"


def _listening_inodes(port: int) -> set[str]:
    listening = "0A"
    tables = filter(Path.exists, (Path("/proc/net/tcp"), Path("/proc/net/tcp6")))
    rows = [row.split() for table in tables for row in table.read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[3] == listening and int(row[1].rpartition(":")[2], 16) == port}


def _socket_inodes(process: Path) -> set[str]:
    inodes = set()
    with suppress(OSError):  # The process has ended, or belongs to another user.
        for descriptor in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # The descriptor was closed in the meantime.
                inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    return inodes
