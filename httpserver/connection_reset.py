"""Close a TCP connection with a reset (RST), which no peer can take for the end of a complete answer."""

from __future__ import annotations

import socket
import struct
from typing import Protocol


class Resettable(Protocol):
    """A socket, or a wrapper around one."""

    def setsockopt(self, level: int, name: int, value: bytes, /) -> None:
        """Set an option of the socket."""

    def detach(self) -> int:
        """Give up the file descriptor and return it."""


def reset_on_close(connection: Resettable, *, wanted: bool) -> None:
    """
    Make every close of *connection* a reset, even when the system closes it because the process died.

    With *wanted* false, closing is graceful again: everything written until then reaches the peer.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", wanted, 0))


def reset(connection: Resettable) -> None:
    """Reset *connection* now. Other holders of the socket object find it closed."""
    reset_on_close(connection, wanted=True)
    # Not connection.close(): files made from the socket would keep it open, and a later shutdown would be graceful.
    socket.close(connection.detach())
