"""Tells systemd about the state of the runtime: sd_notify(3), and the watchdog of a unit with `WatchdogSec=`."""

import socket
from contextlib import suppress


class ServiceManager:
    """The socket *address* from `NOTIFY_SOCKET`. Without an address, nothing is sent."""

    def __init__(self, address: str) -> None:
        # A name that begins with @ is an abstract socket, not a file.
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def report_ready(self) -> None:
        """Report that startup is complete."""
        self._tell(b"READY=1")

    def report_stopping(self) -> None:
        """Report that a stop has begun, even if systemd did not request it."""
        self._tell(b"STOPPING=1")

    def report_alive(self) -> None:
        """Report that this process is alive. If the report is missing for too long, systemd kills the process."""
        # `systemctl start` would wait forever if the socket had no room when startup was complete.
        self._tell(b"READY=1\nWATCHDOG=1")

    def _tell(self, state: bytes) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notified:
                notified.sendto(state, self._address)
