"""What the servers do with a connection beyond HTTP."""

from __future__ import annotations

import socket
import struct
from typing import Protocol


class HasOptions(Protocol):
    """A socket, or what stands for one."""

    def setsockopt(self, level: int, name: int, value: bytes, /) -> None:
        """Set an option of the socket."""


class CanReset(HasOptions, Protocol):
    """The same; it can also be given up."""

    def detach(self) -> int:
        """Give up the file descriptor and return it."""


def reset_on_close(connection: HasOptions, *, wanted: bool) -> None:
    """
    Have *connection* end in a reset (RST) when it is closed, by whomever: also by the system, when the process dies.

    Not *wanted*, it ends as usual again; what was written until then reaches the peer.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", wanted, 0))


def reset(connection: CanReset) -> None:
    """
    End *connection* now by a reset (RST), which its peer cannot take for the end of a complete answer.

    Whoever else holds the socket object finds it closed.
    """
    reset_on_close(connection, wanted=True)
    # Not close(): files made of the socket would keep it open, and a later shutdown would end it politely.
    socket.close(connection.detach())
