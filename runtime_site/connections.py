"""What the servers do with a connection beyond HTTP."""

from __future__ import annotations

import socket
import struct
from typing import Protocol


class CanReset(Protocol):
    """A socket, or what stands for one."""

    def setsockopt(self, level: int, name: int, value: bytes, /) -> None:
        """Set an option of the socket."""

    def detach(self) -> int:
        """Give up the file descriptor and return it."""


def reset(connection: CanReset) -> None:
    """
    End *connection* now by a reset (RST), which its peer cannot take for the end of a complete answer.

    Whoever else holds the socket object finds it closed.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # Not close(): files made of the socket would keep it open, and a later shutdown would end it politely.
    socket.close(connection.detach())
