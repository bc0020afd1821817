"""What the servers do with a connection beyond HTTP."""

from __future__ import annotations

import socket
import struct


def reset_on_close(connection: socket.socket) -> None:
    """Make the end of *connection* a reset (RST) that its peer cannot take for a complete answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
